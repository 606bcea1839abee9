"""What the statements share: how a check is written down, sizes, behaviours, what to learn from."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from BCQL import constant, robbins_monro
from utils import MDP, PARTS, Batch, Q_star, as_batch, greedy, sample

STATES, ACTIONS, HORIZON = 20, 4, 20
# Averaging over random successors takes many visits: the stochastic runs are of fewer pairs.
SMALL = {"states": 5, "actions": 3, "terminals": 1}
EXACT = 1e-10  # what is solved, not learned, holds to rounding
REWARDS = 5  # draws of the rewards behind "for all reward functions"
LEARNED = {constant: 1e-6, robbins_monro: 0.5}  # tolerance of what is learned, |Q| being up to 10
UPDATES = 60_000
BLOCK = 100  # transitions drawn at once, of each MDP


class Check(NamedTuple):
    """One figure of a statement, over `number` MDPs; what it is to be `at_most` or `at_least`.

    With neither it is the number of counter-examples that chance brought: shown, not judged.
    """

    claim: str
    number: int
    figure: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the figure is as claimed; a NaN never is."""
        below = self.at_most is None or self.figure <= self.at_most
        return below and (self.at_least is None or self.figure >= self.at_least)


class Statement(NamedTuple):
    """What is claimed, how it was checked, and the lines of its figure: (len(lines), len(x))."""

    name: str
    claim: str
    checks: list[Check]
    x_label: str
    x: list[Any]
    lines: list[str]
    values: np.ndarray


def normal(rng: np.random.Generator, mdp: MDP) -> np.ndarray:
    """Q_0 (M, S, A), from N(0, 3²): as far from zero as Q* is."""
    return rng.normal(0, 3, mdp.transition.shape[:3])


def sampled(rng: np.random.Generator, batch: Batch) -> Iterator[Batch]:
    """Transitions of a batch, without end."""
    while True:
        yield sample(rng, batch, BLOCK)


def fresh(rng: np.random.Generator, mdp: MDP) -> Iterator[Batch]:
    """New transitions of the environment without end, states and actions uniform."""
    # p_M is in eighths: drawing among eight equally likely successors is exact, and fast.
    quantile = (np.arange(PARTS) + 0.5) / PARTS
    cumulative = mdp.transition.cumsum(-1)
    successors = np.stack([(cumulative < q).sum(-1) for q in quantile], -1)
    number, states, actions = successors.shape[:3]
    each, living, size = np.arange(number), states - mdp.terminal.sum(), np.full(number, BLOCK)
    while True:
        state = rng.integers(living, size=(BLOCK, number))
        action = rng.integers(actions, size=(BLOCK, number))
        which = rng.integers(PARTS, size=(BLOCK, number))
        next_state = successors[each, state, action, which]
        yield as_batch(mdp, state, action, next_state, size)


def mixed_behaviour(mdp: MDP) -> np.ndarray:
    """A behaviour of some quality: the optimal action or, half the time, a uniform one."""
    best = greedy(Q_star(mdp), np.ones(mdp.transition.shape[:3], bool))
    return 0.5 * best + 0.5 / best.shape[-1]


def record_points(first: int, updates: int, points: int) -> list[int]:
    """About `points` numbers of updates, evenly spaced in their logarithms, the last `updates`."""
    return sorted({round(x) for x in np.geomspace(min(first, updates), updates, points)})


def quantiles(deviation: np.ndarray) -> np.ndarray:
    """(records, M) -> (2, records): the median over the MDPs and the largest."""
    return np.stack([np.median(deviation, 1), deviation.max(1)])


def distance(Q: np.ndarray, target: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The largest |Q(s,a) − target(s,a)| over `where`, (…, M, S, A) -> (…, M)."""
    return np.where(where, np.abs(Q - target), 0).max((-2, -1))


def alive(mdp: MDP) -> np.ndarray:
    """The pairs whose state is not terminal, (1, S, 1): values elsewhere mean nothing."""
    return ~mdp.terminal[None, :, None]


def own_policy(N: np.ndarray) -> np.ndarray:
    """The batch's own behaviour N(s,a) / N(s), in Π_B if B is coherent; uniform outside B."""
    taken = N.sum(-1)
    taken = np.where(taken.any(-1, keepdims=True), taken, 1)
    return taken / taken.sum(-1, keepdims=True)
