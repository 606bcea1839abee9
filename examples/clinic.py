"""A made-up clinic whose best treatment is known: its log, and what any policy is truly worth.

    python examples/clinic.py --log clinic.csv           5,000 logged steps, as a hospital has them
    python examples/clinic.py --states states.csv        every state there is, one a row
    python examples/clinic.py --judge actions.csv        the value of a policy, solved exactly

A patient's illness has the levels 1 to 5; a step is a day. At 0 the patient is well, which is the
only reward (1); at 6 dead. Drugs work the less the more of them the patient got (tolerance 0 to 2),
which rest brings back. The doctors mostly give the mild drug, the strong one to the very ill even
where tolerance has made it useless, and seldom order rest. Some patients leave before their
end. All numbers are invented.
"""

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

LEVELS, TOLERANCES, AGES = 5, 3, 3
ACTIONS = ("wait", "mild drug", "strong drug", "rest")
DISCOUNT = 0.99
LEAVES = 0.03  # probability a day that a patient goes, and the record ends
COLUMNS = ("state_0", "state_1", "state_2")  # a laboratory's value, tolerance, age group


class Patient(NamedTuple):
    """A state: level 1 to 5, tolerance 0 to 2, age group 0 to 2."""

    level: int
    tolerance: int
    age: int

    @property
    def place(self) -> int:
        """Its number among all states."""
        return ((self.level - 1) * TOLERANCES + self.tolerance) * AGES + self.age

    @property
    def logged(self) -> tuple[float, float, float]:
        """As the log has it: the laboratory measures the level in units of its own."""
        return 40.0 + 25.0 * self.level, float(self.tolerance), float(self.age)


STATES = [
    Patient(level, tolerance, age)
    for level in range(1, LEVELS + 1)
    for tolerance in range(TOLERANCES)
    for age in range(AGES)
]


def effects(patient: Patient, action: int) -> tuple[float, float, int]:
    """Probabilities that the level falls and rises by one, and what is added to the tolerance."""
    level, tolerance, age = patient
    slower = 0.07 * age
    if ACTIONS[action] == "wait":
        return 0.15 - slower / 2, 0.30, 0
    if ACTIONS[action] == "mild drug":
        return 0.45 - 0.15 * tolerance - slower, 0.18, int(level >= 3)
    if ACTIONS[action] == "strong drug":
        hurts = 0.30 if level <= 2 else 0.08  # too much for the less ill
        return 0.70 - 0.28 * tolerance - slower, hurts + 0.08 * tolerance, 1
    return 0.12 - slower / 2, 0.18, -TOLERANCES


def transitions() -> np.ndarray:
    """p(s' | s, a), (states, actions, states + 2): the last two are well and dead."""
    p = np.zeros((len(STATES), len(ACTIONS), len(STATES) + 2))
    for patient in STATES:
        for action in range(len(ACTIONS)):
            falls, rises, added = effects(patient, action)
            falls = max(falls, 0.02)
            tolerance = int(np.clip(patient.tolerance + added, 0, TOLERANCES - 1))
            for change, probability in ((-1, falls), (1, rises), (0, 1 - falls - rises)):
                level = patient.level + change
                after = Patient(level, tolerance, patient.age).place
                after = len(STATES) if level == 0 else after
                after = len(STATES) + 1 if level > LEVELS else after
                p[patient.place, action, after] += probability
    return p


def doctors() -> np.ndarray:
    """The behaviour's π(a | s), (states, actions); some actions they never take in some states."""
    preferences = np.zeros((len(STATES), len(ACTIONS)))
    for patient in STATES:
        if patient.level >= 4:
            preferences[patient.place] = (0.0, 0.30, 0.50, 0.20)
        elif patient.level == 3:
            preferences[patient.place] = (0.05, 0.50, 0.25, 0.20)
        else:
            preferences[patient.place] = (0.25, 0.55, 0.0, 0.20)
    return preferences


def arrivals() -> np.ndarray:
    """The first day's distribution, (states,)."""
    first = np.zeros(len(STATES))
    for level, probability in ((2, 0.3), (3, 0.4), (4, 0.3)):
        for age in range(AGES):
            first[Patient(level, 0, age).place] = probability / AGES
    return first


def values(policy: np.ndarray) -> np.ndarray:
    """V^π of every state, solved exactly: V = r_π + γ P_π V. (states, actions) -> (states,)."""
    p = np.einsum("sa,sat->st", policy, transitions())
    well, alive = p[:, len(STATES)], p[:, : len(STATES)]
    return np.linalg.solve(np.eye(len(STATES)) - DISCOUNT * alive, well)


def best_policy() -> np.ndarray:
    """The optimal policy, by policy iteration; (states, actions), one 1 a row."""
    policy, p = doctors(), transitions()
    while True:
        q = p[:, :, len(STATES)] + DISCOUNT * p[:, :, : len(STATES)] @ values(policy)
        better = np.eye(len(ACTIONS))[q.argmax(1)]
        if np.array_equal(better, policy):
            return policy
        policy = better


def worth(policy: np.ndarray) -> float:
    """The discounted value of a policy at the patients' arrival."""
    return float(arrivals() @ values(policy))


def write_log(path: Path, rows: int, seed: int) -> None:
    """`rows` days of patients treated by the doctors, one patient after the other."""
    draw = np.random.default_rng(seed)
    p, behaviour, first = transitions(), doctors(), arrivals()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["episode", *COLUMNS, "action", "reward", "terminated"])
        written, episode = 0, 0
        while written < rows:
            state = int(draw.choice(len(STATES), p=first))
            goes_on = True
            while goes_on and written < rows:
                action = int(draw.choice(len(ACTIONS), p=behaviour[state]))
                after = int(draw.choice(len(STATES) + 2, p=p[state, action]))
                ended, well = after >= len(STATES), after == len(STATES)
                writer.writerow([episode, *STATES[state].logged, action, int(well), int(ended)])
                goes_on = not ended and draw.random() >= LEAVES
                state, written = after, written + 1
            episode += 1


def write_states(path: Path) -> None:
    """All states, in the order that `judge` expects their actions in."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(patient.logged for patient in STATES)


def read_policy(path: Path) -> np.ndarray:
    """The actions that were chosen in all states, as probabilities (states, actions)."""
    with path.open(newline="", encoding="utf-8") as file:
        chosen = [int(line["action"]) for line in csv.DictReader(file)]
    return np.eye(len(ACTIONS))[chosen]


def judge(policy: np.ndarray | None = None) -> dict[str, float]:
    """Exact discounted values at arrival: the doctors', perfect cloning's, the best, `policy`'s."""
    mostly = np.eye(len(ACTIONS))[doctors().argmax(1)]
    known = {"the doctors": doctors(), "their likeliest action": mostly, "optimal": best_policy()}
    if policy is not None:
        known["this policy"] = policy
    return {name: worth(one) for name, one in known.items()}


def main() -> None:
    """Write the log, write the states, or judge a policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--log", type=Path, metavar="FILE", help="write a log to this .csv")
    parser.add_argument("--rows", type=int, default=5000, help="its days (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of its random numbers (%(default)s)")
    parser.add_argument("--states", type=Path, metavar="FILE", help="write all states to this .csv")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="the actions chosen in them")
    args = parser.parse_args()
    if args.log:
        write_log(args.log, args.rows, args.seed)
    if args.states:
        write_states(args.states)
    if args.judge or not (args.log or args.states):
        for name, value in judge(read_policy(args.judge) if args.judge else None).items():
            print(f"  {name:<24} {value:.4f}")


if __name__ == "__main__":
    main()
