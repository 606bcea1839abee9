"""Every formula of TD3+BC, by hand on known networks and by numpy on the agent's own weights."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fill, random_batch, same_weights, weights
from stubs import Given, TwinCritic, column, useless
from torch import Tensor, nn

STATE_DIM, ACTION_DIM = 3, 2


def make(
    continuous: SimpleNamespace, size: int = 1, max_action: float = 1.0, **options: Any
) -> Any:
    """An agent with one state and one action dimension, or `size` states and 2 actions."""
    return continuous.TD3_BC.TD3_BC(size, 1 if size == 1 else 2, max_action, "cpu", **options)


def make_buffer(continuous: SimpleNamespace, batch: Any) -> Any:
    """A buffer with room to spare."""
    rows, state_dim = batch.state.shape
    return fill(
        continuous.utils.ReplayBuffer(state_dim, batch.action.shape[1], "cpu", rows + 5), batch
    )


# --- networks


def test_actor_output_is_max_action_times_tanh(continuous: SimpleNamespace) -> None:
    actor = continuous.TD3_BC.Actor(1, 1, max_action=2.0)
    actor.network = Given(lambda state: state)
    actions = actor(column(math.atanh(0.5), 100.0, -100.0))
    torch.testing.assert_close(actions, column(1.0, 2.0, -2.0))


def test_critics_are_given_state_then_action(continuous: SimpleNamespace) -> None:
    critic = continuous.TD3_BC.Critic(2, 1)
    critic.q1_network = Given(lambda both: both @ column(1.0, 10.0, 100.0))
    critic.q2_network = Given(lambda both: -both @ column(1.0, 10.0, 100.0))
    state, action = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])
    assert [q.item() for q in critic(state, action)] == [321.0, -321.0]
    assert critic.q1(state, action).item() == 321.0


def test_hidden_layers_are_256_and_256_wide(continuous: SimpleNamespace) -> None:
    def widths(network: nn.Module) -> list[tuple[int, ...]]:
        return [tuple(weight.shape) for weight in network.parameters() if weight.dim() == 2]

    agent = continuous.TD3_BC.TD3_BC(11, 3, 1.0, "cpu")
    assert widths(agent.actor) == [(256, 11), (256, 256), (3, 256)]
    assert widths(agent.critic) == [(256, 14), (256, 256), (1, 256)] * 2


# --- the critics' target


def target_agent(continuous: SimpleNamespace, max_action: float) -> tuple[Any, list[Tensor]]:
    """π'(s') = s', Q' = 1 + 10a and 3 − 10a: the smaller is either, by the sign of a − 0.1."""
    agent = make(continuous, max_action=max_action, discount=0.9)
    seen: list[Tensor] = []

    def q1(state: Tensor, action: Tensor) -> Tensor:
        seen.append(action)
        return 1 + 10 * action

    agent.actor_target = Given(lambda state: state)
    agent.critic_target = TwinCritic(q1, lambda s, a: 3 - 10 * a)
    agent.actor, agent.critic = Given(useless), TwinCritic(useless, useless)
    return agent, seen


@pytest.mark.parametrize("m", [1.0, 2.0])
def test_target_is_the_smaller_critic_of_the_smoothed_target_action(
    continuous: SimpleNamespace, m: float
) -> None:
    agent, seen = target_agent(continuous, m)
    rows = 400
    next_state = torch.linspace(-m, m, rows).reshape(-1, 1)
    reward, not_done = torch.randn(rows, 1), (torch.rand(rows, 1) > 0.3).float()
    torch.manual_seed(5)
    epsilon = torch.randn(rows, 1).numpy()
    torch.manual_seed(5)
    target = agent.target_value(next_state, reward, not_done)

    noise = np.clip(0.2 * m * epsilon, -0.5 * m, 0.5 * m)
    action = np.clip(next_state.numpy() + noise, -m, m)
    q = np.minimum(1 + 10 * action, 3 - 10 * action)
    expected = reward.numpy() + not_done.numpy() * 0.9 * q
    np.testing.assert_allclose(seen[0].numpy(), action, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(target.numpy(), expected, rtol=1e-5, atol=1e-5)
    # The draws are of a kind that tells each clip from none.
    assert np.abs(0.2 * m * epsilon).max() > 0.5 * m
    assert (np.abs(next_state.numpy() + noise) > m).any()


# --- the losses


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


def test_actor_loss_is_minus_lambda_q_plus_the_cloning_error(continuous: SimpleNamespace) -> None:
    agent = make(continuous, alpha=3.0)
    agent.actor = Given(lambda state: 2 * state)
    agent.critic = TwinCritic(lambda s, a: s + 10 * a, useless)
    agent.actor_target, agent.critic_target = Given(useless), TwinCritic(useless, useless)
    # Q1 = -21 and 42: mean 10.5, mean of |Q1| 31.5; actions -2 and 4 against -1 and 1.
    loss = agent.actor_loss(column(-1.0, 2.0), column(-1.0, 1.0))
    assert loss.item() == pytest.approx(-3.0 / 31.5 * 10.5 + (1 + 9) / 2)


def test_no_gradient_passes_through_lambda(continuous: SimpleNamespace) -> None:
    agent = make(continuous, alpha=3.0)
    weight = torch.tensor(1.0, requires_grad=True)
    agent.actor = Given(lambda state: weight * state)
    agent.critic = TwinCritic(lambda s, a: 5 * a, useless)
    # λ = 3/mean|5s| = 3/7.5, constant: d/dw = -λ·5·mean(s) + mean(2(s - a)s). Were λ not held,
    # λ·mean Q would not depend on w at all.
    loss = agent.actor_loss(column(1.0, 2.0), column(0.0, 0.0))
    [gradient] = torch.autograd.grad(loss, [weight])
    assert gradient.item() == pytest.approx(-3 / 7.5 * 5 * 1.5 + (2 + 8) / 2)


def test_alpha_is_2_and_a_half_unless_told_otherwise(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.actor = Given(lambda state: state)
    agent.critic = TwinCritic(lambda s, a: a, useless)
    assert agent.actor_loss(column(1.0, 2.0), column(1.0, 2.0)).item() == pytest.approx(-2.5)


# --- who learns from what


NETWORKS = ["actor", "critic", "actor_target", "critic_target"]


@pytest.mark.parametrize(
    ("name", "expected"), [("critic", ["critic"]), ("actor", ["actor", "critic"])]
)
def test_a_loss_reaches_the_networks_it_should_and_no_other(
    continuous: SimpleNamespace, name: str, expected: list[str]
) -> None:
    agent, batch = make(continuous), random_batch(8, 1, 1)
    for network in NETWORKS:
        getattr(agent, network).requires_grad_(True)
    if name == "critic":
        target = agent.target_value(batch.next_state, batch.reward, batch.not_done)
        loss, _ = agent.critic_loss(batch.state, batch.action, target)
    else:
        loss = agent.actor_loss(batch.state, batch.action)
    reached = []
    for network in NETWORKS:
        parameters = list(getattr(agent, network).parameters())
        found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
        if any(gradient is not None for gradient in found):
            reached.append(network)
    # The actor's loss passes through the critic; `minimize` is what keeps the critic from learning.
    assert reached == expected


# --- one update


def test_actor_and_targets_move_at_every_second_update_after_the_critics(
    continuous: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, batch = make(continuous, tau=0.25), random_batch(6, 1, 1)
    steps: list[str] = []
    for name in ["critic", "actor"]:
        optimizer = getattr(agent, f"{name}_optimizer")

        def step(loss: Tensor, name: str = name, real: Any = optimizer.minimize) -> Any:
            steps.append(name)
            return real(loss)

        monkeypatch.setattr(optimizer, "minimize", step)
    for number in range(1, 6):
        steps.clear()
        old = weights(agent)
        figures = agent.update(batch)
        new = weights(agent)
        assert steps == (["critic"] if number % 2 else ["critic", "actor"])
        assert ("actor_loss" in figures) == (number % 2 == 0)
        for name in ["actor", "critic"]:
            for key in [key for key in new if key.startswith(f"{name}_target.")]:
                if number % 2:
                    assert torch.equal(old[key], new[key])
                    continue
                source = new[key.replace(f"{name}_target.", f"{name}.")]
                expected = 0.25 * source.double() + 0.75 * old[key].double()
                torch.testing.assert_close(new[key].double(), expected, rtol=1e-6, atol=1e-8)


def test_the_order_of_actor_steps_goes_on_after_loading(continuous: SimpleNamespace) -> None:
    agent, loaded, batch = make(continuous), make(continuous), random_batch(6, 1, 1)
    agent.update(batch)
    loaded.load_state_dict(agent.state_dict())
    assert "actor_loss" in loaded.update(batch)


def test_an_update_draws_the_noise_of_the_action_and_nothing_else(
    continuous: SimpleNamespace,
) -> None:
    agent, batch = make(continuous, STATE_DIM), random_batch(7, STATE_DIM, ACTION_DIM)
    for _ in range(2):
        torch.manual_seed(3)
        agent.update(batch)
        after = torch.get_rng_state()
        torch.manual_seed(3)
        torch.randn(7, ACTION_DIM)
        assert torch.equal(after, torch.get_rng_state())


# --- normalised states


def off_centre(rows: int = 40, seed: int = 0) -> Any:
    """A batch whose states lie anywhere but at mean 0 and std 1; the third dimension is constant.

    s and s' differ in all three, so that normalising one for the other would show.
    """
    batch = random_batch(rows, STATE_DIM, ACTION_DIM, seed=seed)
    scale, shift = torch.tensor([3.0, 0.1, 0.0]), torch.tensor([-7.0, 2.0, 5.0])
    next_state = batch.next_state * (scale + 0.5) + shift + 1
    return batch._replace(state=batch.state * scale + shift, next_state=next_state)


def statistics(states: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std + 1e-3 by numpy in float64, (S,) each."""
    array = states.double().numpy()
    return array.mean(0), np.sqrt(((array - array.mean(0)) ** 2).mean(0)) + 1e-3


def assert_statistics(agent: Any, states: Tensor) -> None:
    mean, std = statistics(states)
    np.testing.assert_allclose(agent.normalised.mean.numpy(), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(agent.normalised.std.numpy(), std, rtol=1e-5)


def plain(agent: Any) -> bool:
    """Whether states are taken as they are."""
    return bool((agent.normalised.mean == 0).all() and (agent.normalised.std == 1).all())


def test_statistics_are_mean_and_std_plus_a_thousandth_of_the_states_held(
    continuous: SimpleNamespace,
) -> None:
    agent, batch = make(continuous, STATE_DIM), off_centre()
    agent.train(make_buffer(continuous, batch), 1, 8)
    assert_statistics(agent, batch.state)
    assert agent.normalised.std[2].item() == pytest.approx(1e-3)


def test_statistics_of_many_states_far_from_zero_are_exact(continuous: SimpleNamespace) -> None:
    normalised = continuous.TD3_BC.Normalisation(2)
    states = torch.randn(300_000, 2) * torch.tensor([0.5, 20.0]) + torch.tensor([1e3, -50.0])
    normalised.fit(states)
    mean, std = statistics(states)
    np.testing.assert_allclose(normalised.mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(normalised.std.numpy(), std, rtol=1e-5)


def test_a_batch_of_one_transition_has_finite_statistics(continuous: SimpleNamespace) -> None:
    agent, batch = make(continuous, STATE_DIM), off_centre(1)
    figures = agent.train(make_buffer(continuous, batch), 4, 1)
    assert all(np.isfinite(value) for value in figures.values())
    assert torch.equal(agent.normalised.mean, batch.state[0])
    torch.testing.assert_close(agent.normalised.std, torch.full((STATE_DIM,), 1e-3))


def test_everything_the_agent_does_is_done_on_normalised_states(
    continuous: SimpleNamespace,
) -> None:
    agent, twin = make(continuous, STATE_DIM), make(continuous, STATE_DIM, normalize=False)
    batch = off_centre()
    twin.load_state_dict(agent.state_dict())
    agent.train(make_buffer(continuous, batch), 0)
    mean, std = agent.normalised.mean, agent.normalised.std
    by_hand = batch._replace(
        state=(batch.state - mean) / std, next_state=(batch.next_state - mean) / std
    )
    for _ in range(4):
        ends = []
        for one, given in [(agent, batch), (twin, by_hand)]:
            torch.manual_seed(8)
            one.update(given)
            ends.append({k: v for k, v in weights(one).items() if not k.startswith("normalised")})
        assert same_weights(*ends)
    assert np.array_equal(
        agent.select_action(batch.state.numpy()), twin.select_action(by_hand.state.numpy())
    )
    assert torch.equal(
        agent.value(batch.state, batch.action), twin.value(by_hand.state, by_hand.action)
    )


def test_statistics_stay_those_of_the_first_training(continuous: SimpleNamespace) -> None:
    agent, batch = make(continuous, STATE_DIM), off_centre()
    buffer = make_buffer(continuous, batch)
    agent.train(buffer, 1, 8)
    agent.train(fill(buffer, off_centre(5, seed=1)), 1, 8)
    assert_statistics(agent, batch.state)


def test_a_buffer_that_grows_before_the_first_update_counts(continuous: SimpleNamespace) -> None:
    agent, batch = make(continuous, STATE_DIM), off_centre()
    buffer = make_buffer(continuous, batch)
    generator = torch.get_rng_state()
    assert agent.train(buffer, 0) == {}
    assert_statistics(agent, batch.state)
    more = off_centre(5, seed=1)
    agent.train(fill(buffer, more), 0)
    assert_statistics(agent, torch.cat([batch.state, more.state]))
    assert torch.equal(generator, torch.get_rng_state())


def test_update_alone_and_no_normalize_take_states_as_they_are(continuous: SimpleNamespace) -> None:
    batch = off_centre()
    agent = make(continuous, STATE_DIM)
    agent.update(batch)
    assert plain(agent)
    agent.train(make_buffer(continuous, batch), 1, 8)  # its networks have learned from plain states
    assert plain(agent)
    agent = make(continuous, STATE_DIM, normalize=False)
    agent.train(make_buffer(continuous, batch), 1, 8)
    assert plain(agent)


@pytest.mark.parametrize("normalize", [True, False])
def test_statistics_are_saved_so_that_acting_and_learning_on_need_no_flag(
    continuous: SimpleNamespace, normalize: bool, tmp_path: Path
) -> None:
    agent, batch = make(continuous, STATE_DIM, normalize=normalize), off_centre()
    agent.train(make_buffer(continuous, batch), 2, 8)
    agent.save(tmp_path / "agent.pt")
    loaded = make(continuous, STATE_DIM, normalize=not normalize)
    loaded.load(tmp_path / "agent.pt")
    states = batch.state.numpy()
    assert np.array_equal(agent.select_action(states), loaded.select_action(states))
    ends = []
    for one in [agent, loaded]:
        torch.manual_seed(4)
        one.train(make_buffer(continuous, off_centre(30, seed=2)), 3, 8)
        ends.append(weights(one))
    assert same_weights(*ends)
    assert plain(loaded) != normalize


# --- acting and value


def test_select_action_is_the_actors_output_without_noise(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.actor = Given(lambda state: -state)
    agent.actor_target = Given(useless)
    assert agent.select_action(column(0.25, 0.5).numpy()).tolist() == [[-0.25], [-0.5]]
    assert agent.select_action(column(0.25)[0].numpy()).tolist() == [-0.25]


def test_value_is_the_first_critics(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.critic = TwinCritic(lambda s, a: s + 10 * a, useless)
    agent.critic_target = TwinCritic(useless, useless)
    assert agent.value(column(1.0, 2.0), column(3.0, 4.0)).tolist() == [[31.0], [42.0]]
