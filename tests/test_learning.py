"""Learning, end to end: problems whose answer is known.

Every time with networks narrow enough for seconds; at the papers' sizes with -m slow.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.data.replay import Batch, ReplayBuffer

slow = pytest.mark.slow


@pytest.fixture
def narrow(continuous: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """BCQ and DDPG with layers of 64 and larger steps: the same problems in a tenth of the time."""
    for module in (continuous.BCQ, continuous.DDPG):
        monkeypatch.setattr(module, "HIDDEN", [64, 64])
        monkeypatch.setattr(module, "LEARNING_RATE", 3e-3)
    monkeypatch.setattr(continuous.BCQ, "VAE_HIDDEN", [64, 64])


def in_buffer(state: Tensor, action: Tensor, reward: Tensor, not_done: Tensor) -> ReplayBuffer:
    """A buffer of these rows, every next state being the state."""
    buffer = ReplayBuffer(1, 1, "cpu", len(state))
    buffer._columns = Batch(state, action, state.clone(), reward, not_done)
    buffer.size, buffer.ptr = len(state), 0
    return buffer


@torch.no_grad()
def first_q(agent: Any, state: Tensor, action: Tensor) -> Tensor:
    """The critic's value, the first one's where there are two."""
    q = agent.critic(state, action)
    return q[0] if isinstance(q, tuple) else q


def solves_a_one_step_problem(agent: Any, max_action: float, iterations: int) -> None:
    """Reward -(a - s/2)², then the end: the best action is half the state."""
    state = torch.rand(2000, 1) * 2 - 1
    action = (torch.rand(2000, 1) * 2 - 1) * max_action
    reward = -((action - state / 2) ** 2)
    agent.train(in_buffer(state, action, reward, torch.zeros(2000, 1)), iterations, 64)
    states = np.linspace(-1, 1, 21)[:, None]
    chosen = agent.select_action(states)
    assert np.abs(chosen - states / 2).mean() < 0.1
    q = first_q(agent, state, action)
    assert (q - reward).abs().mean() < 0.1


@pytest.mark.parametrize("algorithm", ["BCQ", "DDPG"])
@pytest.mark.usefixtures("narrow")
def test_a_one_step_problem_is_solved(continuous: SimpleNamespace, algorithm: str) -> None:
    agent = continuous.main.ALGORITHMS[algorithm](1, 1, 2.0, "cpu")
    solves_a_one_step_problem(agent, 2.0, iterations=400)


@slow
@pytest.mark.parametrize("algorithm", ["BCQ", "DDPG"])
@pytest.mark.parametrize("max_action", [1.0, 2.0])
def test_a_one_step_problem_is_solved_at_the_papers_sizes(
    continuous: SimpleNamespace, algorithm: str, max_action: float
) -> None:
    agent = continuous.main.ALGORITHMS[algorithm](1, 1, max_action, "cpu")
    solves_a_one_step_problem(agent, max_action, iterations=600)


FAST = {"discount": 0.8, "tau": 0.05}  # the value settles within some hundred iterations
BEST = 0.5 / (1 - 0.8)  # the value of the best action the batch shows, -0.5, for ever
RETURN_RANGE = BEST - 0  # of the actions the batch shows: the worst of them, -1, earns nothing


def batch_with_a_gap() -> ReplayBuffer:
    """One state for ever, actions in [-1, -0.5] alone, reward a + 1: at most 0.5 a step.

    Above -0.5, where the batch is silent, the environment pays -1 (`true_value`). A critic that
    extrapolates the slope expects 2 a step at a = 1: four times what any policy can earn.
    """
    action = -1 + 0.5 * torch.rand(2000, 1)
    state = 0.1 * torch.randn(2000, 1)
    return in_buffer(state, action, action + 1, torch.ones(2000, 1))


def true_value(action: Tensor) -> float:
    """What always acting so earns, discounted; a perturbation of Φ beyond the batch is forgiven."""
    reward = torch.where(action <= -0.45, action + 1, -torch.ones_like(action))
    return float(reward.mean()) / (1 - FAST["discount"])


def learned(agent: Any, iterations: int) -> tuple[float, float]:
    """The value the agent believes its policy to have, and the one it has, after learning."""
    buffer = batch_with_a_gap()
    agent.train(buffer, iterations, 64)
    state = buffer.rows(range(200)).state
    action = torch.as_tensor(agent.select_action(state.numpy()))
    q = first_q(agent, state, action)
    return float(q.mean()), true_value(action)


def ddpg_overshoots_and_bcq_does_not(continuous: SimpleNamespace, iterations: int) -> None:
    ddpg = continuous.DDPG.DDPG(1, 1, 1.0, "cpu", **FAST)
    believed, earned = learned(ddpg, iterations)
    # It goes where the batch shows nothing, and believes in far more than there is to earn.
    assert believed > 2 * BEST and believed - earned > 2 * RETURN_RANGE
    assert earned == pytest.approx(-1 / (1 - FAST["discount"]))

    bcq = continuous.BCQ.BCQ(1, 1, 1.0, "cpu", **FAST)
    believed, earned = learned(bcq, iterations)
    # It takes the better of the batch's actions and values them as they are.
    batch_average = 0.25 / (1 - FAST["discount"])
    assert batch_average < earned <= BEST
    assert believed == pytest.approx(earned, rel=0.15)


@pytest.mark.usefixtures("narrow")
def test_on_a_batch_with_a_gap_offline_ddpg_overshoots_the_true_value_and_bcq_does_not(
    continuous: SimpleNamespace,
) -> None:
    torch.manual_seed(1)
    ddpg_overshoots_and_bcq_does_not(continuous, iterations=500)


@slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_so_it_is_at_the_papers_sizes(continuous: SimpleNamespace, seed: int) -> None:
    torch.manual_seed(seed)
    ddpg_overshoots_and_bcq_does_not(continuous, iterations=700)
