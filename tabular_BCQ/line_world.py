"""The line world: a support constraint against a distribution constraint as the behaviour worsens.

Cells in a row, the start S near the left end, the goal G at the right; a behaviour that, the worse
it is, the likelier steps left in every cell. A policy that must stay close to the behaviour's
distribution inherits its wrong preference; one that must only stay in its support walks to G.

Source: the example of Kumar et al., "Stabilizing Off-Policy Q-Learning via Bootstrapping Error
Reduction", NeurIPS 2019, section 4; the paper's own constraint is the support of the batch.
"""

import numpy as np

from checks import Check, Statement
from utils import MDP, Q_of, Q_star, greedy, value

CELLS, START, GOAL = 7, 1, 6
LEFT, RIGHT = 0, 1
HORIZON = 50
SUPPORT = 0.005  # a is in the support where β(a|s) is larger
RADII = (0.05, 0.2, 0.5)  # KL(π(.|s) ‖ β(.|s)) is at most this, nats
WRONG = [0.5, 0.6, 0.7, 0.8, *(k / 100 for k in range(90, 100))]  # β(left|s)


def world(number: int) -> MDP:
    """M = `number` equal line worlds: left of cell 0 is cell 0; entering G pays 1 and ends."""
    transition = np.zeros((number, CELLS, 2, CELLS + 1))
    cells = np.arange(GOAL)
    transition[:, cells, LEFT, np.maximum(cells - 1, 0)] = 1
    transition[:, cells, RIGHT, cells + 1] = 1
    reward = np.zeros_like(transition)
    reward[..., GOAL] = 1
    return MDP(transition, reward, np.arange(CELLS) == GOAL, START, 0.9)


def divergence(policy: np.ndarray, behaviour: np.ndarray) -> np.ndarray:
    """KL(π(.|s) ‖ β(.|s)) in nats, (M, S, A), (M, S, A) -> (M, S); β is positive."""
    ratio = np.where(policy > 0, policy / behaviour, 1)
    return (policy * np.log(ratio)).sum(-1)


def closest_greedy(Q: np.ndarray, behaviour: np.ndarray, radius: float) -> np.ndarray:
    """The π that maximises Σ_a π(a|s) Q(s,a) with KL(π ‖ β) at most `radius`: (M, S, A).

    It is β(a|s) exp(t·Q(s,a)), normalised, with the largest t the radius allows (by bisection).
    """
    best = Q.max(-1, keepdims=True)
    spread = best - Q.min(-1, keepdims=True)
    advantage = (Q - best) / np.where(spread > 0, spread, 1)

    def tilted(log_t: np.ndarray) -> np.ndarray:
        weight = behaviour * np.exp(np.exp(log_t)[..., None] * advantage)
        return weight / weight.sum(-1, keepdims=True)

    low, high = np.full(Q.shape[:2], -40.0), np.full(Q.shape[:2], 40.0)
    for _ in range(60):
        middle = (low + high) / 2
        within = divergence(tilted(middle), behaviour) <= radius
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return tilted(low)


def distribution_constrained(mdp: MDP, behaviour: np.ndarray, radius: float) -> np.ndarray:
    """The optimal π with KL(π(.|s) ‖ β(.|s)) at most `radius` in every state: policy iteration."""
    policy = behaviour
    while True:
        Q = Q_of(mdp, policy)
        better = closest_greedy(Q, behaviour, radius)
        if np.all(Q_of(mdp, better) <= Q + 1e-12):
            return policy
        policy = better


def support_constrained(mdp: MDP, behaviour: np.ndarray, threshold: float) -> np.ndarray:
    """The optimal π that takes actions with β(a|s) above `threshold` only."""
    allowed = behaviour > threshold
    return greedy(Q_star(mdp, allowed), allowed)


def play(mdp: MDP, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From S, exactly: the mean discounted return of 50 steps, and how likely G is in them."""
    at = np.zeros(policy.shape[:2])
    at[:, mdp.start] = 1
    moves = np.einsum("msa,msan->msn", policy, mdp.transition[..., :-1])
    pays = value(policy, np.einsum("msan,msan->msa", mdp.transition, mdp.reward))
    earned = np.zeros(len(policy))
    reached = np.zeros(len(policy))
    for t in range(HORIZON):
        earned += mdp.discount**t * (at * pays).sum(-1)
        at = np.einsum("ms,msn->mn", at, moves)
        reached += at[:, GOAL]  # whoever is there stays nowhere: G's rows are zero
    return earned, reached


def line_world(seed: int, number: int) -> Statement:
    """A support constraint reaches the goal whatever β prefers, a close policy does not."""
    del seed, number  # nothing here is random
    mdp = world(len(WRONG))
    wrong = np.array(WRONG)
    behaviour = np.broadcast_to(np.stack([wrong, 1 - wrong], -1)[:, None], (len(WRONG), CELLS, 2))
    policies = {"behaviour": behaviour}
    for radius in RADII:
        policies[f"KL ≤ {radius:g}"] = distribution_constrained(mdp, behaviour, radius)
    policies[f"support, β > {SUPPORT:g}"] = support_constrained(mdp, behaviour, SUPPORT)
    plays = {name: play(mdp, policy) for name, policy in policies.items()}

    shortest = mdp.discount ** (GOAL - START - 1)
    *_, support = plays.values()
    bad = wrong >= 0.9
    middle = plays[f"KL ≤ {RADII[1]:g}"][0]
    overstepped = max(
        float((divergence(policies[f"KL ≤ {radius:g}"], behaviour) - radius).max())
        for radius in RADII
    )
    checks = [
        Check("support: largest |return − γ^4|, the shortest way's", len(WRONG),
              float(np.abs(support[0] - shortest).max()), at_most=1e-12),
        Check(f"KL ≤ {RADII[1]:g}, P(left) of 0.9 and more: largest return", int(bad.sum()),
              float(middle[bad].max()), at_most=shortest / 2),
        Check("KL constraints: most that one is overstepped", len(WRONG), overstepped,
              at_most=1e-9),
        Check("KL constraints: largest gain of a return as P(left) grows", len(WRONG),
              max(float(np.diff(plays[f"KL ≤ {radius:g}"][0]).max()) for radius in RADII),
              at_most=1e-12),
    ]  # fmt: skip
    lines = [f"{what}, {name}" for what in ("return", "P(goal)") for name in plays]
    values = np.stack([play[k] for k in (0, 1) for play in plays.values()])
    return Statement("line_world", str(line_world.__doc__), checks, "P(left)", WRONG, lines, values)
