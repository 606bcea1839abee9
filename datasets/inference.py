"""What data say of their task where no --env does: sizes, and the kind and bounds of actions."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from common.environment.making import needs_rescaling
from common.errors import InputError
from datasets.batch import Source
from datasets.reading import numbers
from datasets.task import Task

THE_DATA = "the data"  # the task's name in messages
WIDE_STD, WIDE_RATIO = 1e3, 100.0  # of the states' standard deviations, beyond which a note is due
MOST_ACTIONS = 1000  # that whole numbers are taken for


class Given(NamedTuple):
    """What the flags say; None is to be inferred."""

    num_actions: int | None = None
    action_low: list[float] | None = None
    action_high: list[float] | None = None


class Undescribed(Task):
    """What data are read with before their task is known: any width, any number."""

    def states(self, what: str, logged: np.ndarray) -> np.ndarray:
        """As they are. Raises: InputError for anything but numbers."""
        return numbers(what, logged)

    def actions(self, what: str, array: np.ndarray) -> np.ndarray:
        """As they are. Raises: InputError for anything but numbers."""
        return numbers(what, array, np.float64)


UNDESCRIBED = Undescribed(
    THE_DATA, 0, spaces.Box(-np.inf, np.inf, (0,)), None, np.empty(0), np.empty(0), rescaled=False
)


class Columns:
    """Lowest, highest, mean and standard deviation of some columns, block by block."""

    def __init__(self) -> None:
        self.width: int | None = None
        self.count = 0

    def add(self, what: str, block: np.ndarray) -> None:
        """(n, w); NaN and infinity are passed over. Raises: InputError where the width changes."""
        block = block.astype(np.float64)
        if self.width is None:
            self.width = block.shape[1]
            self.low, self.high = np.full(self.width, np.inf), np.full(self.width, -np.inf)
            self.mean, self.squares = np.zeros(self.width), np.zeros(self.width)
        if block.shape[1] != self.width:
            raise InputError(f"{what} is {self.width} wide, and {block.shape[1]} further on")
        block = block[np.isfinite(block).all(1)]
        if not len(block):
            return
        self.low, self.high = (
            np.minimum(self.low, block.min(0)),
            np.maximum(self.high, block.max(0)),
        )
        # Two sets of rows become one: the sum of squares about the mean, by Chan's formula.
        mean, total = block.mean(0), self.count + len(block)
        self.squares += ((block - mean) ** 2).sum(0)
        self.squares += (mean - self.mean) ** 2 * self.count * len(block) / total
        self.mean += (mean - self.mean) * len(block) / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        """(w,)."""
        return np.sqrt(self.squares / max(self.count, 1))


class Seen:
    """All that a pass over the data finds out."""

    def __init__(self, source: Source) -> None:
        """Raises: InputError where the data cannot be read, or hold no row without NaN."""
        self.what = source.what
        self.state, self.action, self.reward = Columns(), Columns(), Columns()
        self.whole, self.values = True, np.empty(0)
        for rows in source.rows:
            if not len(rows.state):
                continue
            self.state.add(f"{source.what}: {source.names['state']}", rows.state)
            self.action.add(f"{source.what}: {source.names['action']}", rows.action)
            self.reward.add(f"{source.what}: {source.names['reward']}", rows.reward)
            action = rows.action[np.isfinite(rows.action).all(1)]
            self.whole &= bool((action == np.floor(action)).all())
            if self.whole and len(self.values) <= MOST_ACTIONS:
                self.values = np.union1d(self.values, action)
        if not self.state.count or not self.action.count or not self.reward.count:
            raise InputError(f"{source.what} holds no row that is all numbers")

    def notes(self) -> list[str]:
        """What is odd about the states and the rewards, and what to do."""
        found = []
        std = self.state.std
        constant = np.flatnonzero(self.state.low == self.state.high)
        if len(constant):
            places = ", ".join(map(str, constant[:5])) + (" …" if len(constant) > 5 else "")
            found.append(f"constant, so of no use: state {places} (numbered from 0)")
        varying = std[std > 0]
        lowest, highest = (varying.min(), varying.max()) if len(varying) else (1.0, 1.0)
        if highest > WIDE_STD or highest > WIDE_RATIO * lowest:
            found.append(
                f"the states' standard deviations go from {lowest:.3g} to {highest:.3g}: learn "
                "with --normalize_states"
            )
        if self.reward.low[0] == self.reward.high[0]:
            found.append(f"every reward is {self.reward.low[0]:g}: nothing tells good from bad")
        return found


def infer(source: Source, given: Given) -> tuple[Task, dict[str, Any], list[str]]:
    """The task, what the batch's record says of it, and notes.

    One column of whole numbers, 0, 1, … without a gap, is taken for discrete actions, all else for
    continuous ones, with bounds at their extremes; the flags override both.

    Raises: InputError where the flags contradict each other or the data, and where whole numbers
    could be either.
    """
    bounded = given.action_low is not None or given.action_high is not None
    if given.num_actions is not None and bounded:
        raise InputError(
            "--num_actions is for discrete actions, --action_low and --action_high for continuous "
            "ones: give the one or the others"
        )
    seen = Seen(source)
    width = seen.action.width
    assert width is not None and seen.state.width is not None
    if given.num_actions is not None or (not bounded and _discrete(seen)):
        if width != 1:
            raise InputError(
                f"{seen.what} has {width} numbers an action, and --num_actions is for one"
            )
        inferred = [] if given.num_actions else ["num_actions"]
        number = given.num_actions or int(seen.action.high[0]) + 1
        if number > MOST_ACTIONS:
            raise InputError(f"--num_actions {number:,} is more than the {MOST_ACTIONS:,} served")
        if number < 2:
            raise InputError(
                f"{seen.what}: every action is {seen.action.high[0]:g}, which leaves no choice: "
                "say --num_actions"
            )
        low, high, rescaled = np.zeros(1), np.full(1, number - 1.0), False
    else:
        number, inferred = None, []
        low = _bound("action_low", given.action_low, seen.action.low, inferred)
        high = _bound("action_high", given.action_high, seen.action.high, inferred)
        if (low >= high).any():
            place = int(np.flatnonzero(low >= high)[0])
            raise InputError(
                f"{seen.what}: action {place} (from 0) is bounded by {low[place]:g} and "
                f"{high[place]:g}, which leaves no choice: give --action_low and --action_high"
            )
        rescaled = needs_rescaling(spaces.Box(low, high, dtype=np.float64))
    states = spaces.Box(-np.inf, np.inf, (seen.state.width,))
    task = Task(THE_DATA, seen.state.width, states, number, low, high, rescaled)
    described = {
        "kind": "continuous" if number is None else "discrete",
        "state_dim": task.state_dim,
        "num_actions": number,
        "action_low": low.tolist() if number is None else None,
        "action_high": high.tolist() if number is None else None,
        "rescaled": rescaled,
        "inferred": inferred,
    }
    return task, described, [_told(task, inferred), *seen.notes()]


def _discrete(seen: Seen) -> bool:
    """Whether actions are 0, 1, … Raises: InputError where they could as well be amounts."""
    if seen.action.width != 1 or not seen.whole or seen.action.low[0] < 0:
        return False
    highest = seen.action.high[0]
    if len(seen.values) <= MOST_ACTIONS and len(seen.values) == highest + 1:
        return True
    raise InputError(
        f"{seen.what}: actions are whole numbers from {seen.action.low[0]:g} to {highest:g}, but "
        "not each of them: say --num_actions if they are choices, --action_low and --action_high "
        "if they are amounts"
    )


def _bound(
    flag: str, given: list[float] | None, extreme: np.ndarray, inferred: list[str]
) -> np.ndarray:
    if given is None:
        inferred.append(flag)
        return extreme.copy()
    if len(given) not in (1, len(extreme)):
        raise InputError(
            f"--{flag} has {len(given)} numbers and an action {len(extreme)}: one for all, or one "
            "for each"
        )
    return np.array(given * len(extreme) if len(given) == 1 else given, np.float64)


def _told(task: Task, inferred: list[str]) -> str:
    """What is taken for granted from here on, and which of it is a guess."""
    states = f"{task.state_dim} number{'s' if task.state_dim > 1 else ''} a state"
    if task.num_actions is not None:
        guess = ", as many as were logged" if inferred else ""
        return f"no --env: {states}, {task.num_actions} discrete actions{guess}"
    guess = (
        f"; {' and '.join(inferred)} from the extremes of the data: the true bounds may be wider"
        if inferred
        else ""
    )
    return f"no --env: {states}, {task.action_dim} continuous per action{guess}"
