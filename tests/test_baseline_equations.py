"""BC, VAE_BC and DQN of continuous_BCQ against their formulas, by hand."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import random_batch, weights
from stubs import Given, column

# --- DQN: every dimension has its own values


def dqn(continuous: SimpleNamespace, action_dim: int = 2, **options: Any) -> Any:
    """An agent with one state and max_action 2."""
    return continuous.DQN.DQN(1, action_dim, 2.0, "cpu", **options)


def heads(*q: list[float]) -> Given:
    """A network that gives these values in every state, one list a dimension."""
    table = torch.tensor(q)
    return Given(lambda state: table.expand(len(state), *table.shape))


def test_ten_values_from_end_to_end_of_every_dimension(continuous: SimpleNamespace) -> None:
    agent = dqn(continuous)
    expected = [-2, -14 / 9, -10 / 9, -6 / 9, -2 / 9, 2 / 9, 6 / 9, 10 / 9, 14 / 9, 2]
    assert agent.values.tolist() == pytest.approx(expected)
    assert agent.network(torch.zeros(3, 1)).shape == (3, 2, 10)


def test_an_action_falls_in_the_nearest_bin(continuous: SimpleNamespace) -> None:
    agent = dqn(continuous, bins=5)  # -2, -1, 0, 1, 2
    action = torch.tensor([[-2.0, 0.4], [-1.4, 0.6], [1.6, 2.0]])
    assert agent.bin_of(action).tolist() == [[0, 2], [1, 3], [4, 4]]


def test_every_dimension_takes_its_own_best_value(continuous: SimpleNamespace) -> None:
    agent = dqn(continuous, bins=3)  # -2, 0, 2
    agent.network = heads([1.0, 5.0, 2.0], [7.0, 6.0, 0.0])
    assert agent.select_action(np.zeros(1)).tolist() == [0, -2]
    assert agent.select_action(np.zeros((4, 1))).tolist() == [[0, -2]] * 4


def test_the_target_is_a_dimensions_own_maximum(continuous: SimpleNamespace) -> None:
    agent = dqn(continuous, bins=3, discount=0.5)
    agent.network = heads([100.0] * 3, [100.0] * 3)  # must not be asked
    agent.network_target = heads([1.0, 5.0, 2.0], [7.0, -6.0, 0.0])
    y = agent.target_value(column(0.0, 0.0), column(1.0, 3.0), column(1.0, 0.0))
    assert y.tolist() == [[1 + 0.5 * 5, 1 + 0.5 * 7], [3, 3]]


def test_value_and_loss_are_of_the_bins_taken(continuous: SimpleNamespace) -> None:
    agent = dqn(continuous, bins=3)
    agent.network = heads([1.0, 5.0, 2.0], [7.0, -6.0, 0.0])
    state, action = column(0.0), torch.tensor([[1.9, -0.3]])  # bins 2 and 1
    q = agent.taken(agent.network(state), action)
    assert q.tolist() == [[2, -6]]
    assert agent.value(state, action).tolist() == [[-2]]
    # ((2 - 0)² + (-6 + 2)²) / 2
    assert float(agent.value_loss(q, torch.tensor([[0.0, -2.0]]))) == 10


def test_one_update_is_one_adam_step_down_the_squared_error(continuous: SimpleNamespace) -> None:
    torch.manual_seed(1)
    agent, batch = dqn(continuous), random_batch(16, 1, 2, max_action=2.0)
    network, target = deepcopy(agent.network), deepcopy(agent.network_target)
    place = ((batch.action + 2) / (4 / 9)).round().long()
    rows, dims = torch.meshgrid(torch.arange(16), torch.arange(2), indexing="ij")
    q = network(batch.state)[rows, dims, place]
    best = target(batch.next_state).max(2).values
    loss = ((q - (batch.reward + 0.99 * batch.not_done * best)) ** 2).mean()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    loss.backward()
    optimiser.step()

    figures = agent.update(batch)
    assert float(figures["value_loss"]) == pytest.approx(loss.item(), rel=1e-5)
    assert float(figures["q"]) == pytest.approx(q.mean().item(), rel=1e-4, abs=1e-6)
    networks = [network, target, agent.network, agent.network_target]
    for now, old, new, moved in zip(*(one.parameters() for one in networks), strict=True):
        torch.testing.assert_close(new, now, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(moved, 0.005 * now + 0.995 * old, rtol=1e-5, atol=1e-6)


# --- cloning


def test_bc_is_one_adam_step_down_the_mean_squared_error(continuous: SimpleNamespace) -> None:
    agent, batch = continuous.BC.BC(3, 2, 2.0, "cpu"), random_batch(16, max_action=2.0)
    actor = continuous.DDPG.Actor(3, 2, 2.0)
    actor.load_state_dict(agent.actor.state_dict())
    loss = ((actor(batch.state) - batch.action) ** 2).mean()
    optimiser = torch.optim.Adam(actor.parameters(), lr=1e-3)
    loss.backward()
    optimiser.step()
    assert float(agent.update(batch)["actor_loss"]) == pytest.approx(loss.item(), rel=1e-5)
    for weight, expected in zip(agent.actor.parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-6)
    assert np.allclose(agent.select_action(batch.state.numpy()), agent.actor(batch.state).detach())


def test_vae_bc_learns_the_vae_as_bcq_does(continuous: SimpleNamespace) -> None:
    cloning, bcq = continuous.VAE_BC.VAE_BC(3, 2, 1.0, "cpu"), continuous.BCQ.BCQ(3, 2, 1.0, "cpu")
    cloning.vae.load_state_dict(bcq.vae.state_dict())
    for agent in [cloning, bcq]:
        torch.manual_seed(7)  # the VAE's noise is the first draw of an update
        agent.update(random_batch(16))
    ends = [{k: v for k, v in weights(a).items() if k.startswith("vae.")} for a in (cloning, bcq)]
    assert ends[0].keys() == ends[1].keys() and ends[0]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_bcq_with_phi_0_and_one_candidate_acts_as_vae_bc(continuous: SimpleNamespace) -> None:
    bcq = continuous.BCQ.BCQ(3, 2, 1.0, "cpu", phi=0.0, acting_candidates=1)
    cloning = continuous.VAE_BC.VAE_BC(3, 2, 1.0, "cpu")
    cloning.vae.load_state_dict(bcq.vae.state_dict())
    for state in [np.ones(3), np.random.default_rng(0).normal(size=(20, 3))]:
        actions = []
        for agent in [bcq, cloning]:
            torch.manual_seed(3)
            actions.append(agent.select_action(state))
        assert np.array_equal(*actions)


def test_vae_bc_acts_by_one_clipped_sample(continuous: SimpleNamespace) -> None:
    agent = continuous.VAE_BC.VAE_BC(3, 2, 1.0, "cpu")
    state = np.ones((50, 3), np.float32)
    torch.manual_seed(3)
    actions = agent.select_action(state)
    torch.manual_seed(3)
    z = torch.randn(50, 4).clamp(-0.5, 0.5)
    expected = agent.vae.decode(torch.as_tensor(state), z).detach().numpy()
    assert np.array_equal(actions, expected) and len(np.unique(actions[:, 0])) > 40
