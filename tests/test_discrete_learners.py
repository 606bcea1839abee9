"""QR-DQN, REM and KL-control: every formula a second time, in numpy; and what their limits are."""

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from conftest import load_variant, weights
from stubs import column
from torch import Tensor, nn

from common.data.replay import Batch

variant = load_variant("discrete_BCQ")
NAN = float("nan")
STATES, ACTIONS = 2, 3


def make(name: str, **options: Any) -> Any:
    """An agent whose states are two numbers, of few outputs."""
    small = {"QRDQN": {"quantiles": 4}, "REM": {"heads": 5}, "KL_Control": {"masks": 3}}
    kind = variant.main.ALGORITHMS[name]
    return kind((STATES,), ACTIONS, "cpu", **small.get(name, {}) | options)


def random_batch(rows: int = 8) -> Any:
    """Transitions with states of two numbers, some of them terminal."""
    return Batch(
        torch.randn(rows, STATES), torch.randint(ACTIONS, (rows, 1)), torch.randn(rows, STATES),
        torch.randn(rows, 1), (torch.rand(rows, 1) > 0.3).float(),
    )  # fmt: skip


class Given(nn.Module):
    """A network with a given answer, one row a state; a state is the number of its row."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = [torch.as_tensor(answer, dtype=torch.float32) for answer in answers]

    def forward(self, state: Tensor) -> Any:
        found = [answer[state[:, 0].long()] for answer in self.answers]
        return found[0] if len(found) == 1 else tuple(found)


def numpy_of(*tensors: Tensor) -> list[np.ndarray]:
    """In doubles."""
    return [tensor.detach().double().numpy() for tensor in tensors]


def layers_of(head: Any) -> list[np.ndarray]:
    """Weights and biases of a head in their order."""
    return numpy_of(*head.parameters())


def huber(error: np.ndarray, kappa: float = 1.0) -> np.ndarray:
    """½e² up to κ, then κ(|e| − κ/2)."""
    size = np.abs(error)
    return np.where(size <= kappa, error**2 / 2, kappa * (size - kappa / 2))


def one_step(agent: Any, loss: Any, batch: Any) -> None:
    """Check that an update is one step of torch's Adam down `loss(agent, batch)`, thrice."""
    other = deepcopy(agent)
    group = agent.optimizer.param_groups[0]
    optimizer = torch.optim.Adam(other.network.parameters(), lr=group["lr"], eps=group["eps"])
    for seed in range(3):
        torch.manual_seed(seed)
        figures = agent.update(batch)
        torch.manual_seed(seed)
        expected, q = loss(other, batch)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        told = sum(value for name, value in figures.items() if name.endswith("_loss"))
        assert float(told) == pytest.approx(expected.item(), rel=1e-4)
        assert float(figures["q"]) == pytest.approx(q.mean().item(), rel=1e-4, abs=1e-6)
        pairs = zip(agent.network.parameters(), other.network.parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# --- QR-DQN


def quantile_loss(theta: np.ndarray, target: np.ndarray, kappa: float) -> float:
    """The loss of one row as the paper's sum reads."""
    n, total = len(theta), 0.0
    for i in range(n):
        midpoint = (2 * (i + 1) - 1) / (2 * n)
        for j in range(n):
            u = target[j] - theta[i]
            total += abs(midpoint - (u < 0)) * huber(u, kappa) / kappa / n
    return total


@pytest.mark.parametrize("kappa", [1.0, 0.3, 4.0])
@pytest.mark.parametrize("quantiles", [1, 2, 9])
def test_the_quantile_loss_is_the_sum_over_all_pairs(quantiles: int, kappa: float) -> None:
    agent = make("QRDQN", quantiles=quantiles, kappa=kappa)
    theta = (50 + 2 * torch.randn(6, ACTIONS, quantiles)).requires_grad_()
    target = 50 + 2 * torch.randn(6, quantiles)
    target[0, 0] = theta[0, 0, 0].detach()  # a tie
    action = torch.tensor([[0], [1], [2], [0], [1], [2]])
    loss = agent.value_loss(theta, action, target)
    taken, targets = numpy_of(theta[range(6), action[:, 0]], target)
    expected = [quantile_loss(*row, kappa) for row in zip(taken, targets, strict=True)]
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-6)

    (gradient,) = torch.autograd.grad(loss, theta)
    u = targets[:, None, :] - taken[:, :, None]
    midpoints = (2 * np.arange(1, quantiles + 1) - 1) / (2 * quantiles)
    share = np.abs(midpoints[:, None] - (u < 0)) * np.clip(u, -kappa, kappa) / kappa
    expected_gradient = np.zeros(theta.shape)
    expected_gradient[range(6), action[:, 0]] = -share.mean(2) / 6
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-7)


def test_the_quantile_loss_is_as_exact_where_values_are_large() -> None:
    agent = make("QRDQN", quantiles=200)
    theta, target = torch.randn(1, 1, 200), torch.randn(1, 200).sort().values
    far = (theta * 8).round() / 8, (target * 8).round() / 8  # exact also beside a million
    loss = agent.value_loss(far[0], torch.tensor([[0]]), far[1])
    shifted = agent.value_loss(far[0] + 2.0**20, torch.tensor([[0]]), far[1] + 2.0**20)
    assert float(shifted) == pytest.approx(float(loss), rel=1e-6)


def test_the_quantile_loss_is_as_exact_where_values_lie_far_apart() -> None:
    # The squares of a few far targets swamp what the near ones add, unless they are doubles.
    agent = make("QRDQN", quantiles=200)
    theta, target = torch.randn(1, 1, 200), torch.randn(1, 200)
    target[0, :3] = torch.tensor([-4e3, 3e3, 4e3])
    loss = agent.value_loss(theta, torch.tensor([[0]]), target)
    values, targets = numpy_of(theta[0, 0], target[0])
    assert loss.item() == pytest.approx(quantile_loss(values, targets, 1.0), rel=1e-6)
    (gradient,) = torch.autograd.grad(
        agent.value_loss(theta.requires_grad_(), torch.tensor([[0]]), target), theta
    )
    u = (target[:, None, :] - theta.detach()[0, :, :, None]).double().numpy()[0]
    midpoints = (2 * np.arange(1, 201) - 1) / 400
    share = np.abs(midpoints[:, None] - (u < 0)) * np.clip(u, -1, 1)
    np.testing.assert_allclose(gradient[0, 0], -share.mean(1), rtol=1e-5, atol=1e-6)


def test_midpoints_are_those_of_n_equal_parts_of_0_to_1() -> None:
    np.testing.assert_allclose(make("QRDQN").midpoints, [1 / 8, 3 / 8, 5 / 8, 7 / 8])
    assert make("QRDQN", quantiles=1).midpoints.tolist() == [0.5]


def test_the_quantile_loss_is_least_at_the_quantiles_of_the_targets() -> None:
    agent, target = make("QRDQN", kappa=1e-3), torch.arange(8.0).reshape(1, 8)
    theta = torch.zeros(1, 1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        agent.value_loss(theta, torch.tensor([[0]]), target).backward()
        optimizer.step()
    # Of eight equal targets an eighth lies below the lowest, three eighths below the second, …
    expected = torch.tensor([0.5, 2.5, 4.5, 6.5])
    assert ((theta.detach()[0, 0] - expected).abs() < 0.6).all()


def test_qrdqns_target_is_every_quantile_of_the_target_networks_best_action() -> None:
    agent = make("QRDQN", quantiles=2, discount=0.5)
    agent.network = Given(np.full((2, 3, 2), NAN))
    # By the mean action 1 is best in state 0 and action 2 in state 1; by either quantile others.
    agent.target_network = Given(
        [[[0.0, 9.0], [4.0, 6.0], [5.0, 1.0]], [[9.0, -9.0], [1.0, 0.0], [1.0, 1.0]]]
    )
    target = agent.target_value(column(0, 1, 1), column(1.0, 2.0, 3.0), column(1.0, 1.0, 0.0))
    assert target.tolist() == [[3.0, 4.0], [2.5, 2.5], [3.0, 3.0]]
    assert not target.requires_grad


def test_qrdqn_acts_and_values_by_the_mean_quantile() -> None:
    agent = make("QRDQN", quantiles=2)
    agent.network = Given([[[0.0, 9.0], [4.0, 6.0], [5.0, 1.0]]])
    agent.state_shape = (1,)
    assert agent.select_action(np.zeros(1)) == 1
    pairs = agent.value(column(0, 0), torch.tensor([[0], [2]]))
    assert pairs.tolist() == [[4.5], [3.0]]


def test_an_update_of_qrdqn_is_one_adam_step_on_the_quantile_loss() -> None:
    def loss(agent: Any, batch: Any) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            following = agent.target_network(batch.next_state)
            best = following.mean(2).argmax(1)
            target = batch.reward + batch.not_done * 0.9 * following[range(8), best]
        theta = agent.network(batch.state)
        u = target[:, None, :] - theta[range(8), batch.action[:, 0]][:, :, None]
        midpoints = torch.tensor([1, 3, 5, 7])[:, None] / 8
        size = u.abs()
        h = torch.where(size <= 0.5, u**2 / 2, 0.5 * (size - 0.25)) / 0.5
        return ((midpoints - (u < 0).float()).abs() * h).mean(2).sum(1).mean(), theta

    agent = make("QRDQN", lr=1e-2, discount=0.9, kappa=0.5)
    one_step(agent, loss, random_batch())


@pytest.mark.parametrize("value", [-30.0, 0.25, 7.0])
def test_qrdqn_with_one_quantile_is_half_of_dqns_loss(value: float) -> None:
    q, action = torch.tensor([[9.0, value, 9.0], [9.0, 9.0, -value]]), torch.tensor([[1], [2]])
    target = column(0.0, 1.0)
    squares = (value**2 + (1 + value) ** 2) / 2 / 2  # the mean over the batch of ½u²
    agent = make("QRDQN", quantiles=1, kappa=1e4)
    infinite = agent.kappa * agent.value_loss(q[:, :, None], action, target)
    assert float(infinite) == pytest.approx(squares / 2, rel=1e-6)
    at_1 = make("QRDQN", quantiles=1).value_loss(q[:, :, None], action, target)
    dqn = make("DQN").value_loss(q, action, target)
    assert float(at_1) == pytest.approx(float(dqn) / 2, rel=1e-6)


def test_qrdqn_with_one_quantile_has_dqns_targets_and_acts_as_dqn() -> None:
    single, dqn = make("QRDQN", quantiles=1), make("DQN")
    for name in ("network", "target_network"):
        copied = zip(
            getattr(single, name).parameters(), getattr(dqn, name).parameters(), strict=True
        )
        for one, other in copied:
            one.data.copy_(other)
    batch = random_batch()
    following = (batch.next_state, batch.reward, batch.not_done)
    torch.testing.assert_close(single.target_value(*following), dqn.target_value(*following))
    states = batch.state.numpy()
    assert single.select_action(states).tolist() == dqn.select_action(states).tolist()


# --- REM


def test_a_mixture_is_the_weighted_sum_of_the_heads() -> None:
    agent, states = make("REM"), torch.randn(6, STATES)
    alpha = torch.tensor([0.5, 0.1, 0.2, 0.05, 0.15])
    heads = numpy_of(agent.network(states))[0]
    assert heads.shape == (6, 5, ACTIONS)
    w1, b1, w2, b2, w3, b3 = layers_of(agent.network.heads)
    x = np.maximum(states.double().numpy() @ w1.T + b1, 0)
    x = np.maximum(x @ w2.T + b2, 0)
    by_hand = (x @ w3.T + b3).reshape(6, 5, ACTIONS)
    np.testing.assert_allclose(heads, by_hand, rtol=1e-4, atol=1e-6)
    expected = np.einsum("h,bhk->bk", alpha.double().numpy(), by_hand)
    (mixed,) = numpy_of(agent.network.mixture(states, alpha))
    np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=1e-6)


def test_heads_are_weighed_by_uniform_draws_that_are_made_to_sum_to_1() -> None:
    agent = make("REM", heads=4)
    torch.manual_seed(7)
    drawn = torch.stack([agent.draw_mixture() for _ in range(4000)])
    torch.manual_seed(7)
    u = torch.stack([torch.rand(4) for _ in range(4000)])
    torch.testing.assert_close(drawn, u / u.sum(1, keepdim=True))
    assert (drawn >= 0).all() and drawn.std() > 0.1
    torch.testing.assert_close(drawn.mean(0), torch.full((4,), 0.25), atol=0.01, rtol=0)


def test_rems_target_is_the_target_networks_best_mixture() -> None:
    agent = make("REM", heads=2, discount=0.5)
    agent.network = Given(np.full((2, 2, 3), NAN))
    # Mixed 1 : 3, the actions of state 0 are worth 3, 7, 4; the best of head 0 is action 0.
    heads = torch.tensor([[[12.0, 1.0, 1.0], [0.0, 9.0, 5.0]], [[4.0, 0, 0], [4.0, 0, 0]]])
    alpha = torch.tensor([0.25, 0.75])

    class Mixed(nn.Module):
        def mixture(self, state: Tensor, given: Tensor) -> Tensor:
            assert given is alpha
            return torch.einsum("h,bhk->bk", given, heads[state[:, 0].long()])

    agent.target_network = Mixed()
    following = column(0, 1, 1), column(1.0, 2.0, 3.0), column(1.0, 1.0, 0.0)
    assert agent.target_value(*following, alpha).tolist() == [[4.5], [4.0], [3.0]]


def test_an_update_of_rem_draws_one_mixture_for_the_batch_and_its_target() -> None:
    def loss(agent: Any, batch: Any) -> tuple[Tensor, Tensor]:
        u = torch.rand(5)
        alpha = u / u.sum()
        with torch.no_grad():
            following = torch.einsum("h,bhk->bk", alpha, agent.target_network(batch.next_state))
            best = following.max(1, keepdim=True).values
            target = batch.reward + batch.not_done * 0.9 * best
        q = torch.einsum("h,bhk->bk", alpha, agent.network(batch.state))
        error = (q.gather(1, batch.action) - target).abs()
        return torch.where(error < 1, error**2 / 2, error - 0.5).mean(), q

    one_step(make("REM", lr=1e-2, discount=0.9), loss, random_batch())


def test_rem_acts_and_values_by_the_mean_of_the_heads_and_draws_nothing() -> None:
    agent, states = make("REM"), np.random.default_rng(0).normal(size=(20, STATES))
    states = states.astype(np.float32)
    before = torch.get_rng_state()
    actions = agent.select_action(states)
    given = torch.as_tensor(actions).reshape(-1, 1)
    said = agent.value(torch.as_tensor(states), given)
    assert torch.equal(before, torch.get_rng_state())
    q = agent.network(torch.as_tensor(states)).mean(1)
    assert actions.tolist() == q.argmax(1).tolist()
    torch.testing.assert_close(said, q.gather(1, given))
    assert not said.requires_grad


def test_rem_with_one_head_is_dqn() -> None:
    torch.manual_seed(3)
    rem = make("REM", heads=1, lr=1e-2, tau=0.3, target_update_freq=2)
    torch.manual_seed(3)
    dqn = make("DQN", lr=1e-2, tau=0.3, target_update_freq=2)
    batch = random_batch()
    for _ in range(5):
        ours, theirs = rem.update(batch), dqn.update(batch)
        assert float(ours["value_loss"]) == pytest.approx(float(theirs["value_loss"]), rel=1e-5)
    pairs = zip(weights(rem).values(), weights(dqn).values(), strict=True)
    for value, expected in pairs:
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


# --- KL-control


class Masked(Given):
    """Ψ under each of several masks, (M, states, K); `features` are the states themselves."""

    features = nn.Identity()

    def masked(self, state: Tensor, masks: int) -> Tensor:
        assert len(self.answers[0]) == masks
        return self.answers[0][:, state[:, 0].long()]


def test_kl_controls_target_is_the_soft_maximum_of_the_least_masked_values() -> None:
    agent = make("KL_Control", masks=2, kl_weight=0.5, discount=0.9)
    agent.network = None  # not asked
    masked = np.array([[[1.0, 5.0, 0.0], [2.0, 2.0, 2.0]], [[4.0, 3.0, 1.0], [9.0, 2.0, 2.0]]])
    agent.target_network = Masked(masked)
    log_prior = column(-0.25, -1.5, -2.0)
    rewards, not_done = column(2.0, -1.0, 3.0), column(1.0, 1.0, 0.0)
    target = agent.target_value(log_prior, column(0, 1, 1), rewards, not_done)
    soft = [
        math.log(sum(map(math.exp, [1.0, 3.0, 0.0]))), math.log(3 * math.exp(2.0))
    ]  # fmt: skip
    expected = [4 - 0.25 + 0.9 * soft[0], -2 - 1.5 + 0.9 * soft[1], 6 - 2.0]
    np.testing.assert_allclose(target[:, 0], expected, rtol=1e-6)
    assert target.shape == (3, 1) and not target.requires_grad


@pytest.mark.parametrize("shape", [(STATES,), (4, 84, 84)], ids=["vectors", "atari"])
def test_a_mask_leaves_out_hidden_units_of_the_value_head_and_scales_the_others(
    shape: tuple[int, ...],
) -> None:
    kind = variant.main.ALGORITHMS["KL_Control"]
    network = kind(shape, ACTIONS, "cpu", dropout=0.4).network
    shared = torch.randn(6, STATES if len(shape) == 1 else 3136)
    torch.manual_seed(1)
    found = numpy_of(network.masked(shared, 3))[0]
    torch.manual_seed(1)
    arrays, (x,) = layers_of(network.value), numpy_of(shared)
    *hidden, (last_weight, last_bias) = zip(arrays[::2], arrays[1::2], strict=True)
    for weight, bias in hidden:
        x = np.maximum(x @ weight.T + bias, 0)
        ones = torch.ones(3, *x.shape[-2:])
        (mask,) = numpy_of(nn.functional.dropout(ones, 0.4))
        assert set(np.unique(mask).round(4)) == {0, round(1 / 0.6, 4)}
        x = x * mask  # (M, B, width): every state and every mask has its own
    np.testing.assert_allclose(found, x @ last_weight.T + last_bias, rtol=2e-4, atol=2e-5)


def test_masks_differ_from_state_to_state_and_without_dropout_there_are_none() -> None:
    agent, shared = make("KL_Control", dropout=0.5), torch.ones(4, STATES)
    found = agent.network.masked(shared, 3)
    assert found.shape == (3, 4, ACTIONS) and len(found.flatten(0, 1).unique(dim=0)) == 12
    plain = make("KL_Control", dropout=0.0)
    expected = plain.network(shared)[0].expand(3, -1, -1)
    torch.testing.assert_close(plain.network.masked(shared, 3), expected)


def test_an_update_of_kl_control_is_one_adam_step_on_both_losses() -> None:
    def loss(agent: Any, batch: Any) -> tuple[Tensor, Tensor]:
        psi = agent.network.masked(batch.state, 1)[0]
        logits = agent.network(batch.state)[1]
        log_prior = logits.log_softmax(1).gather(1, batch.action)
        following = agent.target_network.masked(batch.next_state, 3)
        soft = following.min(0).values.exp().sum(1, keepdim=True).log()
        target = batch.reward / 0.5 + log_prior + batch.not_done * 0.9 * soft
        error = (psi.gather(1, batch.action) - target.detach()).abs()
        value_loss = torch.where(error < 1, error**2 / 2, error - 0.5).mean()
        return value_loss - log_prior.mean() + 0.01 * (logits**2).mean(), psi

    agent = make("KL_Control", lr=1e-2, discount=0.9, kl_weight=0.5, dropout=0.3)
    one_step(agent, loss, random_batch())


def test_kl_control_acts_by_the_mode_and_values_in_rewards_without_the_first_divergence() -> None:
    agent = make("KL_Control", kl_weight=0.5)
    psi, logits = [[1.0, 5.0, 2.0], [-1.0, -3.0, -2.0]], [[0.0, -9.0, 4.0], [0.0, 1.0, 1.0]]
    agent.network, agent.state_shape = Given(psi, logits), (1,)
    before = torch.get_rng_state()
    assert agent.select_action(np.array([[0.0], [1.0]])).tolist() == [1, 0]
    said = agent.value(column(0, 1), torch.tensor([[1], [0]]))
    assert torch.equal(before, torch.get_rng_state())
    log_p = [-9 - math.log(1 + math.exp(-9) + math.exp(4)), -math.log(1 + 2 * math.e)]
    np.testing.assert_allclose(said[:, 0], [0.5 * (5 - log_p[0]), 0.5 * (-1 - log_p[1])], rtol=1e-6)


def test_kl_control_with_a_flat_prior_is_soft_q_learning() -> None:
    agent = make("KL_Control", masks=1, kl_weight=1.0, discount=0.9)
    soft_q = np.array([[1.0, 5.0, 2.0], [0.5, 0.25, 4.0]])
    flat = -math.log(ACTIONS)
    # With p = 1/K, Ψ is a soft Q less log K; the soft value is log mean exp Q.
    agent.target_network = Masked(soft_q[None] + flat)
    target = agent.target_value(column(flat, flat), column(0, 1), column(1.0, 2.0), column(1.0, 1))
    soft_values = np.log(np.exp(soft_q).mean(1))
    expected = np.array([1.0, 2.0]) + 0.9 * soft_values
    np.testing.assert_allclose(target[:, 0] - flat, expected, rtol=1e-6)


def test_kl_control_without_rewards_is_the_prior() -> None:
    agent = make("KL_Control", masks=1, kl_weight=1e6)
    log_p = np.log([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]])
    agent.target_network = Masked(log_p[None])
    taken = column(math.log(0.2), math.log(0.8))
    target = agent.target_value(taken, column(0, 1), column(1.0, -1.0), column(1.0, 1.0))
    torch.testing.assert_close(target, taken, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_weight": 0.0}, "kl_weight must be above 0, got"),
        ({"kl_weight": NAN}, "kl_weight must be above 0, got"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got"),
    ],
)
def test_hyper_parameters_that_leave_nothing_are_refused(
    options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make("KL_Control", **options)
