"""This folder's door to `common/`, and what the theory is about: finite MDPs, batches, solutions.

Everything is vectorised over M MDPs of one size. Shape letters: M MDPs, S states, A actions, T
transitions of a batch. Every last axis of length S + 1 is over the successors s': the S states, and
then s_init, the additional terminal state of MDP_B, which MDP M itself never enters.

Source: Fujimoto, Meger, Precup, "Off-Policy Deep Reinforcement Learning without Exploration", ICML
2019 ("the paper"), section 4.1.
"""

import sys
from pathlib import Path
from typing import NamedTuple

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from common.errors import InputError, run
from common.files import (
    ROOT,
    read_array,
    read_json,
    refuse_existing,
    replacing,
    write_array,
    write_json,
)

__all__ = [
    "MDP",
    "MDP_B",
    "PARTS",
    "ROOT",
    "Batch",
    "InputError",
    "Q_of",
    "Q_star",
    "allowed_actions",
    "as_batch",
    "batch_constrained",
    "closed_part",
    "coherent",
    "collect",
    "counts",
    "draw_successor",
    "evaluate",
    "greedy",
    "pairs_in",
    "random_mdp",
    "random_pairs",
    "random_policy",
    "read_array",
    "read_json",
    "refuse_existing",
    "replacing",
    "run",
    "sample",
    "state_distribution",
    "value",
    "visited",
    "write_array",
    "write_json",
]
PARTS = 8  # a stochastic p_M is in multiples of 1/8, so that p_B can equal it exactly


class MDP(NamedTuple):
    """M finite MDPs of one size.

    transition: p(s'|s,a), (M, S, A, S + 1). The rows of a terminal state are zero: nothing follows.
    reward: r(s,a,s'), (M, S, A, S + 1).
    terminal: (S,) bool, the same states in all M.
    start: s_0, a state that is not terminal.
    discount: γ in [0, 1).
    """

    transition: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    start: int
    discount: float


class Batch(NamedTuple):
    """B: a batch for each of M MDPs, columns (T, M); of column m the first `size[m]` rows count."""

    state: np.ndarray
    action: np.ndarray
    next_state: np.ndarray
    reward: np.ndarray
    not_done: np.ndarray
    size: np.ndarray


# MDPs and policies


def random_mdp(
    rng: np.random.Generator,
    number: int,
    states: int,
    actions: int,
    *,
    deterministic: bool,
    terminals: int = 2,
    discount: float = 0.9,
) -> MDP:
    """M = `number` random MDPs; rewards uniform in [−1, 1], s_0 = 0, the last states terminal.

    Successors are uniform over the states: one of them, or eight draws with repetition.
    """
    shape = (number, states, actions)
    draws = 1 if deterministic else PARTS
    transition = np.zeros((*shape, states + 1))
    uniform = np.full(states, 1 / states)
    transition[..., :-1] = rng.multinomial(draws, uniform, shape) / draws
    terminal = np.arange(states) >= states - terminals
    transition[:, terminal] = 0
    reward = np.zeros((*shape, states + 1))
    reward[..., :-1] = rng.uniform(-1, 1, (*shape, states))
    return MDP(transition, reward, terminal, 0, discount)


def random_policy(rng: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """π(a|s), (M, S, A), uniform over all distributions on each state's `allowed` (M, S, A)."""
    weight = np.where(allowed, rng.exponential(size=allowed.shape), 0)
    return weight / weight.sum(-1, keepdims=True)


def greedy(Q: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """π(s) = argmax over the allowed a of Q(s,a), as π(a|s): (M, S, A), (M, S, A) -> (M, S, A)."""
    best = np.where(allowed, Q, -np.inf).argmax(-1)
    return np.eye(Q.shape[-1])[best]


# Exact solutions


def expected_reward(mdp: MDP) -> np.ndarray:
    """Σ_s' p(s'|s,a) r(s,a,s'), (M, S, A)."""
    return np.einsum("msan,msan->msa", mdp.transition, mdp.reward)


def evaluate(mdp: MDP, reward: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """The x with x(s,a) = reward(s,a) + γ Σ_s' p(s'|s,a) Σ_a' π(a'|s') x(s',a'), (M, S, A)."""
    transition = mdp.transition[..., :-1]  # nothing follows s_init
    by_state = np.einsum("msa,msan->msn", policy, transition)
    one = np.eye(by_state.shape[-1])
    of_state = np.linalg.solve(one - mdp.discount * by_state, value(policy, reward)[..., None])
    return reward + mdp.discount * (transition @ of_state[:, None])[..., 0]


def Q_of(mdp: MDP, policy: np.ndarray) -> np.ndarray:
    """Q^π(s,a), (M, S, A); of an MDP_B it is Q_B^π."""
    return evaluate(mdp, expected_reward(mdp), policy)


def value(policy: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """V(s) = Σ_a π(a|s) Q(s,a), (M, S)."""
    return np.einsum("msa,msa->ms", policy, Q)


def Q_star(mdp: MDP, allowed: np.ndarray | None = None) -> np.ndarray:
    """Q* (M, S, A), with every maximum over the allowed actions only (default: all of them).

    Policy iteration: each policy is evaluated exactly, and the last one improves no more.
    """
    allowed = np.ones(mdp.transition.shape[:3], bool) if allowed is None else allowed
    Q = Q_of(mdp, greedy(np.zeros(allowed.shape), allowed))
    while True:
        better = Q_of(mdp, greedy(Q, allowed))
        # Rounding may swap actions of equal value for ever: values tell the end, not policies.
        if np.all(better - Q <= 1e-12 * (1 + np.abs(Q))):
            return better
        Q = better


def visited(mdp: MDP, policy: np.ndarray) -> np.ndarray:
    """Where μ_π(s) > 0 and π(a|s) > 0, terminal states left out: (M, S, A) bool."""
    moves = np.einsum("msa,msan->msn", policy, mdp.transition[..., :-1]) > 0
    reached = np.zeros(policy.shape[:2], bool)
    reached[:, mdp.start] = True
    for _ in range(policy.shape[1]):
        reached |= (reached[:, :, None] & moves).any(1)
    return (reached & ~mdp.terminal)[..., None] & (policy > 0)


def state_distribution(mdp: MDP, policy: np.ndarray) -> np.ndarray:
    """μ_π(s) = (1 − γ) Σ_t γ^t P(s_t = s), from s_0: (M, S), of sum 1 where nothing is terminal."""
    by_state = np.einsum("msa,msan->mns", policy, mdp.transition[..., :-1])
    first = np.zeros((*policy.shape[:2], 1))
    first[:, mdp.start] = 1 - mdp.discount
    return np.linalg.solve(np.eye(policy.shape[1]) - mdp.discount * by_state, first)[..., 0]


# Batches


def draw(rng: np.random.Generator, cumulative: np.ndarray) -> np.ndarray:
    """One draw from each distribution, given by its cumulative sums (…, K): (…)."""
    # 1 − random() is in (0, 1], and a sum may round to just below 1: what has probability 0 is
    # never drawn.
    share = 1 - rng.random((*cumulative.shape[:-1], 1))
    return (cumulative < share * cumulative[..., -1:]).sum(-1)


def draw_successor(
    rng: np.random.Generator, mdp: MDP, state: np.ndarray, action: np.ndarray
) -> np.ndarray:
    """s' ~ p_M(.|s,a) for states and actions (T, M): (T, M)."""
    return draw(rng, mdp.transition[np.arange(state.shape[1]), state, action].cumsum(-1))


def as_batch(
    mdp: MDP, state: np.ndarray, action: np.ndarray, next_state: np.ndarray, size: np.ndarray
) -> Batch:
    """The batch of these transitions (T, M), with MDP M's rewards and terminal states."""
    reward = mdp.reward[np.arange(state.shape[1]), state, action, next_state]
    return Batch(state, action, next_state, reward, ~mdp.terminal[next_state], size)


def collect(
    rng: np.random.Generator, mdp: MDP, policy: np.ndarray, episodes: int, horizon: int
) -> Batch:
    """The trajectories of a behaviour, a coherent batch: `episodes` of them from s_0 in each MDP.

    A trajectory ends in a terminal state or, `horizon` steps long or longer, in a state of the
    batch: one cut anywhere would leave its last successor outside.
    """
    number, states, _ = policy.shape
    each = np.arange(number)
    cumulative = policy.cumsum(-1)
    state: np.ndarray = np.full(number, mdp.start)
    left, steps, size = np.full(number, episodes), np.zeros(number, int), np.zeros(number, int)
    seen = np.zeros((number, states), bool)
    rows = []
    while np.any(left > 0):
        action = draw(rng, cumulative[each, state])
        next_state = draw_successor(rng, mdp, state[None], action[None])[0]
        rows.append((state, action, next_state))
        size += left > 0
        seen[each, state] = True
        steps += 1
        ended = mdp.terminal[next_state] | ((steps >= horizon) & seen[each, next_state])
        left -= ended & (left > 0)
        steps[ended] = 0
        state = np.where(ended, mdp.start, next_state)
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return as_batch(mdp, columns[0], columns[1], columns[2], size)


def random_pairs(rng: np.random.Generator, mdp: MDP, size: int) -> Batch:
    """T = `size` transitions of uniform states and actions: as a rule no coherent batch."""
    number, states, actions, _ = mdp.transition.shape
    state = rng.integers(states - mdp.terminal.sum(), size=(size, number))
    action = rng.integers(actions, size=(size, number))
    next_state = draw_successor(rng, mdp, state, action)
    return as_batch(mdp, state, action, next_state, np.full(number, size))


def sample(rng: np.random.Generator, batch: Batch, size: int) -> Batch:
    """T = `size` transitions of each batch, uniform with replacement."""
    number = len(batch.size)
    row = (rng.random((size, number)) * batch.size).astype(int) * number + np.arange(number)
    columns = [column.take(row) for column in batch[:5]]
    return Batch._make([*columns, np.full(number, size)])


def counts(mdp: MDP, batch: Batch) -> np.ndarray:
    """N(s,a,s'), how often the batch holds the transition: (M, S, A, S) integers."""
    number, states, actions, _ = mdp.transition.shape
    shape = (number, states, actions, states)
    held = np.arange(len(batch.state))[:, None] < batch.size
    index = np.broadcast_to(np.arange(number), held.shape)
    places = (index[held], batch.state[held], batch.action[held], batch.next_state[held])
    flat = np.ravel_multi_index(places, shape)
    return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)


def pairs_in(N: np.ndarray) -> np.ndarray:
    """Which (s,a) are in B, of its counts N (M, S, A, S): (M, S, A) bool."""
    return N.sum(-1) > 0


def MDP_B(mdp: MDP, N: np.ndarray, Q_0: np.ndarray) -> MDP:
    """The MDP of a batch with counts N (M, S, A, S): p_B(s'|s,a) = N(s,a,s') / Σ_s̃ N(s,a,s̃).

    Where (s,a) is not in the batch p_B(s_init|s,a) = 1, and r(s,a,s_init) is Q_0(s,a) (M, S, A),
    the value that learning began with and never changed.
    """
    total = N.sum(-1)
    transition = np.zeros_like(mdp.transition)
    transition[..., :-1] = N / np.maximum(total, 1)[..., None]
    transition[..., -1] = (total == 0) & ~mdp.terminal[:, None]
    reward = mdp.reward.copy()
    reward[..., -1] = Q_0
    return mdp._replace(transition=transition, reward=reward)


def allowed_actions(in_B: np.ndarray) -> np.ndarray:
    """The a with (s,a) in B, and all of them in a state that is not in B: (M, S, A) bool.

    Differs from the paper: it leaves the maximum over no action at all open.
    """
    return in_B | ~in_B.any(-1, keepdims=True)


def coherent(mdp: MDP, N: np.ndarray) -> np.ndarray:
    """Whether s' is in B, or terminal, for all (s,a,s') in B: (M,) bool."""
    state_in_B, reached = N.sum((2, 3)) > 0, N.sum((1, 2)) > 0
    outside = (reached & ~state_in_B & ~mdp.terminal).sum(-1)
    return outside == 0


def batch_constrained(mdp: MDP, policy: np.ndarray, in_B: np.ndarray) -> np.ndarray:
    """Whether π is in Π_B: (s,a) in B wherever μ_π(s) > 0 and π(a|s) > 0. (M,) bool."""
    beyond = (visited(mdp, policy) & ~in_B).sum((1, 2))
    return beyond == 0


def closed_part(mdp: MDP, in_B: np.ndarray) -> np.ndarray:
    """The largest part of B that can go on for ever within itself, or ends: (M, S, A) bool.

    A batch-constrained policy exists exactly where s_0 has a pair in it.
    """
    follows = mdp.transition[..., :-1] > 0
    part = in_B
    while True:
        dead = ~part.any(-1) & ~mdp.terminal
        kept = part & ~(follows & dead[:, None, None]).any(-1)
        if np.array_equal(kept, part):
            return part
        part = kept
