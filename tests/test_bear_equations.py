"""Every formula of BEAR, by hand on known networks and by numpy on the numbers that it draws."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import random_batch, same_weights, weights
from stubs import Given, TwinCritic, column, useless
from torch import Tensor, nn

NETWORKS = ["actor", "critic", "vae", "multiplier", "actor_target", "critic_target"]


def make(continuous: SimpleNamespace, max_action: float = 1.0, **options: Any) -> Any:
    """A BEAR agent with one state and one action dimension."""
    return continuous.BEAR.BEAR(1, 1, max_action, "cpu", **options)


# --- MMD


def mmd_by_numpy(x: np.ndarray, y: np.ndarray, kernel_type: str, sigma: float) -> np.ndarray:
    """One pair of samples after the other: (B, n, A), (B, n', A) -> (B,)."""

    def kernel(one: np.ndarray, other: np.ndarray) -> float:
        if kernel_type == "laplacian":
            return math.exp(-sum(abs(a - b) for a, b in zip(one, other, strict=True)) / (2 * sigma))
        return math.exp(-sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / (2 * sigma))

    def mean(ones: np.ndarray, others: np.ndarray) -> float:
        return sum(kernel(a, b) for a in ones for b in others) / (len(ones) * len(others))

    squares = [mean(a, a) + mean(b, b) - 2 * mean(a, b) for a, b in zip(x, y, strict=True)]
    return np.sqrt(np.array(squares) + 1e-6)


@pytest.mark.parametrize(("kernel_type", "expected"), [("laplacian", 0.3123), ("gaussian", 0.4363)])
def test_mmd_of_one_pair_two_apart_is_the_value_by_hand(
    continuous: SimpleNamespace, kernel_type: str, expected: float
) -> None:
    x, y = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 2.0)
    assert continuous.BEAR.mmd(x, y, kernel_type, 20.0).item() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("kernel_type", ["laplacian", "gaussian"])
@pytest.mark.parametrize("sigma", [0.7, 20.0])
def test_mmd_is_the_mean_kernel_over_all_pairs_of_a_state(
    continuous: SimpleNamespace, kernel_type: str, sigma: float
) -> None:
    draw = np.random.default_rng(0)
    # Each sample has its own place: a mean over equal numbers alone, or over states, is another.
    x, y = draw.normal(size=(3, 4, 2)), 2 * draw.normal(size=(3, 5, 2)) + 1
    given = [torch.as_tensor(samples, dtype=torch.float32) for samples in (x, y)]
    found = continuous.BEAR.mmd(*given, kernel_type, sigma)
    np.testing.assert_allclose(found.numpy(), mmd_by_numpy(x, y, kernel_type, sigma), rtol=1e-4)


@pytest.mark.parametrize("kernel_type", ["laplacian", "gaussian"])
@pytest.mark.parametrize("count", [1, 5, 100])
def test_mmd_of_a_set_with_itself_is_a_thousandth_and_has_a_finite_gradient(
    continuous: SimpleNamespace, kernel_type: str, count: int
) -> None:
    y = torch.randn(50, count, 3)
    for noise in [0.0, 1e-6]:  # also where rounding alone tells the two apart
        x = (y + noise * torch.randn_like(y)).requires_grad_()
        divergence = continuous.BEAR.mmd(x, y, kernel_type, 20.0)
        torch.testing.assert_close(divergence, torch.full((50,), 1e-3), rtol=0.5, atol=0)
        [gradient] = torch.autograd.grad(divergence.mean(), [x])
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kernel_type", ["laplacian", "gaussian"])
def test_descending_the_mmd_brings_the_samples_together(
    continuous: SimpleNamespace, kernel_type: str
) -> None:
    x, y = torch.full((1, 2, 1), 1.5).requires_grad_(), torch.zeros(1, 2, 1)
    [gradient] = torch.autograd.grad(continuous.BEAR.mmd(x, y, kernel_type, 20.0).sum(), [x])
    assert (gradient > 0).all()


# --- the actor


def known_actor(continuous: SimpleNamespace, max_action: float = 2.0) -> Any:
    """Mean 0.5 and std 3 in both action dimensions of every state."""
    actor = continuous.BEAR.Actor(1, 2, max_action)
    with torch.no_grad():
        for head, bias in [(actor.mean, 0.5), (actor.log_std, math.log(3.0))]:
            head.weight.zero_()
            head.bias.fill_(bias)
    return actor


def test_an_action_is_max_action_times_tanh_of_mean_plus_std_times_unclipped_noise(
    continuous: SimpleNamespace,
) -> None:
    actor = known_actor(continuous)
    torch.manual_seed(5)
    noise = torch.randn(200, 2).numpy()
    torch.manual_seed(5)
    actions = actor(torch.zeros(200, 1)).detach().numpy()
    np.testing.assert_allclose(actions, 2 * np.tanh(0.5 + 3 * noise), rtol=1e-4, atol=1e-5)
    assert np.abs(noise).max() > 2


def test_matched_samples_clip_the_noise_to_half_and_keep_the_value_before_the_tanh(
    continuous: SimpleNamespace,
) -> None:
    actor = known_actor(continuous)
    torch.manual_seed(5)
    noise = torch.randn(40, 6, 2).numpy()
    torch.manual_seed(5)
    actions, raw = actor.samples(torch.zeros(40, 1), 6)
    expected = 0.5 + 3 * np.clip(noise, -0.5, 0.5)
    np.testing.assert_allclose(raw.detach().numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(actions.detach().numpy(), 2 * np.tanh(expected), rtol=1e-5)


def test_samples_of_a_state_come_from_that_states_distribution(continuous: SimpleNamespace) -> None:
    actor = continuous.BEAR.Actor(1, 1, 1.0)
    actor.trunk = Given(lambda state: state)
    actor.mean, actor.log_std = nn.Identity(), Given(lambda state: torch.full_like(state, -20.0))
    _, raw = actor.samples(column(1.0, -2.0), 3)
    torch.testing.assert_close(raw.squeeze(2), torch.tensor([[1.0] * 3, [-2.0] * 3]))


def test_layers_are_as_wide_as_the_papers(continuous: SimpleNamespace) -> None:
    def widths(network: nn.Module) -> list[tuple[int, ...]]:
        return [tuple(weight.shape) for weight in network.parameters() if weight.dim() == 2]

    agent = continuous.BEAR.BEAR(11, 3, 1.0, "cpu")
    assert widths(agent.actor) == [(400, 11), (300, 400), (3, 300), (3, 300)]
    assert widths(agent.critic) == [(400, 14), (300, 400), (1, 300)] * 2
    assert widths(agent.vae.encoder) == [(750, 14), (750, 750)]
    assert widths(agent.vae.decoder) == [(750, 17), (750, 750), (3, 750)]
    # ReLU after both hidden layers of the actor: what its heads are given is not negative.
    hidden = agent.actor.trunk(torch.randn(50, 11))
    assert hidden.shape == (50, 300) and (hidden >= 0).all() and (hidden == 0).any()


def test_the_vaes_action_is_max_action_times_tanh_of_the_value_before(
    continuous: SimpleNamespace,
) -> None:
    vae, state = make(continuous, max_action=2.0).vae, torch.randn(6, 1)
    given = torch.randn(6, 2)
    raw = vae.before_tanh(state, given)
    torch.testing.assert_close(raw, vae.decoder(torch.cat([state, given], 1)))
    torch.testing.assert_close(vae.decode(state, given), 2 * torch.tanh(raw))


# --- the critics' target


class Counting:
    """A target actor whose i-th sample since the last state is i/10, and what it was given."""

    def __init__(self) -> None:
        self.states: list[float] = []

    def __call__(self, state: Tensor) -> Tensor:
        self.states += state.flatten().tolist()
        return (torch.arange(len(state)) % 10).reshape(-1, 1) / 10 + state / 100


@pytest.mark.parametrize(
    ("lmbda", "first", "second"),
    [
        # a: 0 to 0.9 at s' = 0, and 1 to 1.9 at s' = 100; Q' = s' + 10a and s' - 10a.
        (1.0, 0.0, 90.0),
        (0.0, 9.0, 119.0),
        (0.75, 0.0, 95.0),  # s' - 5a
        (0.25, 4.5, 109.5),  # s' + 5a
    ],
)
def test_target_is_the_best_of_ten_samples_of_lambda_min_plus_rest_max(
    continuous: SimpleNamespace, lmbda: float, first: float, second: float
) -> None:
    agent = make(continuous, discount=0.9, lmbda=lmbda)
    counting = Counting()
    agent.actor_target = Given(counting)
    agent.critic_target = TwinCritic(lambda s, a: s + 10 * a, lambda s, a: s - 10 * a)
    agent.actor, agent.critic = Given(useless), TwinCritic(useless, useless)
    target = agent.target_value(
        column(0.0, 100.0, 100.0), column(3.0, 5.0, 7.0), column(1.0, 1.0, 0.0)
    )
    torch.testing.assert_close(target, column(3 + 0.9 * first, 5 + 0.9 * second, 7.0))
    assert counting.states == [0.0] * 10 + [100.0] * 20
    assert not target.requires_grad


# --- the losses


def test_vae_loss_is_mse_plus_half_the_mean_kl(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    # As for BCQ: KL a mean of 4 terms, μ = 2, σ = 1 gives 2; μ = 0, σ = 2 gives -½(1 + ln 4 - 4).
    mean, std = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 2.0], [1.0, 1.0]])
    agent.vae.forward = lambda state, action: (column(1.0, 0.5), mean, std)
    kl = (2.0 - 0.5 * (1 + math.log(4) - 4)) / 4
    loss = agent.vae.loss(column(0.0, 0.0), column(0.5, 0.5))
    assert loss.item() == pytest.approx(0.125 + 0.5 * kl, rel=1e-6)


def test_critic_loss_is_the_sum_of_both_critics_mean_squared_errors(
    continuous: SimpleNamespace,
) -> None:
    agent = make(continuous)
    agent.critic = TwinCritic(lambda s, a: s + a, lambda s, a: 2 * s)
    # Q1 = 1.5, 2.5 and Q2 = 2, 4 against y = 1, 2: (0.25 + 0.25)/2 + (1 + 4)/2.
    loss, mean_q = agent.critic_loss(column(1.0, 2.0), column(0.5, 0.5), column(1.0, 2.0))
    assert loss.item() == pytest.approx(2.75)
    assert mean_q.item() == pytest.approx(2.0)
    assert not mean_q.requires_grad


@pytest.mark.parametrize("kernel_type", ["laplacian", "gaussian"])
@pytest.mark.parametrize("warm_up", [0, 1])
@pytest.mark.parametrize("mode", ["auto", "hardcoded"])
def test_actor_loss_is_alpha_mmd_minus_the_smaller_critics_mean_value_after_the_warm_up(
    continuous: SimpleNamespace, kernel_type: str, warm_up: int, mode: str
) -> None:
    """The whole of it once more in numpy, on the numbers that the agent draws."""
    agent = make(
        continuous, 2.0, kernel_type=kernel_type, warm_up=warm_up, mode=mode, mmd_sigma=3.0,
        num_samples_match=4,
    )  # fmt: skip
    # Which critic is the smaller changes from state to state, and among the samples of one.
    agent.critic = TwinCritic(lambda s, a: 5 * (a - 1.3), lambda s, a: s - 5 * (a - 1.3))
    agent.actor_target, agent.critic_target = Given(useless), TwinCritic(useless, useless)
    log_alpha, state = 0.7, torch.randn(6, 1)
    with torch.no_grad():
        agent.multiplier.log_alpha.fill_(log_alpha)
        agent.actor.mean.bias.fill_(0.8)
    torch.manual_seed(5)
    latents, noise = torch.randn(24, 2), torch.randn(6, 4, 1).numpy()
    torch.manual_seed(5)
    loss, divergence = agent.actor_loss(state)

    with torch.no_grad():
        repeated = torch.cat([one.repeat(4, 1) for one in state.split(1)])
        proposed = agent.vae.decoder(torch.cat([repeated, latents.clamp(-0.5, 0.5)], 1))
        hidden = agent.actor.trunk(state)
        mean, log_std = agent.actor.mean(hidden).numpy(), agent.actor.log_std(hidden).numpy()
    raw = mean[:, None] + np.exp(log_std)[:, None] * np.clip(noise, -0.5, 0.5)  # (6, 4, 1)
    expected_mmd = mmd_by_numpy(proposed.numpy().reshape(6, 4, 1), raw, kernel_type, 3.0).mean()
    s, a = state.numpy(), 2 * np.tanh(raw[:, :, 0])
    q1, q2 = 5 * (a - 1.3), s - 5 * (a - 1.3)
    smaller = np.minimum(q1.mean(1), q2.mean(1))
    assert 0 < (q1.mean(1) < q2.mean(1)).sum() < 6
    assert not np.allclose(smaller, np.minimum(q1, q2).mean(1))
    alpha = math.exp(log_alpha) if mode == "auto" else 100.0
    expected = alpha * expected_mmd - (0 if warm_up else smaller.mean())
    assert divergence.item() == pytest.approx(expected_mmd, rel=1e-3)
    assert loss.item() == pytest.approx(expected, rel=1e-3)
    assert not divergence.requires_grad


# --- the dual variable


@pytest.mark.parametrize(("divergence", "direction"), [(0.06, 1), (0.04, -1)])
def test_log_alpha_rises_above_the_threshold_and_falls_below_it(
    continuous: SimpleNamespace,
    divergence: float,
    direction: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make(continuous)

    def match(state: Tensor) -> tuple[Tensor, Tensor]:
        moving = sum(weight.sum() for weight in agent.actor.parameters())
        return torch.zeros(len(state), 5, 1), divergence + 0 * moving

    monkeypatch.setattr(agent, "match", match)
    for number in range(1, 4):
        figures = agent.update(random_batch(4, 1, 1))
        # Adam's first steps along one direction are of lr 1e-3 each.
        expected = direction * number * 1e-3
        assert agent.multiplier.log_alpha.item() == pytest.approx(expected, rel=1e-3)
        assert figures["mmd"].item() == pytest.approx(divergence)
        assert figures["alpha"].item() == pytest.approx(math.exp(expected), rel=1e-5)


def test_the_dual_loss_is_minus_alpha_times_the_excess_over_a_twentieth(
    continuous: SimpleNamespace,
) -> None:
    agent = make(continuous)
    with torch.no_grad():
        agent.multiplier.log_alpha.fill_(math.log(3.0))
    loss = agent.multiplier_loss(torch.tensor(0.25))
    assert loss.item() == pytest.approx(-3 * 0.2)
    [gradient] = torch.autograd.grad(loss, [agent.multiplier.log_alpha])
    assert gradient.item() == pytest.approx(-3 * 0.2)


@pytest.mark.parametrize(
    ("start", "expected"), [(2.0, 1.5), (-7.0, -5.0), (1.0, pytest.approx(1.0, abs=2e-3))]
)
def test_log_alpha_stays_between_minus_5_and_lagrange_thresh(
    continuous: SimpleNamespace, start: float, expected: Any
) -> None:
    agent = make(continuous, lagrange_thresh=1.5)
    with torch.no_grad():
        agent.multiplier.log_alpha.fill_(start)
    agent.update(random_batch(4, 1, 1))
    assert agent.multiplier.log_alpha.item() == expected


def test_alpha_begins_at_1_and_hardcoded_it_is_100_and_does_not_learn(
    continuous: SimpleNamespace,
) -> None:
    agent = make(continuous)
    assert agent.alpha().item() == 1
    agent = make(continuous, mode="hardcoded")
    before = weights(agent)["multiplier.log_alpha"]
    figures = agent.update(random_batch(4, 1, 1))
    assert figures["alpha"].item() == 100
    assert torch.equal(before, weights(agent)["multiplier.log_alpha"])


# --- the warm-up


def test_value_enters_the_actors_loss_after_exactly_warm_up_updates_also_after_loading(
    continuous: SimpleNamespace,
) -> None:
    def asked(agent: Any) -> bool:
        """Whether this update's actor step asks the critics: a second pass through Q2."""
        passes: list[int] = []
        hook = agent.critic.q2_network.register_forward_hook(lambda *_: passes.append(1))
        agent.update(random_batch(4, 1, 1))
        hook.remove()
        return len(passes) == 2

    agent = make(continuous, warm_up=3)
    assert [asked(agent) for _ in range(5)] == [False, False, False, True, True]
    agent, loaded = make(continuous, warm_up=3), make(continuous, warm_up=3)
    assert not asked(agent) and not asked(agent)
    loaded.load_state_dict(agent.state_dict())
    assert [asked(loaded) for _ in range(2)] == [False, True]


def test_the_dual_variable_learns_during_the_warm_up_too(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    assert agent.warm_up == 20_000
    agent.update(random_batch(4, 1, 1))
    assert abs(agent.multiplier.log_alpha.item()) == pytest.approx(1e-3, rel=1e-3)


# --- who learns from what


LOSSES: dict[str, tuple[Callable[[Any, Any], Tensor], list[str]]] = {
    "vae": (lambda agent, batch: agent.vae.loss(batch.state, batch.action), ["vae"]),
    "critic": (
        lambda agent, batch: agent.critic_loss(
            batch.state,
            batch.action,
            agent.target_value(batch.next_state, batch.reward, batch.not_done),
        )[0],
        ["critic"],
    ),
    "actor": (lambda agent, batch: agent.actor_loss(batch.state)[0], ["actor", "critic"]),
    "multiplier": (
        lambda agent, batch: agent.multiplier_loss(agent.actor_loss(batch.state)[1]),
        ["multiplier"],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("warm_up", [0, 1])
def test_a_loss_reaches_the_networks_it_should_and_no_other(
    continuous: SimpleNamespace, name: str, warm_up: int
) -> None:
    agent, batch = make(continuous, warm_up=warm_up), random_batch(8, 1, 1)
    for network in NETWORKS:
        getattr(agent, network).requires_grad_(True)
    function, expected = LOSSES[name]
    loss = function(agent, batch)
    reached = []
    for network in NETWORKS:
        parameters = list(getattr(agent, network).parameters())
        found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
        if any(gradient is not None for gradient in found):
            reached.append(network)
    # The actor's loss passes through the critic; `minimize` is what keeps the critic from learning.
    assert reached == (["actor"] if name == "actor" and warm_up else expected)


# --- one update


def test_an_update_trains_vae_critic_actor_and_dual_in_that_order(
    continuous: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, steps = make(continuous), []
    for name in ["vae", "critic", "actor", "multiplier"]:
        optimizer = getattr(agent, f"{name}_optimizer")

        def step(loss: Tensor, name: str = name, real: Any = optimizer.minimize) -> Any:
            steps.append(name)
            return real(loss)

        monkeypatch.setattr(optimizer, "minimize", step)
    agent.update(random_batch(6, 1, 1))
    assert steps == ["vae", "critic", "actor", "multiplier"]


def test_an_update_draws_for_the_vae_the_target_the_latents_and_the_samples_in_that_order(
    continuous: SimpleNamespace,
) -> None:
    agent = continuous.BEAR.BEAR(3, 2, 1.0, "cpu", num_samples_match=3, warm_up=1)
    batch, drawn = random_batch(7), []

    def randn(*size: Any, device: Any = None) -> Tensor:
        drawn.append(tuple(size[0]))
        return torch.zeros(size[0])

    def randn_like(like: Tensor) -> Tensor:
        drawn.append(tuple(like.shape))
        return torch.zeros_like(like)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "randn", randn)
        patched.setattr(torch, "randn_like", randn_like)
        for _ in range(2):  # within the warm-up and after it
            agent.update(batch)
    assert drawn == [(7, 4), (70, 2), (21, 4), (7, 3, 2)] * 2


@pytest.mark.parametrize("mode", ["auto", "hardcoded"])
def test_log_alpha_and_its_optimiser_are_saved(continuous: SimpleNamespace, mode: str) -> None:
    agent, loaded = make(continuous, warm_up=2, mode=mode), make(continuous, warm_up=2, mode=mode)
    for _ in range(3):
        agent.update(random_batch(6, 1, 1))
    loaded.load_state_dict(agent.state_dict())
    ends = []
    for one in [agent, loaded]:
        torch.manual_seed(3)
        for _ in range(3):
            one.update(random_batch(6, 1, 1))
        ends.append(weights(one))
    assert same_weights(*ends)


# --- acting and value


def test_select_action_takes_the_sample_with_the_best_q1_of_each_state(
    continuous: SimpleNamespace,
) -> None:
    agent = make(continuous)
    counting = Counting()
    agent.actor = Given(counting)
    agent.critic = TwinCritic(lambda s, a: -((a - s) ** 2), useless)
    agent.critic_target, agent.actor_target = TwinCritic(useless, useless), Given(useless)
    states = column(0.42, 0.19, 50.0).numpy()
    # Samples: 0 to 0.9, plus s/100.
    expected = [[0.4042], [0.2019], [1.4]]
    np.testing.assert_allclose(agent.select_action(states), expected, rtol=1e-5)
    assert len(counting.states) == 30
    assert agent.select_action(states[0]).tolist() == [pytest.approx(0.4042)]


def test_value_is_the_first_critics(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.critic = TwinCritic(lambda s, a: s + 10 * a, useless)
    agent.critic_target = TwinCritic(useless, useless)
    assert agent.value(column(1.0, 2.0), column(3.0, 4.0)).tolist() == [[31.0], [42.0]]


# --- what it refuses


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ({"kernel_type": "cosine"}, "laplacian, gaussian"),
        ({"mode": "automatic"}, "auto, hardcoded"),
    ],
)
def test_a_kernel_or_mode_that_does_not_exist_is_refused(
    continuous: SimpleNamespace, option: dict[str, Any], known: str
) -> None:
    [(name, value)] = option.items()
    with pytest.raises(ValueError, match=f"{name} is '{value}'; choose from {known}"):
        make(continuous, **option)
