"""Every formula of BCQ on networks with known answers; expected values are worked out by hand."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import random_batch, same_weights, weights
from stubs import Given, Table, TwinCritic, column, useless
from torch import Tensor, nn

from common.agent import mean_figures


def make(continuous: SimpleNamespace, max_action: float = 1.0, **options: Any) -> Any:
    """A BCQ agent with one state and one action dimension."""
    return continuous.BCQ.BCQ(1, 1, max_action, "cpu", **options)


# --- the perturbation actor


@pytest.mark.parametrize(
    ("action", "output", "expected"),
    [
        (0.0, 100.0, 0.1),  # Φ·m·tanh = 0.05·2·1
        (0.0, -100.0, -0.1),
        (0.5, math.atanh(0.5), 0.55),  # 0.5 + 0.05·2·0.5
        (1.95, 100.0, 2.0),  # 2.05, clipped
        (-1.95, -100.0, -2.0),
    ],
)
def test_actor_moves_an_action_by_at_most_phi_max_action_and_clips_it(
    continuous: SimpleNamespace, action: float, output: float, expected: float
) -> None:
    actor = continuous.BCQ.Actor(1, 1, max_action=2.0, phi=0.05)
    actor.network = Given(lambda both: torch.full((len(both), 1), output))
    moved = actor(column(7.0), column(action))
    assert moved.item() == pytest.approx(expected, abs=1e-6)


def test_actor_and_critics_are_given_state_then_action(continuous: SimpleNamespace) -> None:
    actor, critic = continuous.BCQ.Actor(2, 1, 1.0, 0.05), continuous.BCQ.Critic(2, 1)
    seen: list[Tensor] = []

    def record(both: Tensor) -> Tensor:
        seen.append(both)
        return both[:, :1]

    actor.network = critic.q1_network = critic.q2_network = Given(record)
    state, action = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])
    actor(state, action), critic(state, action), critic.q1(state, action)
    assert [both.tolist() for both in seen] == [[[1.0, 2.0, 3.0]]] * 4


# --- the VAE


@pytest.mark.parametrize(("bias", "expected"), [(100.0, 15.0), (-100.0, -4.0), (0.5, 0.5)])
def test_log_std_is_clipped_to_minus_4_and_15(
    continuous: SimpleNamespace, bias: float, expected: float
) -> None:
    vae = continuous.BCQ.VAE(1, 1, 1.0)
    with torch.no_grad():
        vae.log_std.weight.zero_()
        vae.log_std.bias.fill_(bias)
    _, _, std = vae(column(0.3), column(0.1))
    assert std.shape == (1, 2)
    torch.testing.assert_close(std, torch.full((1, 2), math.exp(expected)))


def test_training_latent_is_mean_plus_std_times_noise_and_unclipped(
    continuous: SimpleNamespace,
) -> None:
    vae = continuous.BCQ.VAE(1, 1, 1.0)
    with torch.no_grad():
        for head, bias in [(vae.mean, 2.0), (vae.log_std, math.log(3.0))]:
            head.weight.zero_()
            head.bias.fill_(bias)
    latents: list[Tensor] = []

    def decoder(both: Tensor) -> Tensor:
        latents.append(both[:, 1:])
        return both[:, :1]

    vae.decoder = Given(decoder)
    torch.manual_seed(5)
    noise = torch.randn(4, 2)
    torch.manual_seed(5)
    vae(column(0.3, 0.3, 0.3, 0.3), column(0.1, 0.1, 0.1, 0.1))
    torch.testing.assert_close(latents[0], 2.0 + 3.0 * noise)


def test_decoder_output_is_max_action_times_tanh(continuous: SimpleNamespace) -> None:
    vae = continuous.BCQ.VAE(1, 1, max_action=2.0)
    vae.decoder = Given(lambda both: both[:, 1:2])
    given = torch.tensor([[math.atanh(0.5), 0.0], [100.0, 0.0], [-100.0, 0.0]])
    decoded = vae.decode(column(9.0, 9.0, 9.0), given)
    torch.testing.assert_close(decoded, column(1.0, 2.0, -2.0))  # a latent that is given is kept


def test_generated_latents_are_normal_draws_clipped_to_half(continuous: SimpleNamespace) -> None:
    vae = continuous.BCQ.VAE(1, 1, 1.0)
    latents: list[Tensor] = []

    def decoder(both: Tensor) -> Tensor:
        latents.append(both[:, 1:])
        return both[:, :1]

    vae.decoder = Given(decoder)
    torch.manual_seed(5)
    noise = torch.randn(500, 2)
    torch.manual_seed(5)
    vae.decode(torch.zeros(500, 1))
    assert noise.abs().max() > 2
    torch.testing.assert_close(latents[0], noise.clamp(-0.5, 0.5))


def test_vae_loss_is_mse_plus_half_the_mean_kl(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    # Batch of 2, latent of 2. KL a mean of 4 terms: μ = 2, σ = 1 gives ½·4 = 2; μ = 0, σ = 2 gives
    # -½(1 + ln 4 - 4); the other two are 0. MSE: ((1 - 0.5)² + 0²)/2 = 0.125.
    mean, std = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 2.0], [1.0, 1.0]])
    agent.vae.forward = lambda state, action: (column(1.0, 0.5), mean, std)
    kl = (2.0 - 0.5 * (1 + math.log(4) - 4)) / 4
    loss = agent.vae.loss(column(0.0, 0.0), column(0.5, 0.5))
    assert loss.item() == pytest.approx(0.125 + 0.5 * kl, rel=1e-6)


# --- the critic's target


def target_agent(continuous: SimpleNamespace, lmbda: float = 0.75) -> Any:
    """Three candidates a state, doubled by the target actor; Q' = s' + 10a and s' - 10a.

    The candidates, in the order they are drawn: 0.1, 0.2, 0.3, then 0.4, 0.5, 0.6.
    """
    agent = make(continuous, discount=0.9, lmbda=lmbda, target_candidates=3)
    agent.vae.decode = Table([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    agent.actor_target = Given(lambda state, action: 2 * action)
    agent.critic_target = TwinCritic(lambda s, a: s + 10 * a, lambda s, a: s - 10 * a)
    agent.actor, agent.critic = Given(useless), TwinCritic(useless, useless)
    return agent


@pytest.mark.parametrize(
    ("lmbda", "first", "second"),
    [
        # Perturbed candidates ±: 10a is 2, 4, 6 at s' = 0 and 8, 10, 12 at s' = 100.
        (1.0, -2.0, 92.0),  # min_j: -2, -4, -6 and 92, 90, 88; the best of each
        (0.0, 6.0, 112.0),  # max_j: 2, 4, 6 and 108, 110, 112
        (0.75, -1.0, 96.0),  # s' - 10a/2: -1, -2, -3 and 96, 95, 94
    ],
)
def test_target_is_the_best_candidate_of_lambda_min_plus_rest_max(
    continuous: SimpleNamespace, lmbda: float, first: float, second: float
) -> None:
    agent = target_agent(continuous, lmbda)
    target = agent.target_value(column(0.0, 100.0), column(3.0, 5.0), column(1.0, 1.0))
    torch.testing.assert_close(target, column(3 + 0.9 * first, 5 + 0.9 * second))


def test_the_candidates_of_one_state_are_valued_at_that_state(continuous: SimpleNamespace) -> None:
    agent = target_agent(continuous)
    agent.target_value(column(0.0, 100.0), column(0.0, 0.0), column(1.0, 1.0))
    assert agent.vae.decode.states[0].flatten().tolist() == [0, 0, 0, 100, 100, 100]


def test_a_terminal_transition_is_worth_its_reward(continuous: SimpleNamespace) -> None:
    agent = target_agent(continuous)
    target = agent.target_value(column(0.0, 100.0), column(3.0, 5.0), column(1.0, 0.0))
    torch.testing.assert_close(target, column(3 - 0.9, 5.0))


def test_ten_candidates_are_valued_a_state_unless_told_otherwise(
    continuous: SimpleNamespace,
) -> None:
    agent = make(continuous)
    agent.vae.decode = Table([0.1])
    agent.target_value(column(0.0, 1.0), column(0.0, 0.0), column(1.0, 1.0))
    assert len(agent.vae.decode.states[0]) == 20


# --- the losses of critic and actor


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


def test_actor_loss_is_minus_the_mean_q1_of_a_perturbed_sample(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.vae.decode = Table([0.1, 0.2])
    agent.actor = Given(lambda state, action: state + action)
    agent.critic = TwinCritic(lambda s, a: 3 * a, useless)
    agent.actor_target, agent.critic_target = Given(useless), TwinCritic(useless, useless)
    # Actions 1.1 and 2.2, values 3.3 and 6.6.
    loss = agent.actor_loss(column(1.0, 2.0))
    assert loss.item() == pytest.approx(-4.95)
    assert agent.vae.decode.states[0].flatten().tolist() == [1, 2]  # one sample a state


# --- who learns from what


def gradients(loss: Tensor, network: nn.Module) -> list[Tensor | None]:
    """Of the loss, for every parameter of the network; None where it does not depend on it."""
    if not loss.requires_grad:
        return [None]
    parameters = [weight.requires_grad_() for weight in network.parameters()]
    return list(torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True))


LOSSES = {"vae_loss": ["vae"], "critic_loss": ["critic"], "actor_loss": ["actor", "critic"]}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_reaches_the_networks_it_should_and_no_other(
    continuous: SimpleNamespace, name: str
) -> None:
    agent, batch = make(continuous), random_batch(8, 1, 1)
    networks = ["actor", "critic", "vae", "actor_target", "critic_target"]
    for network in networks:
        getattr(agent, network).requires_grad_(True)
    if name == "vae_loss":
        loss = agent.vae.loss(batch.state, batch.action)
    elif name == "critic_loss":
        target = agent.target_value(batch.next_state, batch.reward, batch.not_done)
        loss, _ = agent.critic_loss(batch.state, batch.action, target)
    else:
        loss = agent.actor_loss(batch.state)
    reached = [
        network
        for network in networks
        if any(gradient is not None for gradient in gradients(loss, getattr(agent, network)))
    ]
    # The actor's loss passes through the critic; `minimize` is what keeps the critic from learning.
    assert sorted(reached) == sorted(LOSSES[name])


# --- one update


def test_an_update_trains_vae_then_critic_then_actor_and_draws_in_that_order(
    continuous: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, batch = make(continuous, target_candidates=4), random_batch(6, 1, 1)
    events: list[tuple[str, Any]] = []
    for name in ["vae", "critic", "actor"]:
        optimizer = getattr(agent, f"{name}_optimizer")

        def step(loss: Tensor, name: str = name, real: Any = optimizer.minimize) -> Any:
            events.append(("step", name))
            return real(loss)

        monkeypatch.setattr(optimizer, "minimize", step)
    agent.vae.decoder.register_forward_pre_hook(
        lambda _module, inputs: events.append(("decode", len(inputs[0])))
    )
    agent.update(batch)
    assert events == [
        ("decode", 6),
        ("step", "vae"),
        ("decode", 24),
        ("step", "critic"),
        ("decode", 6),
        ("step", "actor"),
    ]


def test_latents_of_target_and_actor_step_are_clipped_and_the_training_one_is_not(
    continuous: SimpleNamespace,
) -> None:
    agent, batch = make(continuous), random_batch(200, 1, 1)
    largest: list[float] = []
    agent.vae.decoder.register_forward_pre_hook(
        lambda _module, inputs: largest.append(inputs[0][:, 1:].abs().max().item())
    )
    agent.update(batch)
    training, target, actor = largest
    assert training > 1
    assert target == actor == 0.5


# --- acting


def acting_agent(continuous: SimpleNamespace) -> Any:
    """Candidates 0 to 3, the actor adds 1 + s/100; Q1 is best where the action equals the state."""
    agent = make(continuous, max_action=10.0, acting_candidates=4)
    agent.vae.decode = Table([0.0, 1.0, 2.0, 3.0])
    agent.actor = Given(lambda state, action: action + 1 + state / 100)
    agent.critic = TwinCritic(lambda s, a: -((a - s) ** 2), lambda s, a: -(a**2))
    agent.critic_target, agent.actor_target = TwinCritic(useless, useless), Given(useless)
    return agent


def test_select_action_takes_the_perturbed_candidate_with_the_best_q1_of_each_state(
    continuous: SimpleNamespace,
) -> None:
    agent = acting_agent(continuous)
    states = column(3.2, 1.9, 50.0).numpy()
    expected = [[3.032], [2.019], [4.5]]
    np.testing.assert_allclose(agent.select_action(states), expected, rtol=1e-6)


def test_select_action_on_a_batch_is_select_action_on_each_state(
    continuous: SimpleNamespace,
) -> None:
    agent = acting_agent(continuous)
    states = column(3.2, 1.9, 50.0, -4.0).numpy()
    one_by_one = [agent.select_action(state) for state in states]
    assert all(action.shape == (1,) for action in one_by_one)
    assert agent.select_action(states).tolist() == [action.tolist() for action in one_by_one]


def test_a_hundred_candidates_are_weighed_when_acting_unless_told_otherwise(
    continuous: SimpleNamespace,
) -> None:
    agent = make(continuous)
    agent.vae.decode = Table([0.1])
    agent.select_action(column(0.0, 1.0).numpy())
    states = agent.vae.decode.states[0].flatten().tolist()
    assert states == [0.0] * 100 + [1.0] * 100


# --- the parts that all agents share


def flat(network: nn.Module) -> list[float]:
    """All parameters of a network, in order of creation."""
    return [x for weight in network.parameters() for x in weight.detach().flatten().tolist()]


def test_soft_update_moves_the_target_by_tau(continuous: SimpleNamespace) -> None:
    source, target = nn.Linear(2, 1), nn.Linear(2, 1)
    with torch.no_grad():
        for network, value in [(source, 1.0), (target, -3.0)]:
            for weight in network.parameters():
                weight.fill_(value)
    continuous.utils.SoftUpdate(source, target)(0.25)  # 0.25·1 + 0.75·(-3)
    assert flat(target) == [-2.0] * 3
    assert flat(source) == [1.0] * 3


def test_soft_update_refuses_networks_of_other_sizes(continuous: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="source has 2 parameters, target has 1"):
        continuous.utils.SoftUpdate(nn.Linear(2, 1), nn.Linear(2, 1, bias=False))
    with pytest.raises(RuntimeError, match="size"):
        continuous.utils.SoftUpdate(nn.Linear(2, 3), nn.Linear(5, 3))(0.1)


def test_mean_figures_is_the_mean_of_each_figure_over_the_updates(
    continuous: SimpleNamespace,
) -> None:
    figures = [{"q": torch.tensor(1.0), "loss": torch.tensor(4.0)},
               {"q": torch.tensor(2.0), "loss": torch.tensor(8.0)}]  # fmt: skip
    assert mean_figures(figures) == {"q": 1.5, "loss": 6.0}
    assert mean_figures([]) == {}
    # What an update does not give does not count: an actor that learns at every second update.
    figures.append({"q": torch.tensor(6.0)})
    assert mean_figures(figures) == {"q": 3.0, "loss": 6.0}


def test_mlp_has_relu_between_its_layers_and_none_at_the_end(continuous: SimpleNamespace) -> None:
    network = continuous.utils.mlp(1, [1], 1)
    with torch.no_grad():
        for weight, value in zip(network.parameters(), [1.0, 0.0, -2.0, 0.5], strict=True):
            weight.fill_(value)
    # -2·max(x, 0) + 0.5: negative at the end, so no ReLU there; flat below 0, so one between.
    assert network(column(1.0, -1.0)).flatten().tolist() == [-1.5, 0.5]


def test_mlp_gives_large_inputs_without_gradients_what_it_gives_others(
    continuous: SimpleNamespace,
) -> None:
    network, inputs = continuous.utils.mlp(5, [40, 30], 2), torch.randn(1000, 5)
    with torch.no_grad():
        whole = network(inputs)
        parts = torch.cat([network(part) for part in inputs.split(50)])
    for other in [parts, network(inputs).detach()]:
        torch.testing.assert_close(whole, other, rtol=1e-5, atol=1e-6)


def test_training_twice_as_long_is_training_twice(continuous: SimpleNamespace) -> None:
    from conftest import fill

    ends = []
    for blocks in [(6,), (2, 4)]:
        torch.manual_seed(1)
        agent = make(continuous)
        buffer = fill(continuous.utils.ReplayBuffer(1, 1, "cpu", 20), random_batch(20, 1, 1))
        for iterations in blocks:
            agent.train(buffer, iterations, batch_size=5)
        ends.append(weights(agent))
    assert same_weights(*ends)
