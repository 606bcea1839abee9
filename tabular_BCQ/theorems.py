"""Lemma 1 and Theorems 1 to 4, each a function of its name that checks it on random MDPs.

    lemma_1(seed, number) -> Statement        (and so on)

`number` is M, the MDPs of a check, all of one size and solved or learned at once. Where nothing
else is said they have 20 states (2 of them terminal) and 4 actions, γ = 0.9 and rewards uniform in
[−1, 1]; Q_0, with which learning begins, is drawn from N(0, 3²). One seed, the same numbers.

Source: Fujimoto, Meger, Precup, "Off-Policy Deep Reinforcement Learning without Exploration", ICML
2019, section 4.1.
"""

import numpy as np

from BCQL import (
    BCQL,
    Q_learning,
    constant,
    epsilon_MDP,
    epsilon_pi,
    largest_where_pi_goes,
    learn,
    revealing_reward,
    robbins_monro,
    with_reward,
)
from checks import (
    ACTIONS,
    EXACT,
    HORIZON,
    LEARNED,
    REWARDS,
    SMALL,
    STATES,
    UPDATES,
    Check,
    Statement,
    alive,
    distance,
    fresh,
    mixed_behaviour,
    normal,
    own_policy,
    quantiles,
    record_points,
    sampled,
)
from curves import coverage, error_over_learning
from utils import (
    MDP,
    MDP_B,
    PARTS,
    Q_of,
    Q_star,
    allowed_actions,
    batch_constrained,
    closed_part,
    coherent,
    collect,
    counts,
    greedy,
    pairs_in,
    random_mdp,
    random_pairs,
    random_policy,
    value,
    visited,
)


def lemma_1(seed: int, number: int) -> Statement:
    """ε^π_MDP = 0 for all rewards if and only if p_B(.|s,a) = p_M(.|s,a) wherever π goes."""
    rng = np.random.default_rng([seed, 0])
    mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=False)
    line = random_mdp(rng, number, STATES, ACTIONS, deterministic=True)
    # Not every action everywhere: π leaves pairs out, and there p_B may be anything.
    some = allowed_actions(rng.random((number, STATES, ACTIONS)) < 0.5)
    policy, Q_0 = random_policy(rng, some), normal(rng, mdp)

    def transitions(of: MDP, each: int) -> np.ndarray:
        """N(s,a,s') of `each` draws of every (s,a)."""
        return rng.multinomial(each, of.transition[..., :-1]) * alive(of)[..., None]

    proportions = (PARTS * mdp.transition[..., :-1]).astype(int)
    where_pi_goes = visited(mdp, policy)
    few = transitions(mdp, 3)
    equal = MDP_B(mdp, np.where(where_pi_goes[..., None], proportions, few), Q_0)
    # Two ways to miss p_M at one single pair that π visits: no transition of it, or one.
    pick = np.where(where_pi_goes, rng.random(Q_0.shape), 0).reshape(number, -1).argmax(1)
    one = np.unravel_index(pick, Q_0.shape[1:])
    missed = proportions.copy()
    missed[np.arange(number), *one] = transitions(mdp, 1)[np.arange(number), *one]
    missed[::2][np.arange(len(missed[::2])), one[0][::2], one[1][::2]] = 0
    unequal = MDP_B(mdp, missed, Q_0)

    zero = 0.0
    for _ in range(REWARDS):
        reward = rng.uniform(-1, 1, few.shape)
        same = with_reward(mdp, reward), with_reward(equal, reward), policy
        zero = max(zero, largest_where_pi_goes(*same).max())
    reward, found = revealing_reward(mdp, unequal, policy)
    revealed = largest_where_pi_goes(with_reward(mdp, reward), with_reward(unequal, reward), policy)

    sampled_B = MDP_B(mdp, few, Q_0)
    direct = Q_of(mdp, policy) - Q_of(sampled_B, policy)
    solved = np.abs(epsilon_MDP(mdp, sampled_B, policy) - direct).max()
    each = [2**k for k in range(11)]
    stochastic = [epsilon_pi(mdp, MDP_B(mdp, transitions(mdp, n), Q_0), policy) for n in each]
    once = MDP_B(line, transitions(line, 1), Q_0)
    goal = 1 / (1 + mdp.discount)
    checks = [
        Check("ε_MDP solved: largest difference from Q^π − Q_B^π", number, solved, EXACT),
        Check("p_B = p_M where π goes: largest |ε_MDP| there", number, zero, EXACT),
        Check("p_B ≠ p_M at one pair where π goes, the revealing reward: smallest |ε_MDP|",
              int(found.sum()), revealed[found].min(initial=np.inf), at_least=goal - EXACT),
        Check("deterministic, one sample of every pair: largest |ε_MDP| where π goes", number,
              largest_where_pi_goes(line, once, policy).max(), EXACT),
        Check("stochastic, four samples of every pair: smallest ε^π_MDP", number,
              stochastic[2].min(), at_least=1e-6),
    ]  # fmt: skip
    values = np.vstack(
        [quantiles(np.stack(stochastic)), np.full(len(each), epsilon_pi(line, once, policy).max())]
    )
    lines = ["stochastic, median", "stochastic, largest", "deterministic, largest"]
    return Statement(
        "lemma_1", str(lemma_1.__doc__), checks, "samples of every (s,a)", each, lines, values
    )


def theorem_1(seed: int, number: int) -> Statement:
    """Q-learning on a batch B converges to the optimal value function of MDP_B, not of M."""
    rng = np.random.default_rng([seed, 1])
    records = record_points(100, UPDATES, 24)
    checks, values = [], []
    for label, step_size in (("deterministic", constant), ("stochastic", robbins_monro)):
        if step_size is constant:
            mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=True)
            behaviour = random_policy(rng, np.ones((number, STATES, ACTIONS), bool))
            batch = collect(rng, mdp, behaviour, 8, HORIZON)
        else:
            mdp = random_mdp(rng, number, **SMALL, deterministic=False)
            batch = random_pairs(rng, mdp, 40)
        Q_0 = normal(rng, mdp)
        target, true = Q_star(MDP_B(mdp, counts(mdp, batch), Q_0)), Q_star(mdp)
        everything, stream = np.ones(Q_0.shape, bool), sampled(rng, batch)
        Q = learn(Q_learning, Q_0, stream, everything, mdp.discount, step_size, records)
        deviation = distance(Q, target, alive(mdp))
        apart = distance(target, true, alive(mdp)).min()
        checks += [
            Check(f"{label}, {UPDATES:,} updates: largest |Q − Q*_B|", number,
                  deviation[-1].max(), LEARNED[step_size]),
            Check(f"{label}: smallest |Q*_B − Q*|, the largest over (s,a) of each", number,
                  apart, at_least=1e-3),
        ]  # fmt: skip
        values += [quantiles(deviation), np.median(distance(Q, true, alive(mdp)), 1)]
    names = ["median |Q − Q*_B|", "largest |Q − Q*_B|", "median |Q − Q*|"]
    lines = [f"{label}, {name}" for label in ("deterministic", "stochastic") for name in names]
    return Statement(
        "theorem_1", str(theorem_1.__doc__), checks, "updates", records, lines, np.vstack(values)
    )


def theorem_2(seed: int, number: int) -> Statement:
    """Deterministic MDP: ε^π_MDP = 0 for all rewards if and only if π is batch-constrained.

    If B is coherent and holds s_0, a batch-constrained policy exists.
    """
    rng = np.random.default_rng([seed, 2])
    mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=True)
    anything = np.ones((number, STATES, ACTIONS), bool)
    batch = collect(rng, mdp, random_policy(rng, anything), 4, HORIZON)
    N, Q_0 = counts(mdp, batch), normal(rng, mdp)
    in_B, of_B = pairs_in(N), MDP_B(mdp, N, Q_0)

    within = random_policy(rng, allowed_actions(in_B))
    existing = batch_constrained(mdp, within, in_B) & coherent(mdp, N)
    zero = 0.0
    for _ in range(REWARDS):
        reward = rng.uniform(-1, 1, N.shape)
        same = with_reward(mdp, reward), with_reward(of_B, reward), within
        zero = max(zero, largest_where_pi_goes(*same).max())
    beyond = random_policy(rng, anything)
    outside = ~batch_constrained(mdp, beyond, in_B)
    reward, found = revealing_reward(mdp, of_B, beyond)
    revealed = largest_where_pi_goes(with_reward(mdp, reward), with_reward(of_B, reward), beyond)

    scattered = pairs_in(counts(mdp, random_pairs(rng, mdp, 30)))
    begins = scattered[:, mdp.start].any(-1)
    stuck = begins & ~closed_part(mdp, scattered)[:, mdp.start].any(-1)
    checks = [
        Check("π in Π_B: largest |ε_MDP| where π goes", number, zero, EXACT),
        Check("π not in Π_B, the revealing reward: smallest |ε_MDP|", int(outside.sum()),
              revealed[outside].min(initial=np.inf), at_least=1 / (1 + mdp.discount) - EXACT),
        Check("a reward reveals π though π is in Π_B, or does not though it is not: MDPs", number,
              int((found != outside).sum()), 0),
        Check("B coherent, s_0 in B: MDPs without a π in Π_B", number, int((~existing).sum()), 0),
        Check("s_0 in B, B not coherent: MDPs without a π in Π_B", int(begins.sum()),
              int(stuck.sum())),
    ]  # fmt: skip

    records, lines, values, means = error_over_learning(seed, mdp, batch, Q_0)
    checks += [
        Check("BCQL at every stage of learning: largest mean ε^π_MDP", number,
              max(means["BCQL"]), EXACT),
        Check("Q-learning at the end: mean ε^π_MDP", number,
              means["Q_learning"][-1], at_least=1e-2),
    ]  # fmt: skip
    return Statement("theorem_2", str(theorem_2.__doc__), checks, "updates", records, lines, values)


def theorem_3(seed: int, number: int) -> Statement:
    """With every (s,a) visited for ever, BCQL converges to the optimal value function Q* of M."""
    rng = np.random.default_rng([seed, 3])
    records = record_points(100, UPDATES, 24)
    checks, values = [], []
    for label, step_size in (("deterministic", constant), ("stochastic", robbins_monro)):
        if step_size is constant:
            mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=True)
        else:
            mdp = random_mdp(rng, number, **SMALL, deterministic=False)
        Q_0, true = normal(rng, mdp), Q_star(mdp)
        nothing = np.zeros(Q_0.shape, bool)
        stream = fresh(rng, mdp)
        Q = learn(BCQL, Q_0, stream, nothing, mdp.discount, step_size, records)
        deviation = distance(Q, true, alive(mdp))
        visits = ~greedy(true, ~nothing).astype(bool)
        visits[:, np.arange(Q_0.shape[1]) != mdp.start] = True
        limit = np.where(visits, Q_star(mdp, visits), -np.inf)
        kept = limit[:, mdp.start].max(-1) == true[:, mdp.start].max(-1)
        checks += [
            Check(f"{label}, {UPDATES:,} updates: largest |Q − Q*|", number,
                  deviation[-1].max(), LEARNED[step_size]),
            Check(f"{label}, the best action of s_0 never visited: MDPs where BCQL's limit is Q*",
                  number, int(kept.sum()), 0),
        ]  # fmt: skip
        values.append(quantiles(deviation))
    names = ["median |Q − Q*|", "largest |Q − Q*|"]
    lines = [f"{label}, {name}" for label in ("deterministic", "stochastic") for name in names]
    return Statement(
        "theorem_3", str(theorem_3.__doc__), checks, "updates", records, lines, np.vstack(values)
    )


def theorem_4(seed: int, number: int) -> Statement:
    """Deterministic MDP, coherent B: BCQL converges to the optimal batch-constrained policy π*.

    Q^π*(s,a) ≥ Q^π(s,a) for all π in Π_B and (s,a) in B, the batch's own policy among them.
    """
    rng = np.random.default_rng([seed, 4])
    mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=True)
    anything = np.ones((number, STATES, ACTIONS), bool)
    behaviour = mixed_behaviour(mdp)
    batch = collect(rng, mdp, behaviour, 8, HORIZON)
    N, Q_0 = counts(mdp, batch), normal(rng, mdp)
    in_B = pairs_in(N)
    allowed = allowed_actions(in_B)
    of_B = MDP_B(mdp, N, Q_0)

    limit = Q_star(of_B, allowed)
    best = greedy(limit, allowed)
    stream = sampled(rng, batch)
    Q = learn(BCQL, Q_0, stream, in_B, mdp.discount, constant, [UPDATES])[-1]
    earned = Q_of(mdp, best)

    def lost(policy: np.ndarray, where: np.ndarray) -> np.ndarray:
        """The most that π* earns less than `policy` at a pair of `where`, (M,)."""
        return np.where(where, Q_of(mdp, policy) - earned, -np.inf).max((1, 2))

    others = [lost(random_policy(rng, allowed), in_B).max() for _ in range(20)]
    free = Q_star(of_B)
    below = value(greedy(free, anything), Q_of(mdp, greedy(free, anything)))
    own = value(own_policy(N), Q_of(mdp, own_policy(N)))
    worse = ((below < own - EXACT) & in_B.any(-1)).any(-1)
    held = allowed_actions(pairs_in(counts(mdp, collect(rng, mdp, behaviour, 1, HORIZON))))
    one = greedy(Q_star(mdp, held), held)
    by_behaviour = value(behaviour, Q_of(mdp, behaviour))[:, mdp.start]
    beaten = by_behaviour > value(one, Q_of(mdp, one))[:, mdp.start] + EXACT
    checks = [
        Check(f"BCQL, {UPDATES:,} updates: largest |Q − Q_B^π*| on B", number,
              distance(Q, limit, in_B).max(), LEARNED[constant]),
        Check("largest |Q^π* − Q_B^π*| on B", number, distance(earned, limit, in_B).max(), EXACT),
        Check("20 random π in Π_B: most that π* is below one, on B", number, max(others), EXACT),
        Check("the batch's own policy: most that π* is below it, on B", number,
              lost(own_policy(N), in_B).max(), EXACT),
        Check("MDPs where Q-learning's policy is worse than the batch's own in a state of B",
              number, int(worse.sum())),
        Check("one trajectory: MDPs where the behaviour, with actions outside B, is better than π*",
              number, int(beaten.sum())),
        *without_a_condition(rng, number),
    ]  # fmt: skip
    episodes, lines, values = coverage(rng, number)
    return Statement(
        "theorem_4", str(theorem_4.__doc__), checks, "trajectories", episodes, lines, values
    )


def without_a_condition(rng: np.random.Generator, number: int) -> list[Check]:
    """Theorem 4's guarantee fails where B is not coherent, and where M is stochastic."""
    mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=True)
    N, Q_0 = counts(mdp, random_pairs(rng, mdp, 40)), normal(rng, mdp)
    allowed = allowed_actions(pairs_in(N))
    # A policy of Π_B that the guarantee would be about: the best that never leaves B.
    part = closed_part(mdp, pairs_in(N))
    rival, policy = (
        Q_star(mdp, allowed_actions(part)),
        greedy(Q_star(MDP_B(mdp, N, Q_0), allowed), allowed),
    )
    incoherent = (part & (Q_of(mdp, policy) < rival - EXACT)).any((1, 2))

    mdp = random_mdp(rng, number, STATES, ACTIONS, deterministic=False)
    N = counts(mdp, collect(rng, mdp, mixed_behaviour(mdp), 8, HORIZON))
    allowed = allowed_actions(pairs_in(N))
    policy = greedy(Q_star(MDP_B(mdp, N, Q_0), allowed), allowed)
    worse = pairs_in(N) & (Q_of(mdp, policy) < Q_of(mdp, own_policy(N)) - EXACT)
    stochastic = worse.any((1, 2))
    return [
        Check("B not coherent: MDPs where BCQL is worse than a π in Π_B", number,
              int(incoherent.sum())),
        Check("M stochastic: MDPs where BCQL is worse than the batch's own policy", number,
              int(stochastic.sum())),
    ]  # fmt: skip
