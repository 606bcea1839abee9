"""Fitted Q evaluation and importance sampling against values solved exactly or by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from common.data.episodes import breaks
from common.errors import InputError
from common.judging.FQE import FQE, Critics, Policy
from common.judging.importance import (
    Clone,
    log_ratios,
    weighted_importance_sampling,
)
from common.judging.logs import Log, split, starts_of

GAMMA = 0.8


def log_of(rows: list[tuple[int, int, int, float, bool]], states: int, actions: int) -> Log:
    """(s, a, s', r, terminated) with one-hot states and actions; episodes by where they go on."""
    s, a, after, reward, terminated = map(np.array, zip(*rows, strict=True))
    state, next_state = (torch.eye(states)[index] for index in (s, after))
    not_done = torch.tensor(1.0 - terminated)
    ends = torch.from_numpy(breaks(state.numpy(), next_state.numpy())) | (not_done == 0)
    starts = starts_of(ends)
    action = torch.eye(actions)[a]
    return Log(state, action, next_state, torch.tensor(reward).float(), not_done.float(), starts)


def tabular(probabilities: Tensor) -> Policy:
    """π(· | s) (states, K) as a policy on one-hot states."""
    actions = probabilities.shape[1]

    def policy(state: Tensor) -> tuple[Tensor, Tensor]:
        every = torch.eye(actions).expand(len(state), actions, actions)
        return every, probabilities[state.argmax(1)]

    return policy


def random_mdp(seed: int) -> tuple[Log, Tensor, np.ndarray]:
    """A log that covers a random MDP of 4 states and 2 actions, a policy, and its exact V^π."""
    draw = np.random.default_rng(seed)
    states, actions = 4, 2
    p = draw.dirichlet(np.ones(states) * 0.5, (states, actions))
    r = draw.normal(size=(states, actions))
    pi = draw.dirichlet(np.ones(actions), states)
    rows = []
    for _ in range(400):
        s = int(draw.integers(states))
        for _ in range(10):
            a = int(draw.integers(actions))
            after = int(draw.choice(states, p=p[s, a]))
            rows.append((s, a, after, float(r[s, a]), False))
            s = after
    # Q^π of the MDP that the log shows, which is what there is to be found.
    counts = np.zeros((states, actions, states))
    for s, a, after, _, _ in rows:
        counts[s, a, after] += 1
    seen = counts / counts.sum(2, keepdims=True)
    p_pi, r_pi = np.einsum("sa,sat->st", pi, seen), (pi * r).sum(1)
    value = np.linalg.solve(np.eye(states) - GAMMA * p_pi, r_pi)
    return log_of(rows, states, actions), torch.tensor(pi).float(), value


@pytest.mark.parametrize("seed", [0, 1])
def test_fqe_finds_the_value_of_a_stochastic_policy_of_a_finite_mdp(seed: int) -> None:
    log, pi, value = random_mdp(seed)
    fqe = FQE(log, GAMMA, seed, starts=torch.eye(4), critics=6, hidden=[32], tau=0.1)
    fqe.fit(tabular(pi), 1500)
    found = fqe.first_values().mean(0).numpy()
    np.testing.assert_allclose(found, value, atol=0.05 * np.ptp(value) + 0.02)
    estimate = fqe.estimate()
    assert estimate.low < value.mean() < estimate.high
    assert estimate.high - estimate.low < 3 * np.ptp(value)


CHAIN = [(0, 0, 1, 0.0, False), (1, 0, 2, 0.0, False), (2, 0, 2, 1.0, True)]


def test_fqe_on_a_chain_is_what_the_hand_says_and_stops_at_the_terminal_state() -> None:
    """Three steps, reward 1 at the last: γ², γ, 1; were the end ignored, 1/(1 − γ) = 5."""
    log = log_of(CHAIN * 4, 3, 2)
    fqe = FQE(log, GAMMA, 0, starts=torch.eye(3), critics=3, hidden=[32], tau=0.1)
    fqe.fit(tabular(torch.tensor([[1.0, 0.0]] * 3)), 800)
    values = fqe.first_values().mean(0)
    np.testing.assert_allclose(values, [GAMMA**2, GAMMA, 1], atol=0.03)
    assert fqe.td_error(log, tabular(torch.tensor([[1.0, 0.0]] * 3))) < 0.03


def test_the_target_is_r_plus_gamma_times_the_expected_value_of_the_slow_copy() -> None:
    log = log_of(CHAIN, 3, 2)
    fqe = FQE(log, GAMMA, 0, critics=2, hidden=[])
    with torch.no_grad():  # the copy says Q'(s, a) = 10·a_1, the critics themselves something else
        for parameter in [*fqe.critics.parameters(), *fqe.target.parameters()]:
            parameter.zero_()
        fqe.target.weights[0][:, 4] = (10 - fqe.value_mean) / fqe.value_std
        fqe.target.weights[0][:, 3] = -fqe.value_mean / fqe.value_std
    rows = torch.tensor([[0, 2], [1, 0]])
    action, p = tabular(torch.tensor([[0.75, 0.25]] * 3))(log.next_state)
    expected = [[GAMMA * 2.5, 1.0], [GAMMA * 2.5, GAMMA * 2.5]]
    np.testing.assert_allclose(fqe.target_value(rows, action, p), expected, rtol=1e-5)


def test_no_target_is_beyond_what_the_logged_rewards_can_sum_to() -> None:
    for rewards, low, high in (((0.0, 1.0), 0, 5), ((1.0, 1.0), 1, 5), ((-1.0, 0.5), -5, 2.5)):
        log = log_of(CHAIN, 3, 2)._replace(reward=torch.tensor([*rewards, rewards[0]]))
        fqe = FQE(log, GAMMA, 0, critics=2, hidden=[])
        action, p = tabular(torch.tensor([[0.5, 0.5]] * 3))(log.next_state)
        for bias, bound in ((1e6, high), (-1e6, low)):
            with torch.no_grad():
                fqe.target.biases[0].fill_(bias)
            found = fqe.target_value(torch.tensor([[0, 1], [1, 0]]), action, p)
            np.testing.assert_allclose(found, bound, rtol=1e-6)


def test_every_critic_learns_from_its_own_resample_of_whole_episodes() -> None:
    rows = [(0, 0, 1, 0.0, False), (1, 0, 1, 1.0, True), (0, 1, 0, 0.0, True)] * 5
    log = log_of(rows, 2, 2)
    fqe = FQE(log, GAMMA, 3, critics=4)
    drawn = fqe.rows(20_000)
    for critic in range(4):
        episodes = np.bincount(fqe.drawn[critic], minlength=log.episodes)
        wanted = np.repeat(episodes, log.lengths.numpy())
        seen = np.bincount(drawn[critic], minlength=len(rows))
        np.testing.assert_allclose(seen / 20_000, wanted / wanted.sum(), atol=0.01)
    assert len({tuple(line) for line in fqe.drawn.tolist()}) == 4


def test_critics_side_by_side_are_as_many_networks_alone() -> None:
    critics = Critics(3, 5, [7, 6], torch.Generator().manual_seed(0))
    x = torch.randn(3, 11, 5)
    for k in range(3):
        alone = x[k]
        for place, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            alone = alone @ weight[k] + bias[k]
            alone = alone.relu() if place < 2 else alone
        torch.testing.assert_close(critics(x)[k], alone[:, 0])


def test_fqe_goes_on_from_its_state_exactly_and_leaves_the_global_generators_alone() -> None:
    log, pi, _ = random_mdp(0)
    before = torch.get_rng_state()
    one, other = (FQE(log, GAMMA, 7, critics=2, hidden=[8]) for _ in range(2))
    one.fit(tabular(pi), 20)
    other.load_state_dict(one.state_dict())
    for fqe in (one, other):
        fqe.fit(tabular(pi), 20)
    assert one.estimate() == other.estimate()
    assert torch.equal(before, torch.get_rng_state())


def test_gamma_of_one_is_refused() -> None:
    with pytest.raises(InputError, match="--discount below 1"):
        FQE(log_of(CHAIN, 3, 2), 1.0, 0)


# Two episodes of two steps. β is 1/2 everywhere; π takes action 1 with 0.9.
PAIR = [
    (0, 1, 1, 1.0, False), (1, 1, 1, 2.0, True),
    (0, 0, 1, 3.0, False), (1, 1, 1, 4.0, True),
]  # fmt: skip
HALF = torch.full((4, 2), 0.5).log()


def test_importance_sampling_is_what_the_hand_says() -> None:
    log = log_of(PAIR, 2, 2)
    # soft ε = 0.2 over 2 actions: π(1|s) = 0.9, π(0|s) = 0.1; ratios 1.8, and 0.2 at row 2.
    ratios = log_ratios(log, torch.ones(4, dtype=torch.int64), HALF, soft=0.2)
    np.testing.assert_allclose(ratios.exp(), [1.8, 1.8, 0.2, 1.8])
    got = weighted_importance_sampling(log, ratios, GAMMA, 0)
    # Step 0: (1.8·1 + 0.2·3)/2; step 1: weights 3.24 and 0.36, (3.24·2 + 0.36·4)/3.6.
    assert got.value == pytest.approx(2.4 / 2 + GAMMA * (6.48 + 1.44) / 3.6)
    assert got.effective == pytest.approx(3.6**2 / (3.24**2 + 0.36**2))
    alone = [1 + GAMMA * 2, 3 + GAMMA * 4]  # resamples of two hold one of them twice, or both
    assert got.low == pytest.approx(alone[0]) and got.high == pytest.approx(alone[1])


def test_an_ended_episode_keeps_its_weight_and_a_cut_one_leaves() -> None:
    rows = [(0, 1, 1, 1.0, False), (1, 1, 0, 2.0, False), (0, 1, 1, 3.0, True)]
    log = log_of([*rows[:2], rows[2]], 2, 2)._replace(starts=torch.tensor([0, 2, 3]))
    ratios = torch.tensor([0.0, np.log(2.0), np.log(3.0)], dtype=torch.float64)
    # Step 0: (1·1 + 3·3)/4. Step 1: the ended episode stays in the sum with weight 3, earning 0.
    got = weighted_importance_sampling(log, ratios, GAMMA, 0)
    assert got.value == pytest.approx(10 / 4 + GAMMA * (2 * 2) / (2 + 3))
    cut = log._replace(not_done=torch.ones(3))
    got = weighted_importance_sampling(cut, ratios, GAMMA, 0)
    assert got.value == pytest.approx(10 / 4 + GAMMA * 2)


def test_following_the_behaviour_is_worth_its_own_mean_and_all_episodes_count() -> None:
    log = log_of(PAIR, 2, 2)
    got = weighted_importance_sampling(log, torch.zeros(4, dtype=torch.float64), GAMMA, 0)
    assert got.value == pytest.approx(float(log.discounted_returns(GAMMA).mean()))
    assert got.effective == pytest.approx(2)


def test_the_clone_finds_the_frequencies_of_the_log() -> None:
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(3000):
        s = int(draw.integers(2))
        rows.append((s, int(draw.random() < (0.9, 0.3)[s]), s, 0.0, True))
    before = torch.get_rng_state()
    clone = Clone(log_of(rows, 2, 2), 0, updates=400)
    p = clone.log_probabilities(torch.eye(2)).exp()
    np.testing.assert_allclose(p[:, 1], [0.9, 0.3], atol=0.05)
    assert torch.equal(before, torch.get_rng_state())


def test_a_log_knows_its_episodes_and_their_discounted_returns() -> None:
    log = log_of([*PAIR, (1, 0, 0, 5.0, False), (1, 0, 0, 6.0, False)], 2, 2)
    assert log.starts.tolist() == [0, 2, 4, 5, 6]
    assert log.terminated.tolist() == [True, True, False, False]
    expected = [1 + GAMMA * 2, 3 + GAMMA * 4, 5, 6]
    np.testing.assert_allclose(log.discounted_returns(GAMMA), expected)
    np.testing.assert_allclose(log.returns_to_go(GAMMA)[:3], [expected[0], 2, expected[1]])
    part = log.take(torch.tensor([2, 1]))
    assert part.starts.tolist() == [0, 1, 3] and part.reward.tolist() == [5, 3, 4]
    assert starts_of(torch.tensor([0, 1, 0, 0, 1, 0]) == 1).tolist() == [0, 2, 5, 6]


def test_held_out_episodes_are_drawn_by_the_seed_and_are_none_to_learn_from() -> None:
    learned, held = split(50, 0.1, 3)
    assert len(held) == 5 and sorted([*learned, *held]) == list(range(50))
    again, other = split(50, 0.1, 3)[1], split(50, 0.1, 4)[1]
    assert held.tolist() == again.tolist() != other.tolist()
    assert len(split(50, 0, 3)[1]) == 0 and len(split(3, 0.1, 0)[1]) == 1
    with pytest.raises(InputError, match=r"--held_out 0\.1 leaves none of 1 episodes"):
        split(1, 0.1, 0)
