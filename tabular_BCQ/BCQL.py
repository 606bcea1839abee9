"""Batch-constrained Q-learning (BCQL), Q-learning beside it, and the tabular extrapolation error.

Source: Fujimoto, Meger, Precup, "Off-Policy Deep Reinforcement Learning without Exploration", ICML
2019, section 4.1. Shape letters as in `utils.py`: M MDPs, S states, A actions, T transitions.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import numpy as np

from utils import MDP, Batch, Q_of, evaluate, state_distribution, value, visited

StepSize = Callable[[np.ndarray, float], np.ndarray]


def over_actions(x: np.ndarray) -> np.ndarray:
    """The maximum of the last axis, faster than numpy's own for a few actions: (M, A) -> (M,)."""
    return reduce(np.maximum, x.T)


def Q_learning(Q: np.ndarray, in_B: np.ndarray) -> np.ndarray:
    """max_a' Q(s',a'), over all actions, of Q(s',.) (M, A): (M,)."""
    del in_B
    return over_actions(Q)


def BCQL(Q: np.ndarray, in_B: np.ndarray) -> np.ndarray:
    """max of Q(s',a') over the a' with (s',a') in B, of Q(s',.) (M, A), (M, A) bool: (M,).

    Differs from the paper: where no (s',a') is in B, which it leaves open, over all actions.
    """
    best = over_actions(np.where(in_B, Q, -np.inf))
    return np.where(best == -np.inf, over_actions(Q), best)


def constant(visits: np.ndarray, discount: float) -> np.ndarray:
    """α = 1/2 at every visit: enough where dynamics are deterministic, nothing to average."""
    del discount
    return np.full(visits.shape, 0.5)


def robbins_monro(visits: np.ndarray, discount: float) -> np.ndarray:
    """α = h / (h + n) at the n-th visit of (s,a), h = 1 / (1 − γ): Σ α = ∞, Σ α² < ∞.

    α = 1 / n would do as well in the limit, but leaves an error of order n^−(1 − γ) until then.
    """
    h = 1 / (1 - discount)
    return h / (h + visits)


def learn(
    best: Callable[[np.ndarray, np.ndarray], np.ndarray],
    Q_0: np.ndarray,
    stream: Iterable[Batch],
    in_B: np.ndarray,
    discount: float,
    step_size: StepSize,
    record_at: Sequence[int],
) -> np.ndarray:
    """Q(s,a) ← (1 − α) Q(s,a) + α (r + γ best(Q, s')), for one transition of each MDP at a time.

    `best` is `Q_learning` or `BCQL`; `in_B` (M, S, A) is what is in B at first, and what the stream
    brings joins it. Returns Q after each of the increasing `record_at` updates, (records, M, S, A).
    """
    number, states, actions = Q_0.shape
    # One row a state of each MDP: `take` of rows by number is what numpy does fastest.
    Q, in_B = Q_0.reshape(-1, actions).copy(), in_B.reshape(-1, actions).copy()
    values, held = Q.reshape(-1), in_B.reshape(-1)
    visits = np.zeros(values.shape, int)
    first_row = np.arange(number) * states
    records: list[np.ndarray] = []
    done = 0
    for block in stream:
        pairs = (block.state + first_row) * actions + block.action
        columns = (pairs, block.next_state + first_row, block.reward, block.not_done)
        for pair, next_row, r, not_done in zip(*columns, strict=True):
            held[pair] = True
            visits[pair] += 1
            alpha = step_size(visits.take(pair), discount)
            after = best(Q.take(next_row, 0), in_B.take(next_row, 0))
            target = r + discount * not_done * after
            values[pair] = (1 - alpha) * values.take(pair) + alpha * target
            done += 1
            if done == record_at[len(records)]:
                records.append(Q.reshape(Q_0.shape).copy())
                if len(records) == len(record_at):
                    return np.stack(records)
    raise ValueError(f"the stream ended after {done} of {record_at[-1]} updates")


def difference(mdp: MDP, mdp_B: MDP, policy: np.ndarray) -> np.ndarray:
    """Σ_s' (p_M(s'|s,a) − p_B(s'|s,a)) (r(s,a,s') + γ Σ_a' π(a'|s') Q_B^π(s',a')), (M, S, A)."""
    V_B = np.pad(value(policy, Q_of(mdp_B, policy)), ((0, 0), (0, 1)))  # s_init is worth nothing
    after = mdp_B.reward + mdp.discount * V_B[:, None, None]
    return np.einsum("msan,msan->msa", mdp.transition - mdp_B.transition, after)


def epsilon_MDP(mdp: MDP, mdp_B: MDP, policy: np.ndarray) -> np.ndarray:
    """ε_MDP(s,a) = Q^π(s,a) − Q_B^π(s,a), solved from its Bellman-like equation: (M, S, A).

    ε(s,a) = difference(s,a) + γ Σ_s' p_M(s'|s,a) Σ_a' π(a'|s') ε(s',a').
    """
    return evaluate(mdp, difference(mdp, mdp_B, policy), policy)


def epsilon_pi(mdp: MDP, mdp_B: MDP, policy: np.ndarray) -> np.ndarray:
    """ε^π_MDP = Σ_s μ_π(s) Σ_a π(a|s) |ε_MDP(s,a)|, (M,)."""
    by_state = value(policy, np.abs(epsilon_MDP(mdp, mdp_B, policy)))
    return np.einsum("ms,ms->m", state_distribution(mdp, policy), by_state)


def largest_where_pi_goes(mdp: MDP, mdp_B: MDP, policy: np.ndarray) -> np.ndarray:
    """The largest |ε_MDP(s,a)| where μ_π(s) π(a|s) > 0, (M,): zero exactly where ε^π_MDP is."""
    error = np.abs(epsilon_MDP(mdp, mdp_B, policy))
    return np.where(visited(mdp, policy), error, 0).max((1, 2))


def with_reward(mdp: MDP, reward: np.ndarray) -> MDP:
    """The same MDPs with other rewards (M, S, A, S); r(s,a,s_init) stays."""
    return mdp._replace(reward=np.concatenate([reward, mdp.reward[..., -1:]], -1))


def revealing_reward(mdp: MDP, mdp_B: MDP, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A reward r(s,a,s') (M, S, A, S) with ε^π_MDP > 0, and where there is one (M,): Lemma 1.

    There is one exactly where p_B ≠ p_M at some (s,a) with μ_π(s) π(a|s) > 0. Let r be zero but at
    such an (s,a). Then `difference(s,a)` is Σ_s' w(s') r(s,a,s') and a constant, where

        w = p_M − p_B + κ p_B,  κ = γ Σ_s' (p_M − p_B)(s'|s,a) G(s'),

    and G(s') is how often, discounted, π in MDP_B visits (s,a) from s'. w is not zero: it would
    make p_M a multiple of p_B, and both sum to 1. So r = ±w / Σ w² makes |difference(s,a)| at
    least 1, and |ε_MDP| at least 1 / (1 + γ) at (s,a) or at one of its successors.
    """
    number, states, actions, _ = mdp.transition.shape
    differs = (mdp.transition != mdp_B.transition).any(-1) & visited(mdp, policy)
    found = differs.any((1, 2))
    first = differs.reshape(number, -1).argmax(1)
    s, a, each = first // actions, first % actions, np.arange(number)

    here = np.zeros(policy.shape)
    here[each, s, a] = 1
    G = value(policy, evaluate(mdp_B, here, policy))
    p_M, p_B = mdp.transition[each, s, a, :-1], mdp_B.transition[each, s, a, :-1]
    kappa = mdp.discount * ((p_M - p_B) * G).sum(-1, keepdims=True)
    w = p_M - p_B + kappa * p_B

    nothing = np.zeros((number, states, actions, states))
    offset = difference(with_reward(mdp, nothing), with_reward(mdp_B, nothing), policy)[each, s, a]
    sign = np.where(offset < 0, -1, 1)
    reward = nothing
    reward[each, s, a] = np.where(
        found[:, None],
        sign[:, None] * w / np.maximum((w**2).sum(-1, keepdims=True), 1e-300),
        0,
    )
    return reward, found
