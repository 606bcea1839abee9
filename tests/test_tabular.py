"""The theory: every statement's two directions on random MDPs, and the counter-examples by hand.

What is learned or solved is held against plain loops over states, and against the enumeration of
all deterministic policies.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import load_variant
from hypothesis import given, settings
from hypothesis import strategies as st

tabular = load_variant("tabular_BCQ")
B, U, L = tabular.BCQL, tabular.utils, tabular.line_world

quick = settings(max_examples=40, deadline=None, derandomize=True)
few = settings(max_examples=8, deadline=None, derandomize=True)
discounts = st.floats(0, 0.99, exclude_min=True)


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def problems(
    draw: st.DrawFn, kinds: tuple[bool, ...] = (True, False), most: int = 6, discount: Any = None
) -> tuple[np.random.Generator, Any]:
    """A generator and M = 3 random MDPs; `kinds`: deterministic, stochastic."""
    states = draw(st.integers(2, most))
    rng = generator(draw(st.integers(0, 2**32)))
    mdp = U.random_mdp(
        rng, 3, states, draw(st.integers(1, 4)), deterministic=draw(st.sampled_from(kinds)),
        terminals=draw(st.integers(0, min(2, states - 1))),
        discount=draw(discounts) if discount is None else discount,
    )  # fmt: skip
    return rng, mdp


def anything(mdp: Any) -> np.ndarray:
    return np.ones(mdp.transition.shape[:3], bool)


def initial(rng: np.random.Generator, mdp: Any) -> np.ndarray:
    return rng.normal(0, 3, mdp.transition.shape[:3])


def some_batch(rng: np.random.Generator, mdp: Any, trajectories: bool) -> Any:
    """A few trajectories (coherent), or as few scattered transitions (mostly not)."""
    if trajectories:
        return U.collect(rng, mdp, U.random_policy(rng, anything(mdp)), 2, 4)
    return U.random_pairs(rng, mdp, 4)


def dense(rows: dict[tuple[int, int], tuple[int, float]], terminal: list[bool], **more: Any) -> Any:
    """One deterministic MDP of two actions by hand: (s, a) -> (s', r)."""
    states = len(terminal)
    transition = np.zeros((1, states, 2, states + 1))
    reward = np.zeros_like(transition)
    for (s, a), (s_next, r) in rows.items():
        transition[0, s, a, s_next] = 1
        reward[0, s, a, s_next] = r
    return U.MDP(transition, reward, np.array(terminal), 0, more.get("discount", 0.5))


def counted(mdp: Any, pairs: list[tuple[int, int]]) -> np.ndarray:
    """N of a batch that holds each of these pairs of a deterministic MDP once."""
    N = np.zeros((*mdp.transition.shape[:3], mdp.transition.shape[1]), int)
    for s, a in pairs:
        N[0, s, a] = mdp.transition[0, s, a, :-1]
    return N


def by_sweeps(mdp: Any, policy: np.ndarray | None, allowed: np.ndarray | None = None) -> np.ndarray:
    """Q^π or, where `policy` is None, Q* over the allowed actions, of M = 1: value iteration."""
    _, states, actions, _ = mdp.transition.shape
    Q = np.zeros((states, actions))
    for _ in range(400):
        V = [0.0] * (states + 1)
        for s in range(states):
            if policy is not None:
                V[s] = sum(policy[0, s, a] * Q[s, a] for a in range(actions))
            else:
                V[s] = max(Q[s, a] for a in range(actions) if allowed is None or allowed[0, s, a])
        for s, a in itertools.product(range(states), range(actions)):
            Q[s, a] = sum(
                mdp.transition[0, s, a, n] * (mdp.reward[0, s, a, n] + mdp.discount * V[n])
                for n in range(states + 1)
            )
    return Q


def single(mdp: Any) -> Any:
    return mdp._replace(transition=mdp.transition[:1], reward=mdp.reward[:1])


def deterministic_policies(allowed: np.ndarray) -> Iterator[np.ndarray]:
    """All of M = 1: one allowed action a state."""
    _, states, actions = allowed.shape
    choices = [np.flatnonzero(allowed[0, s]) for s in range(states)]
    for chosen in itertools.product(*choices):
        yield np.eye(actions)[list(chosen)][None]


def learned(
    best: Any, rng: np.random.Generator, mdp: Any, batch: Any, Q_0: np.ndarray, in_B: np.ndarray,
    updates: int, step_size: Any,
) -> np.ndarray:  # fmt: skip
    stream = tabular.checks.sampled(rng, batch)
    return B.learn(best, Q_0, stream, in_B, mdp.discount, step_size, [updates])[-1]


# The exact solutions


@few
@given(problems(most=4, discount=0.9))
def test_exact_values_are_those_of_plain_value_iteration(problem: Any) -> None:
    rng, mdp = problem
    mdp = single(mdp)
    policy = U.random_policy(rng, anything(mdp))
    allowed = U.allowed_actions(rng.random(policy.shape) < 0.5)
    assert np.allclose(U.Q_of(mdp, policy)[0], by_sweeps(mdp, policy), atol=1e-9)
    assert np.allclose(U.Q_star(mdp)[0], by_sweeps(mdp, None), atol=1e-9)
    assert np.allclose(U.Q_star(mdp, allowed)[0], by_sweeps(mdp, None, allowed), atol=1e-9)


def test_a_terminal_state_is_worth_nothing_and_ends_the_return() -> None:
    mdp = dense({(0, 0): (1, 1.0), (0, 1): (0, 2.0), (1, 0): (2, 4.0), (1, 1): (0, 0.0)},
                [False, False, True])  # fmt: skip
    always_0 = np.eye(2)[[[0, 0, 0]]]
    assert np.allclose(U.Q_of(mdp, always_0)[0], [[3.0, 3.5], [4.0, 1.5], [0.0, 0.0]])
    # Staying in state 0 pays 2 + 1 + 1/2 + … = 4; leaving pays 1 + 4 / 2 = 3.
    assert np.allclose(U.Q_star(mdp)[0], [[3.0, 4.0], [4.0, 2.0], [0.0, 0.0]])


@quick
@given(problems(discount=0.9))
def test_the_state_distribution_is_the_discounted_sum_and_positive_where_pi_goes(
    problem: Any,
) -> None:
    rng, mdp = problem
    some = U.allowed_actions(rng.random(mdp.transition.shape[:3]) < 0.5)
    policy = U.random_policy(rng, some)
    mu = U.state_distribution(mdp, policy)
    at, total = np.zeros(mu.shape), np.zeros(mu.shape)
    at[:, mdp.start] = 1
    for t in range(400):
        total += 0.1 * 0.9**t * at
        at = np.einsum("ms,msa,msan->mn", at, policy, mdp.transition[..., :-1])
    assert np.allclose(mu, total, atol=1e-12)
    goes = (mu > 1e-12) & ~mdp.terminal
    assert np.array_equal(U.visited(mdp, policy), goes[..., None] & (policy > 0))
    if not mdp.terminal.any():
        assert np.allclose(mu.sum(-1), 1)


def test_an_mdp_has_the_asked_number_of_terminal_states_and_rows_of_sum_1() -> None:
    for deterministic in (True, False):
        mdp = U.random_mdp(generator(0), 50, 6, 3, deterministic=deterministic, terminals=2)
        total = mdp.transition.sum(-1)
        assert np.array_equal(total, np.broadcast_to(~mdp.terminal[:, None], (50, 6, 3)))
        assert mdp.terminal.tolist() == [False] * 4 + [True] * 2
        assert (mdp.transition[..., -1] == 0).all()
        assert np.abs(mdp.reward).max() <= 1 and mdp.reward.min() < -0.9 < 0.9 < mdp.reward.max()
        assert (mdp.transition.max(-1)[:, :4] == 1).all() == deterministic
        assert np.array_equal(mdp.transition * 8, np.round(mdp.transition * 8))


# Batches and MDP_B


def test_MDP_B_has_the_frequencies_of_the_batch_and_Q_0_behind_what_is_not_in_it() -> None:
    mdp = dense({(0, 0): (1, 1.0), (0, 1): (0, 2.0), (1, 0): (2, 4.0), (1, 1): (0, 0.0)},
                [False, False, True])  # fmt: skip
    N = np.zeros((1, 3, 2, 3), int)
    N[0, 0, 0] = [1, 3, 0]
    N[0, 1, 1] = [2, 0, 0]
    Q_0 = np.arange(6.0).reshape(1, 3, 2) + 10
    of_B = U.MDP_B(mdp, N, Q_0)
    assert of_B.transition[0].tolist() == [
        [[0.25, 0.75, 0, 0], [0, 0, 0, 1]],
        [[0, 0, 0, 1], [1, 0, 0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0]],
    ]
    assert np.array_equal(of_B.reward[..., -1], Q_0)
    assert np.array_equal(of_B.reward[..., :-1], mdp.reward[..., :-1])
    assert (mdp.reward[..., -1] == 0).all()
    # What is not in B is worth what learning began with, and nothing comes after it.
    Q = U.Q_star(of_B)[0]
    assert Q[0, 1] == 11 and Q[1, 0] == 12
    assert np.isclose(Q[0, 0], 0.25 * 0.5 * 11 + 0.75 * (1 + 0.5 * 12))


def test_a_batch_is_coherent_if_every_successor_is_in_it_or_terminal() -> None:
    mdp = dense({(0, 0): (1, 0.0), (0, 1): (2, 0.0), (1, 0): (2, 0.0), (1, 1): (0, 0.0)},
                [False, False, True])  # fmt: skip
    assert U.coherent(mdp, counted(mdp, [(0, 1)])).all()  # its only successor is terminal
    assert not U.coherent(mdp, counted(mdp, [(0, 0)])).any()  # leads to 1, where nothing is
    assert U.coherent(mdp, counted(mdp, [(0, 0), (1, 0)])).all()
    assert not U.coherent(mdp, counted(mdp, [(1, 1)])).any()


@quick
@given(problems(), st.integers(1, 3), st.integers(1, 6))
def test_trajectories_are_coherent_begin_at_s_0_and_follow_policy_and_MDP(
    problem: Any, episodes: int, horizon: int
) -> None:
    rng, mdp = problem
    policy = U.random_policy(rng, U.allowed_actions(rng.random(mdp.transition.shape[:3]) < 0.5))
    batch = U.collect(rng, mdp, policy, episodes, horizon)
    N = U.counts(mdp, batch)
    assert U.coherent(mdp, N).all()
    assert np.array_equal(N.sum((1, 2, 3)), batch.size)
    for m, size in enumerate(batch.size):
        begun, steps, seen = 0, 0, set()
        for t in range(size):
            s, a, n = batch.state[t, m], batch.action[t, m], batch.next_state[t, m]
            if steps == 0:
                begun += 1
                assert s == mdp.start
            else:
                assert s == batch.next_state[t - 1, m]
            assert policy[m, s, a] > 0 and mdp.transition[m, s, a, n] > 0
            assert batch.reward[t, m] == mdp.reward[m, s, a, n]
            assert batch.not_done[t, m] == (not mdp.terminal[n])
            seen.add(int(s))
            steps += 1
            if mdp.terminal[n] or (steps >= horizon and int(n) in seen):
                steps = 0
        assert (begun, steps) == (episodes, 0)


def test_draws_follow_their_probabilities_and_never_what_has_none() -> None:
    probability = np.array([[0, 0.25, 0, 0.75, 0], [1, 0, 0, 0, 0]])
    cumulative = np.broadcast_to(probability.cumsum(-1), (20_000, 2, 5))
    drawn = U.draw(generator(0), cumulative)
    shares = np.stack([np.bincount(column, minlength=5) / 20_000 for column in drawn.T])
    assert np.allclose(shares, probability, atol=0.01)
    assert np.array_equal(shares == 0, probability == 0)


def test_sampling_is_uniform_over_the_rows_that_count_and_no_others() -> None:
    mdp = U.random_mdp(generator(0), 2, 5, 2, deterministic=True)
    batch = U.random_pairs(generator(1), mdp, 4)._replace(size=np.array([4, 2]))
    batch = batch._replace(reward=np.arange(8.0).reshape(4, 2))
    drawn = U.sample(generator(2), batch, 10_000)
    for m, rewards in enumerate(([0, 2, 4, 6], [1, 3])):
        values, times = np.unique(drawn.reward[:, m], return_counts=True)
        assert values.tolist() == rewards and np.allclose(
            times / 10_000, 1 / len(rewards), atol=0.02
        )
    row = (drawn.reward // 2).astype(int)
    for column, of in zip(drawn[:3], batch[:3], strict=True):
        assert np.array_equal(column, np.take_along_axis(of, row, 0))


def test_fresh_transitions_follow_p_M() -> None:
    mdp = U.random_mdp(generator(0), 2, 4, 2, deterministic=False, terminals=1)
    blocks = list(itertools.islice(tabular.checks.fresh(generator(1), mdp), 400))
    N = sum(U.counts(mdp, block) for block in blocks)
    of_B = U.MDP_B(mdp, N, np.zeros((2, 4, 2)))
    assert np.allclose(of_B.transition, mdp.transition, atol=0.03)
    assert np.array_equal(of_B.transition > 0, mdp.transition > 0)


# The updates


def one_transition(r: float, not_done: bool, s: int = 0, a: int = 1, n: int = 1) -> Any:
    return U.Batch(np.array([[s]]), np.array([[a]]), np.array([[n]]), np.array([[r]]),
                   np.array([[not_done]]), np.array([1]))  # fmt: skip


@pytest.mark.parametrize(
    ("best", "not_done", "in_B", "expected"),
    [
        ("Q_learning", True, [False, True, False], 0.5 * 2 + 0.5 * (1 + 0.9 * 7)),
        ("BCQL", True, [False, True, False], 0.5 * 2 + 0.5 * (1 + 0.9 * 5)),
        ("BCQL", True, [True, True, False], 0.5 * 2 + 0.5 * (1 + 0.9 * 5)),
        ("BCQL", True, [True, False, False], 0.5 * 2 + 0.5 * (1 + 0.9 * -4)),
        ("BCQL", True, [False, False, False], 0.5 * 2 + 0.5 * (1 + 0.9 * 7)),
        ("Q_learning", False, [True, True, True], 0.5 * 2 + 0.5 * 1),
        ("BCQL", False, [True, True, True], 0.5 * 2 + 0.5 * 1),
    ],
)
def test_an_update_by_hand(best: str, not_done: bool, in_B: list[bool], expected: float) -> None:
    Q_0 = np.array([[[1.0, 2.0, 3.0], [-4.0, 5.0, 7.0]]])
    held = np.array([[[False] * 3, in_B]])
    stream = [one_transition(1.0, not_done)]
    [Q] = B.learn(getattr(B, best), Q_0, stream, held, 0.9, B.constant, [1])
    assert np.isclose(Q[0, 0, 1], expected)
    assert np.array_equal(np.delete(Q.ravel(), 1), np.delete(Q_0.ravel(), 1))
    assert Q_0[0, 0, 1] == 2  # what was given stays as it was


def test_what_is_learned_from_is_in_the_batch_from_then_on() -> None:
    Q_0 = np.array([[[0.0, 9.0], [0.0, 0.0]]])
    there, back = one_transition(4.0, True, s=0, a=0), one_transition(0.0, True, s=1, a=0, n=0)
    Q = B.learn(B.BCQL, Q_0, [there, back], np.zeros((1, 2, 2), bool), 0.5, B.constant, [1, 2])
    assert Q.shape == (2, 1, 2, 2)
    assert Q[0, 0, 0, 0] == 2  # half of 4 + 0.5·0
    assert Q[1, 0, 1, 0] == 0.5  # half of 0.5·2: the untried action's 9 is not in B


def test_step_sizes_are_a_half_and_h_over_h_plus_n() -> None:
    visits = np.array([1, 10, 90])
    assert B.constant(visits, 0.9).tolist() == [0.5] * 3
    assert np.allclose(B.robbins_monro(visits, 0.9), [10 / 11, 10 / 20, 10 / 100])
    # The n-th visit of each pair has the n-th step size, however often others were visited.
    Q_0 = np.zeros((1, 2, 2))
    stream = [one_transition(r, False, a=a) for r, a in ((1.0, 1), (0.0, 1), (1.0, 0), (0.0, 0))]
    nothing = np.zeros((1, 2, 2), bool)
    [Q] = B.learn(B.Q_learning, Q_0, stream, nothing, 0.5, B.robbins_monro, [4])
    assert np.allclose(Q[0, 0], 2 / 3 * (1 - 2 / 4))


# Robbins and Monro: Σ α diverges and Σ α² does not. Sums over a doubling of n tell.
def test_robbins_monro_meets_its_two_conditions() -> None:
    alpha = B.robbins_monro(np.arange(1, 2**20 + 1), 0.9)
    half = 2**19
    assert alpha[half:].sum() > 0.9 * 10 * np.log(2)
    assert (alpha[half:] ** 2).sum() < 0.6 * (alpha[half // 2 : half] ** 2).sum()


def test_a_stream_that_ends_early_is_an_error() -> None:
    with pytest.raises(ValueError, match="ended after 1 of 5"):
        B.learn(B.BCQL, np.zeros((1, 2, 2)), [one_transition(0.0, True)],
                np.zeros((1, 2, 2), bool), 0.9, B.constant, [5])  # fmt: skip


# The tabular extrapolation error


@quick
@given(problems(), st.booleans())
def test_the_solved_extrapolation_error_is_Q_minus_Q_B(problem: Any, trajectories: bool) -> None:
    rng, mdp = problem
    N = U.counts(mdp, some_batch(rng, mdp, trajectories))
    of_B = U.MDP_B(mdp, N, initial(rng, mdp))
    policy = U.random_policy(rng, anything(mdp))
    direct = U.Q_of(mdp, policy) - U.Q_of(of_B, policy)
    assert np.abs(B.epsilon_MDP(mdp, of_B, policy) - direct).max() < 1e-10
    # The Bellman-like equation itself, term by term.
    error = B.epsilon_MDP(mdp, of_B, policy)
    V_B = np.pad(U.value(policy, U.Q_of(of_B, policy)), ((0, 0), (0, 1)))
    following = np.pad(U.value(policy, error), ((0, 0), (0, 1)))
    m, s, a = 1, 0, 0
    p_M, p_B = mdp.transition[m, s, a], of_B.transition[m, s, a]
    terms = (p_M - p_B) * (of_B.reward[m, s, a] + mdp.discount * V_B[m])
    assert np.isclose(error[m, s, a], (terms + mdp.discount * p_M * following[m]).sum())
    mu = U.state_distribution(mdp, policy)
    assert np.allclose(B.epsilon_pi(mdp, of_B, policy),
                       (mu[..., None] * policy * np.abs(error)).sum((1, 2)))  # fmt: skip


def lemma_1_parts(problem: Any) -> tuple[Any, ...]:
    """A policy that leaves pairs out, N in proportion to p_M where it goes, few draws elsewhere."""
    rng, mdp = problem
    policy = U.random_policy(rng, U.allowed_actions(rng.random(mdp.transition.shape[:3]) < 0.5))
    goes = U.visited(mdp, policy)
    N = (8 * mdp.transition[..., :-1]).astype(int)
    N = np.where(goes[..., None], N, U.counts(mdp, U.random_pairs(rng, mdp, 3)))
    return rng, mdp, policy, goes, N, initial(rng, mdp)


@quick
@given(problems())
def test_lemma_1_equal_where_pi_goes_means_no_error_for_any_reward(problem: Any) -> None:
    rng, mdp, policy, _, N, Q_0 = lemma_1_parts(problem)
    of_B = U.MDP_B(mdp, N, Q_0)
    for _ in range(3):
        reward = rng.normal(0, 5, N.shape)
        same = B.with_reward(mdp, reward), B.with_reward(of_B, reward), policy
        assert B.largest_where_pi_goes(*same).max() < 1e-10
        assert B.epsilon_pi(*same).max() < 1e-10
    reward, found = B.revealing_reward(mdp, of_B, policy)
    assert not found.any() and not reward.any()


@quick
@given(problems(), st.sampled_from(["gone", "other"]))
def test_lemma_1_unequal_at_one_pair_where_pi_goes_means_error_for_some_reward(
    problem: Any, how: str
) -> None:
    rng, mdp, policy, goes, N, Q_0 = lemma_1_parts(problem)
    every = np.arange(len(N))
    pick = np.where(goes, rng.random(goes.shape), 0).reshape(len(N), -1).argmax(1)
    s, a = np.unravel_index(pick, goes.shape[1:])
    # Either no transition of the pair, or one more than in proportion to its first successor.
    N[every, s, a] = 0 if how == "gone" else N[every, s, a] + np.eye(N.shape[-1], dtype=int)[0]
    of_B = U.MDP_B(mdp, N, Q_0)
    reward, found = B.revealing_reward(mdp, of_B, policy)
    changed = (of_B.transition[every, s, a] != mdp.transition[every, s, a]).any(-1)
    assert np.array_equal(found, changed)
    assert how == "other" or found.all()
    same = B.with_reward(mdp, reward), B.with_reward(of_B, reward), policy
    at_least = 1 / (1 + mdp.discount) - 1e-9
    assert (B.largest_where_pi_goes(*same)[found] > at_least).all()
    assert np.abs(B.difference(*same)[every, s, a][found]).min(initial=1) > 1 - 1e-9


@quick
@given(problems((False,), discount=0.9))
def test_lemma_1_few_samples_of_a_stochastic_mdp_leave_an_error(problem: Any) -> None:
    rng, mdp = problem
    policy = U.random_policy(rng, anything(mdp))
    N = rng.multinomial(3, mdp.transition[..., :-1]) * ~mdp.terminal[None, :, None, None]
    of_B = U.MDP_B(mdp, N, initial(rng, mdp))
    unequal = (mdp.transition != of_B.transition).any((1, 2, 3))
    assert (B.epsilon_pi(mdp, of_B, policy)[unequal] > 1e-9).all()


# Theorem 1


@few
@given(problems((True,), most=5, discount=0.7), st.booleans())
def test_theorem_1_a_constant_step_reaches_the_optimum_of_MDP_B_where_p_M_is_deterministic(
    problem: Any, trajectories: bool
) -> None:
    rng, mdp = problem
    batch, Q_0 = some_batch(rng, mdp, trajectories), initial(rng, mdp)
    target = U.Q_star(U.MDP_B(mdp, U.counts(mdp, batch), Q_0))
    Q = learned(B.Q_learning, rng, mdp, batch, Q_0, anything(mdp), 2500, B.constant)
    living = ~mdp.terminal
    assert np.allclose(Q[:, living], target[:, living], atol=1e-6)


def test_theorem_1_robbins_monro_steps_reach_the_optimum_of_a_stochastic_MDP_B() -> None:
    rng = generator(0)
    mdp = U.random_mdp(rng, 30, 4, 2, deterministic=False, terminals=1, discount=0.7)
    batch, Q_0 = U.random_pairs(rng, mdp, 15), initial(rng, mdp)
    target = U.Q_star(U.MDP_B(mdp, U.counts(mdp, batch), Q_0))
    stream = tabular.checks.sampled(rng, batch)
    Q = B.learn(B.Q_learning, Q_0, stream, anything(mdp), 0.7, B.robbins_monro, [500, 12_000])
    early, late = (np.abs(x - target)[:, :3].max((1, 2)) for x in Q)
    assert late.max() < 0.15 and late.mean() < early.mean() / 3
    # Not the optimum of M: the batch has too few samples for that.
    assert np.abs(target - U.Q_star(mdp))[:, :3].max((1, 2)).min() > 0.2


# Theorem 2


@quick
@given(problems((True,)), st.booleans())
def test_theorem_2_no_error_for_any_reward_if_pi_is_batch_constrained(
    problem: Any, trajectories: bool
) -> None:
    rng, mdp = problem
    N = U.counts(mdp, some_batch(rng, mdp, trajectories))
    in_B, of_B = U.pairs_in(N), U.MDP_B(mdp, N, initial(rng, mdp))
    policy = U.random_policy(rng, U.allowed_actions(U.closed_part(mdp, in_B)))
    within = U.batch_constrained(mdp, policy, in_B)
    for _ in range(3):
        reward = rng.normal(0, 5, N.shape)
        same = B.with_reward(mdp, reward), B.with_reward(of_B, reward), policy
        assert B.epsilon_pi(*same)[within].max(initial=0) < 1e-10
    assert within.all() or not trajectories


@quick
@given(problems((True,)))
def test_theorem_2_an_error_for_some_reward_if_one_action_of_pi_is_not_in_the_batch(
    problem: Any,
) -> None:
    rng, mdp = problem
    N = U.counts(mdp, some_batch(rng, mdp, True))
    in_B = U.pairs_in(N)
    policy = U.random_policy(rng, U.allowed_actions(in_B))
    # One action outside B, rarely taken, in one state that π visits.
    beyond = U.visited(mdp, policy).any(-1, keepdims=True) & ~in_B
    pick = np.where(beyond, rng.random(beyond.shape), 0)
    one = (pick == pick.max((1, 2), keepdims=True)) & beyond
    mixed = np.where(one.any(-1, keepdims=True), 0.99 * policy + 0.01 * one, policy)
    outside = one.any((1, 2))
    assert np.array_equal(U.batch_constrained(mdp, mixed, in_B), ~outside)
    of_B = U.MDP_B(mdp, N, initial(rng, mdp))
    reward, found = B.revealing_reward(mdp, of_B, mixed)
    assert np.array_equal(found, outside)
    same = B.with_reward(mdp, reward), B.with_reward(of_B, reward), mixed
    assert (B.largest_where_pi_goes(*same)[found] > 0.5).all()


@quick
@given(problems((True, False)), st.booleans())
def test_theorem_2_a_coherent_batch_with_s_0_has_a_batch_constrained_policy(
    problem: Any, trajectories: bool
) -> None:
    rng, mdp = problem
    N = U.counts(mdp, some_batch(rng, mdp, trajectories))
    in_B = U.pairs_in(N)
    policy = U.random_policy(rng, U.allowed_actions(in_B))
    promised = U.coherent(mdp, N) & in_B[:, mdp.start].any(-1)
    if (mdp.transition.max(-1)[:, ~mdp.terminal] == 1).all():
        assert U.batch_constrained(mdp, policy, in_B)[promised].all()
    assert promised.all() or not trajectories


@quick
@given(problems(most=3))
def test_a_batch_constrained_policy_exists_exactly_where_the_closed_part_holds_s_0(
    problem: Any,
) -> None:
    rng, mdp = problem
    mdp = single(mdp)
    in_B = U.pairs_in(U.counts(mdp, U.random_pairs(rng, mdp, 4)))
    policies = deterministic_policies(anything(mdp))
    exists = any(U.batch_constrained(mdp, policy, in_B)[0] for policy in policies)
    assert U.closed_part(mdp, in_B)[0, mdp.start].any() == exists


def chain() -> Any:
    """0 -> 1 or the end; 1 -> the end, at a high cost by either action."""
    rows = {(0, 0): (1, 0.0), (0, 1): (2, 1.0), (1, 0): (2, -10.0), (1, 1): (2, -9.0)}
    return dense(rows, [False, False, True])


def test_theorem_2_without_coherence_or_without_s_0_there_may_be_no_such_policy() -> None:
    mdp = chain()
    for pairs in ([(0, 0)], [(1, 0), (1, 1)]):
        in_B = U.pairs_in(counted(mdp, pairs))
        for policy in deterministic_policies(anything(mdp)):
            assert not U.batch_constrained(mdp, policy, in_B).any()
    assert U.coherent(mdp, counted(mdp, [(1, 0), (1, 1)])).all()  # but s_0 is not in it


# Theorem 3


@few
@given(problems((True,), most=4, discount=0.7))
def test_theorem_3_bcql_reaches_the_optimum_of_M_where_everything_is_visited(
    problem: Any,
) -> None:
    rng, mdp = problem
    Q_0, nothing = initial(rng, mdp), np.zeros(mdp.transition.shape[:3], bool)
    stream = tabular.checks.fresh(rng, mdp)
    [Q] = B.learn(B.BCQL, Q_0, stream, nothing, mdp.discount, B.constant, [3000])
    living = ~mdp.terminal
    assert np.allclose(Q[:, living], U.Q_star(mdp)[:, living], atol=1e-6)


def test_theorem_3_robbins_monro_steps_reach_the_optimum_of_a_stochastic_M() -> None:
    rng = generator(3)
    mdp = U.random_mdp(rng, 30, 4, 2, deterministic=False, terminals=1, discount=0.7)
    Q_0, nothing = initial(rng, mdp), np.zeros((30, 4, 2), bool)
    stream = tabular.checks.fresh(rng, mdp)
    Q = B.learn(B.BCQL, Q_0, stream, nothing, 0.7, B.robbins_monro, [500, 12_000])
    early, late = (np.abs(x - U.Q_star(mdp))[:, :3].max((1, 2)) for x in Q)
    assert late.max() < 0.15 and late.mean() < early.mean() / 3


@quick
@given(problems(most=4))
def test_theorem_3_where_the_only_best_action_is_never_visited_the_optimum_is_missed(
    problem: Any,
) -> None:
    _, mdp = problem
    true = U.Q_star(mdp)
    best = U.greedy(true, anything(mdp)).astype(bool)
    visits = anything(mdp)
    visits[:, mdp.start] = ~best[:, mdp.start]
    if true.shape[-1] > 1:
        limit = U.Q_star(mdp, visits)
        reached = np.where(visits, limit, -np.inf)[:, mdp.start].max(-1)
        assert (reached < true[:, mdp.start].max(-1)).all()


# Theorem 4


@quick
@given(problems((True,), most=4))
def test_theorem_4_the_limit_of_bcql_is_at_least_every_batch_constrained_policy(
    problem: Any,
) -> None:
    rng, mdp = problem
    mdp = single(mdp)
    N = U.counts(mdp, some_batch(rng, mdp, True))
    in_B, allowed = U.pairs_in(N), U.allowed_actions(U.pairs_in(N))
    limit = U.Q_star(U.MDP_B(mdp, N, initial(rng, mdp)), allowed)
    best = U.greedy(limit, allowed)
    earned = U.Q_of(mdp, best)
    assert U.batch_constrained(mdp, best, in_B).all()
    assert np.allclose(earned[in_B], limit[in_B], atol=1e-9)
    own = tabular.checks.own_policy(N)
    for policy in (*deterministic_policies(allowed), own, U.random_policy(rng, allowed)):
        assert (U.Q_of(mdp, policy) - earned)[in_B].max() < 1e-9


@few
@given(problems((True,), most=5, discount=0.7))
def test_theorem_4_bcql_reaches_that_limit_whatever_it_began_with(problem: Any) -> None:
    rng, mdp = problem
    batch = some_batch(rng, mdp, True)
    N = U.counts(mdp, batch)
    in_B = U.pairs_in(N)
    Q_0 = initial(rng, mdp)
    limit = U.Q_star(U.MDP_B(mdp, N, 0 * Q_0), U.allowed_actions(in_B))
    Q = learned(B.BCQL, rng, mdp, batch, Q_0, in_B, 2500, B.constant)
    assert np.allclose(Q[in_B], limit[in_B], atol=1e-6)
    assert np.array_equal(Q[~in_B], Q_0[~in_B])


def bcql_policy(mdp: Any, N: np.ndarray, Q_0: np.ndarray) -> np.ndarray:
    allowed = U.allowed_actions(U.pairs_in(N))
    return U.greedy(U.Q_star(U.MDP_B(mdp, N, Q_0), allowed), allowed)


def start_value(mdp: Any, policy: np.ndarray) -> float:
    return float(U.value(policy, U.Q_of(mdp, policy))[0, mdp.start])


def test_theorem_4_without_coherence_bcql_can_be_worse_than_the_behaviour() -> None:
    mdp = chain()
    N, high = counted(mdp, [(0, 0), (0, 1)]), np.full((1, 3, 2), 5.0)
    behaviour = np.eye(2)[[[1, 0, 0]]]  # ends at once: in Π_B, and worth 1
    assert U.batch_constrained(mdp, behaviour, U.pairs_in(N)).all()
    assert start_value(mdp, behaviour) == 1
    assert start_value(mdp, bcql_policy(mdp, N, high)) == -5
    whole = counted(mdp, [(0, 0), (0, 1), (1, 0)])
    assert U.coherent(mdp, whole).all()
    assert start_value(mdp, bcql_policy(mdp, whole, high)) == 1


def test_theorem_4_in_a_stochastic_mdp_a_lucky_sample_can_mislead_bcql() -> None:
    mdp = dense({(0, 1): (1, 1.0)}, [False, True])
    mdp.transition[0, 0, 0, 1] = 1
    mdp = mdp._replace(  # a third state, also terminal: action 0 pays 2 there or -10 in state 1
        transition=np.array([[[[0, 0.75, 0.25, 0], [0, 1, 0, 0]], [[0] * 4] * 2, [[0] * 4] * 2]]),
        reward=np.array([[[[0, -10.0, 2, 0], [0, 1, 0, 0]], [[0] * 4] * 2, [[0] * 4] * 2]]),
        terminal=np.array([False, True, True]),
    )
    N = np.zeros((1, 3, 2, 3), int)
    N[0, 0, 0, 2] = N[0, 0, 1, 1] = 1
    assert U.coherent(mdp, N).all()
    assert start_value(mdp, bcql_policy(mdp, N, np.zeros((1, 3, 2)))) == -7
    assert start_value(mdp, tabular.checks.own_policy(N)) == -3


def test_theorem_4_a_behaviour_with_actions_outside_the_batch_can_be_better() -> None:
    mdp = chain()
    behaviour = np.array([[[0.1, 0.9], [0.5, 0.5], [1, 0]]])
    N = counted(mdp, [(0, 0), (1, 1)])  # one trajectory, and not the likely one
    assert U.coherent(mdp, N).all()
    assert start_value(mdp, bcql_policy(mdp, N, np.zeros((1, 3, 2)))) == -4.5
    assert start_value(mdp, behaviour) > 0.4
    assert not U.batch_constrained(mdp, behaviour, U.pairs_in(N)).any()


def test_q_learning_on_a_coherent_batch_can_be_worse_than_the_behaviour() -> None:
    mdp = chain()
    N, high = counted(mdp, [(0, 1)]), np.full((1, 3, 2), 5.0)
    assert U.coherent(mdp, N).all()
    free = U.greedy(U.Q_star(U.MDP_B(mdp, N, high)), anything(mdp))
    assert start_value(mdp, free) == -5
    assert start_value(mdp, tabular.checks.own_policy(N)) == 1


def test_the_batchs_own_policy_has_its_frequencies_and_is_uniform_outside() -> None:
    N = np.zeros((1, 2, 2, 2), int)
    N[0, 0, 0] = [2, 1]
    N[0, 0, 1] = [0, 1]
    assert tabular.checks.own_policy(N)[0].tolist() == [[0.75, 0.25], [0.5, 0.5]]


def test_allowed_are_the_actions_in_the_batch_and_all_where_there_is_none() -> None:
    in_B = np.array([[[True, False], [False, False], [True, True]]])
    assert U.allowed_actions(in_B)[0].tolist() == [[True, False], [True, True], [True, True]]


# The line world


def test_the_line_world_is_seven_cells_and_pays_one_at_the_goal() -> None:
    mdp = L.world(2)
    assert (L.CELLS, L.START, L.GOAL, L.HORIZON, mdp.discount) == (7, 1, 6, 50, 0.9)
    right = np.broadcast_to([0.0, 1.0], (2, 7, 2))
    left = np.broadcast_to([1.0, 0.0], (2, 7, 2))
    assert np.allclose(U.Q_of(mdp, right)[0, :, 1], [0.9**5, 0.9**4, 0.9**3, 0.81, 0.9, 1.0, 0.0])
    assert (U.Q_of(mdp, left)[..., 0] == 0).all()
    earned, reached = L.play(mdp, right)
    assert np.allclose(earned, 0.9**4) and np.allclose(reached, 1)
    assert np.allclose(L.play(mdp, left), 0)


def test_play_is_the_exact_return_and_success_of_fifty_steps() -> None:
    mdp = L.world(1)
    policy = np.broadcast_to([0.4, 0.6], (1, 7, 2))
    earned, reached = L.play(mdp, policy)
    ends = []
    rng = generator(0)
    for _ in range(4000):
        cell = L.START
        for t in range(50):
            cell = max(cell - 1, 0) if rng.random() < 0.4 else cell + 1
            if cell == L.GOAL:
                ends.append(t)
                break
    assert abs(reached[0] - len(ends) / 4000) < 0.01
    assert abs(earned[0] - sum(0.9**t for t in ends) / 4000) < 0.01
    slow = np.broadcast_to([0.9, 0.1], (1, 7, 2))
    assert earned[0] <= U.value(policy, U.Q_of(mdp, policy))[0, 1]
    assert L.play(mdp, slow)[1][0] < 0.01


@quick
@given(st.integers(0, 2**32), st.floats(0.01, 2))
def test_the_distribution_constraint_is_met_and_no_policy_within_it_is_better(
    seed: int, radius: float
) -> None:
    rng = generator(seed)
    behaviour = U.random_policy(rng, np.ones((1, 4, 2), bool))
    Q = rng.normal(size=(1, 4, 2))
    policy = L.closest_greedy(Q, behaviour, radius)
    assert L.divergence(policy, behaviour).max() <= radius + 1e-9
    share = np.linspace(0, 1, 2001)[:, None]
    grid = np.stack([np.broadcast_to(share, (2001, 4)), np.broadcast_to(1 - share, (2001, 4))], -1)
    within = L.divergence(grid, np.broadcast_to(behaviour, grid.shape)) <= radius
    best = np.where(within, (grid * Q).sum(-1), -np.inf).max(0)
    assert ((policy * Q).sum(-1)[0] >= best - 1e-6).all()


def test_a_divergence_by_hand() -> None:
    policy, behaviour = np.array([[[1.0, 0.0], [0.5, 0.5]]]), np.array([[[0.25, 0.75], [0.9, 0.1]]])
    assert np.allclose(L.divergence(policy, behaviour), [[np.log(4), 0.5 * np.log(0.25 / 0.09)]])


def test_the_support_constraint_takes_only_actions_above_the_threshold() -> None:
    mdp = L.world(2)
    behaviour = np.broadcast_to(np.array([[0.99, 0.01], [0.9, 0.1]])[:, None], (2, 7, 2))
    assert L.support_constrained(mdp, behaviour, 0.05)[0, :, L.LEFT].tolist() == [1] * 7
    assert L.support_constrained(mdp, behaviour, 0.05)[1, :6, L.RIGHT].tolist() == [1] * 6


def test_line_world_support_reaches_the_goal_and_a_close_policy_does_not() -> None:
    statement = L.line_world(0, 1)
    assert all(check.holds for check in statement.checks)
    values = dict(zip(statement.lines, statement.values, strict=True))
    worst = statement.x.index(0.99)
    assert values["P(goal), support, β > 0.005"][worst] == 1
    assert values["P(goal), KL ≤ 0.5"][worst] < 0.02
    assert values["P(goal), behaviour"][worst] < 1e-6
