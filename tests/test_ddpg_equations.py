"""Every formula of DDPG on networks with known answers; expected values are worked out by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import random_batch
from stubs import Given, column, useless
from torch import Tensor, nn


def make(continuous: SimpleNamespace, max_action: float = 1.0, **options: Any) -> Any:
    """A DDPG agent with one state and one action dimension."""
    return continuous.DDPG.DDPG(1, 1, max_action, "cpu", **options)


def test_actor_output_is_max_action_times_tanh(continuous: SimpleNamespace) -> None:
    actor = continuous.DDPG.Actor(1, 1, max_action=2.0)
    actor.network = Given(lambda state: state)
    actions = actor(column(math.atanh(0.5), 100.0, -100.0))
    torch.testing.assert_close(actions, column(1.0, 2.0, -2.0))


def test_critic_is_given_state_then_action(continuous: SimpleNamespace) -> None:
    critic = continuous.DDPG.Critic(2, 1)
    critic.network = Given(lambda both: both @ column(1.0, 10.0, 100.0))
    assert critic(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])).item() == 321.0


def test_target_is_reward_plus_discounted_target_value_of_the_target_action(
    continuous: SimpleNamespace,
) -> None:
    agent = make(continuous, discount=0.9)
    agent.actor_target = Given(lambda state: 2 * state)
    agent.critic_target = Given(lambda state, action: state + 10 * action)
    agent.actor = agent.critic = Given(useless)
    # Q'(1, 2) = 21, Q'(2, 4) = 42; the last transition is terminal.
    target = agent.target_value(column(1.0, 2.0, 2.0), column(3.0, 5.0, 7.0), column(1.0, 1.0, 0.0))
    torch.testing.assert_close(target, column(3 + 0.9 * 21, 5 + 0.9 * 42, 7.0))


def test_critic_loss_is_the_mean_squared_error(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.critic = Given(lambda state, action: state + action)
    loss, mean_q = agent.critic_loss(column(1.0, 2.0), column(0.5, 0.5), column(0.5, 4.5))
    assert loss.item() == pytest.approx((1.0 + 4.0) / 2)
    assert mean_q.item() == pytest.approx(2.0)
    assert not mean_q.requires_grad


def test_actor_loss_is_minus_the_mean_q_of_its_own_action(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.actor = Given(lambda state: 2 * state)
    agent.critic = Given(lambda state, action: state + 10 * action)
    agent.actor_target = agent.critic_target = Given(useless)
    assert agent.actor_loss(column(1.0, 2.0)).item() == pytest.approx(-(21 + 42) / 2)


def test_critic_loss_does_not_reach_the_actor(continuous: SimpleNamespace) -> None:
    agent, batch = make(continuous), random_batch(8, 1, 1)
    target = agent.target_value(batch.next_state, batch.reward, batch.not_done)
    loss, _ = agent.critic_loss(batch.state, batch.action, target)
    reached = torch.autograd.grad(loss, list(agent.actor.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in reached)


def test_an_update_trains_the_critic_then_the_actor(
    continuous: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, batch = make(continuous), random_batch(6, 1, 1)
    steps: list[str] = []
    for name in ["critic", "actor"]:
        optimizer = getattr(agent, f"{name}_optimizer")

        def step(loss: Tensor, name: str = name, real: Any = optimizer.minimize) -> Any:
            steps.append(name)
            return real(loss)

        monkeypatch.setattr(optimizer, "minimize", step)
    agent.update(batch)
    assert steps == ["critic", "actor"]


def test_select_action_is_the_actors_output_without_noise(continuous: SimpleNamespace) -> None:
    agent = make(continuous)
    agent.actor = Given(lambda state: -state)
    agent.actor_target = Given(useless)
    assert agent.select_action(column(0.25, 0.5).numpy()).tolist() == [[-0.25], [-0.5]]
    assert agent.select_action(column(0.25)[0].numpy()).tolist() == [-0.25]


def test_hidden_layers_are_400_and_300_wide(continuous: SimpleNamespace) -> None:
    def widths(network: nn.Module) -> list[tuple[int, ...]]:
        return [tuple(weight.shape) for weight in network.parameters() if weight.dim() == 2]

    agent = continuous.DDPG.DDPG(11, 3, 1.0, "cpu")
    assert widths(agent.actor) == [(400, 11), (300, 400), (3, 300)]
    assert widths(agent.critic) == [(400, 14), (300, 400), (1, 300)]
