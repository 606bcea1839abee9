"""What the figures of Theorems 2 and 4 show: the error over learning, and what coverage brings."""

from typing import Any

import numpy as np

from BCQL import (
    BCQL,
    Q_learning,
    constant,
    epsilon_MDP,
    epsilon_pi,
    learn,
    with_reward,
)
from checks import (
    ACTIONS,
    HORIZON,
    STATES,
    UPDATES,
    alive,
    mixed_behaviour,
    own_policy,
    record_points,
    sampled,
)
from utils import (
    MDP,
    MDP_B,
    PARTS,
    Batch,
    Q_of,
    Q_star,
    allowed_actions,
    collect,
    counts,
    greedy,
    pairs_in,
    random_mdp,
    value,
)


def error_over_learning(
    seed: int, mdp: MDP, batch: Batch, Q_0: np.ndarray
) -> tuple[list[int], list[str], np.ndarray, dict[str, list[float]]]:
    """ε_MDP of the greedy policy while Q-learning and BCQL learn from the same transitions.

    Returns the updates, the lines' names, the lines, and the means over the MDPs of ε^π_MDP. The
    lines are every ε_MDP(s,a) of one MDP, where Q-learning's final ε^π_MDP is the median; (s,a) in
    B first; then the means.
    """
    N = counts(mdp, batch)
    in_B, of_B = pairs_in(N), MDP_B(mdp, N, Q_0)
    records = [0, *record_points(10, UPDATES // 4, 40)]
    policies, means, lines, values = {}, {}, [], []
    chosen = slice(0)
    for best in (Q_learning, BCQL):
        allowed = allowed_actions(in_B) if best is BCQL else np.ones_like(in_B)
        stream = sampled(np.random.default_rng([seed, 5]), batch)
        Qs = learn(best, Q_0, stream, in_B, mdp.discount, constant, records[1:])
        policies[best.__name__] = [greedy(Q, allowed) for Q in (Q_0, *Qs)]
        errors = [epsilon_pi(mdp, of_B, policy) for policy in policies[best.__name__]]
        means[best.__name__] = [float(error.mean()) for error in errors]
        if best is Q_learning:
            median = int(np.argsort(errors[-1])[len(errors[-1]) // 2])
            chosen = slice(median, median + 1)

    one, one_B = (
        x._replace(transition=x.transition[chosen], reward=x.reward[chosen]) for x in (mdp, of_B)
    )
    held = in_B[chosen]
    order = [*np.flatnonzero(held), *np.flatnonzero(~held & alive(mdp))]
    for name, learned in policies.items():
        error = [epsilon_MDP(one, one_B, policy[chosen]).ravel()[order] for policy in learned]
        values.append(np.stack(error, 1))
        for pair in order:
            place = "in B" if held.flat[pair] else "not in B"
            lines.append(f"{name}, s{pair // ACTIONS} a{pair % ACTIONS}, {place}")
    lines += [f"{name}, mean ε^π_MDP" for name in means]
    return records, lines, np.vstack([*values, *means.values()]), means


def coverage(rng: np.random.Generator, number: int) -> tuple[list[Any], list[str], np.ndarray]:
    """What policies earn from s_0, learned to the limit from ever more trajectories of a behaviour.

    Living pays: rewards are in [0, 1], and terminal states end them. 0 is the uniform policy, 1 the
    optimal one of M; means over the MDPs. Returns the numbers of trajectories ("everything" is
    every transition there is), the lines' names and their values.
    """
    added = [1, 1, 2, 4, 8, 16, 32, 64]
    names = ["share of (s,a) in B", "BCQL", "Q-learning, Q_0 = 0", "Q-learning, Q_0 like Q*",
             "Q-learning, Q_0 = max Q*", "the batch's own policy", "behaviour"]  # fmt: skip
    lines, values = [], []
    for label in ("deterministic", "stochastic"):
        mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=label == "deterministic")
        mdp = with_reward(mdp, (mdp.reward[..., :-1] + 1) / 2)
        true, behaviour = Q_star(mdp), mixed_behaviour(mdp)
        living = true[:, ~mdp.terminal]
        # Without bias and of the size that values have: what extrapolates can hardly do better.
        alike = rng.normal(living.mean(), living.std(), true.shape)
        zero, high = np.zeros(true.shape), np.full(true.shape, living.max())
        anything = np.ones(true.shape, bool)

        def earns(policy: np.ndarray, mdp: MDP = mdp) -> float:
            return value(policy, Q_of(mdp, policy))[:, mdp.start].mean()

        floor, roof = earns(anything / ACTIONS), earns(greedy(true, anything))
        N = np.zeros((*true.shape, STATES), int)
        columns = []
        for episodes in [*added, None]:
            if episodes is None:
                N = (PARTS * mdp.transition[..., :-1]).astype(int)
            else:
                N = N + counts(mdp, collect(rng, mdp, behaviour, episodes, HORIZON))
            in_B = pairs_in(N)
            learners = [
                (alike, allowed_actions(in_B)),
                (zero, anything), (alike, anything), (high, anything),
            ]  # fmt: skip
            policies = [
                greedy(Q_star(MDP_B(mdp, N, Q_0), allowed), allowed) for Q_0, allowed in learners
            ]
            earned = [earns(policy) for policy in (*policies, own_policy(N), behaviour)]
            scores = (np.array(earned) - floor) / (roof - floor)
            if episodes is None:
                scores[4] = np.nan  # every transition there is has no policy that made it
            columns.append([in_B[:, ~mdp.terminal].mean(), *scores])
        lines += [f"{label}, {name}" for name in names]
        values.append(np.array(columns).T)
    return [*np.cumsum(added).tolist(), "everything"], lines, np.vstack(values)
