"""Interaction and evaluation: true successors, ends told apart, seeds, generators left alone."""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from toy_envs import Walk

from common.data.replay import Batch, ReplayBuffer
from common.environment import rollout


@pytest.fixture(autouse=True)
def _empty_log() -> Iterator[None]:
    Walk.log.clear()
    yield
    Walk.log.clear()


def walk(length: int | str | None, limit: int | None = None) -> gym.Env:
    """A Walk, cut by a time limit where one is given."""
    return Walk(length) if limit is None else TimeLimit(Walk(length), limit)


def still(state: np.ndarray, timestep: int) -> np.ndarray:
    """The policy that does nothing."""
    return np.zeros(1, np.float32)


def recorded(env: gym.Env, timesteps: int, seed: int = 0) -> Batch:
    """The transitions of so many steps as a replay buffer holds them."""
    buffer = ReplayBuffer(2, 1, "cpu", timesteps)
    for step in rollout.interact(env, still, timesteps, seed):
        buffer.add(*step.transition)
    return buffer.rows(range(timesteps))


# --- interacting


def test_a_time_limit_leaves_not_done_at_1_and_next_state_is_the_last_observation() -> None:
    batch = recorded(walk(length=None, limit=4), timesteps=10)
    assert batch.not_done.flatten().tolist() == [1] * 10
    assert batch.state[:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert batch.next_state[:, 1].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    # Every episode has its own start, and its transitions keep to it.
    assert torch.equal(batch.state[:, 0], batch.next_state[:, 0])
    assert len(batch.state[:, 0].unique()) == 3


def test_a_terminal_state_has_not_done_0() -> None:
    batch = recorded(walk(length=3, limit=100), timesteps=7)
    assert batch.not_done.flatten().tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert batch.next_state[:, 1].tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_a_terminal_state_on_the_last_allowed_step_has_not_done_0() -> None:
    batch = recorded(walk(length=3, limit=3), timesteps=6)
    assert batch.not_done.flatten().tolist() == [1, 1, 0, 1, 1, 0]


def test_pendulum_never_terminates_and_its_cut_transitions_go_on_where_they_were(
    continuous: SimpleNamespace,
) -> None:
    env = continuous.utils.make_env("Pendulum-v1")
    buffer = ReplayBuffer(3, 1, "cpu", 450)
    ends = []
    for step in rollout.interact(env, lambda s, t: np.ones(1, np.float32), 450, 0):
        buffer.add(*step.transition)
        if step.episode_return is not None:
            ends.append(step.timestep)
    assert ends == [199, 399]
    batch = buffer.rows(range(450))
    assert batch.not_done.flatten().tolist() == [1] * 450
    # One step turns the pendulum by at most its largest speed (8) times its time step (0.05).
    angle, after = (torch.atan2(part[:, 1], part[:, 0]) for part in [batch.state, batch.next_state])
    turned = torch.remainder(after - angle + torch.pi, 2 * torch.pi) - torch.pi
    assert turned.abs().max() < 0.4 + 1e-4
    assert torch.equal(batch.next_state[198], batch.state[199])
    assert not torch.equal(batch.next_state[199], batch.state[200])


def test_the_return_of_an_episode_is_given_with_its_last_step() -> None:
    steps = list(rollout.interact(walk(length=3), still, 7, 0))
    assert [step.episode_return for step in steps] == [None, None, 3.0, None, None, 3.0, None]
    assert [step.finished for step in steps] == [[], [], [(3, 3.0)], [], [], [(6, 3.0)], []]
    assert [step.timestep for step in steps] == list(range(7))


def test_the_policy_is_given_each_state_and_its_timestep() -> None:
    given: list[tuple[float, int]] = []

    def act(state: np.ndarray, timestep: int) -> np.ndarray:
        given.append((float(state[1]), timestep))
        return np.zeros(1, np.float32)

    list(rollout.interact(walk(length=2), act, 5, 0))
    assert given == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4)]


def test_interaction_is_seeded_once_so_that_episodes_differ_and_runs_agree() -> None:
    one, again = recorded(walk(3), 9, seed=5), recorded(walk(3), 9, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert len(one.state[:, 0].unique()) == 3
    assert not torch.equal(one.state, recorded(walk(3), 9, seed=6).state)
    seeds = [event[1] for event in Walk.log if event[0] == "reset"]
    assert seeds == [5, None, None, 5, None, None, 6, None, None]


# --- evaluating


def zeros(states: np.ndarray) -> np.ndarray:
    """The batched policy that does nothing."""
    return np.zeros((len(states), 1), np.float32)


def test_episodes_are_seeded_seed_plus_100_plus_i_and_start_apart() -> None:
    seen: list[np.ndarray] = []

    def act(states: np.ndarray) -> np.ndarray:
        seen.append(states.copy())
        return zeros(states)

    rollout.evaluate(act, [walk(4) for _ in range(5)], seed=7)
    assert [event[1] for event in Walk.log if event[0] == "reset"] == [107, 108, 109, 110, 111]
    assert len(np.unique(seen[0][:, 0])) == 5


def test_every_episode_is_played_to_its_own_end_exactly_once_in_one_call_a_step() -> None:
    sizes: list[int] = []

    def act(states: np.ndarray) -> np.ndarray:
        sizes.append(len(states))
        return zeros(states)

    lengths: list[int] = []
    for i in range(6):
        env = Walk("drawn")
        env.reset(seed=100 + i)
        lengths.append(int(env.length or 0))
    assert len(set(lengths)) > 1
    Walk.log.clear()

    returns = rollout.evaluate(act, [walk("drawn", limit=50) for _ in range(6)], seed=0)
    assert returns == lengths  # reward 1 a step, in the order of the episodes
    assert sizes == [sum(n > t for n in lengths) for t in range(max(lengths))]
    assert sum(event[0] == "step" for event in Walk.log) == sum(lengths)
    assert sum(event[0] == "reset" for event in Walk.log) == 6


def test_a_time_limit_ends_an_evaluated_episode() -> None:
    assert rollout.evaluate(zeros, [walk(None, limit=5) for _ in range(2)], seed=0) == [5.0, 5.0]


def test_each_running_episode_gets_the_action_for_its_own_state() -> None:
    def act(states: np.ndarray) -> np.ndarray:
        return states[:, :1]

    taken: list[tuple[float, float]] = []

    class Checked(Walk):
        def step(self, action: np.ndarray) -> Any:
            taken.append((self.start, float(action[0])))
            return super().step(action)

    rollout.evaluate(act, [Checked("drawn") for _ in range(4)], seed=0)
    assert len(taken) > 12
    assert all(start == pytest.approx(action) for start, action in taken)


def test_every_evaluation_sees_the_same_starts_and_the_same_random_draws() -> None:
    def noisy(states: np.ndarray) -> np.ndarray:
        seen.append((states.copy(), torch.rand(1).item(), np.random.rand(), random.random()))
        return zeros(states)

    runs = []
    for _ in range(2):
        seen: list[Any] = []
        rollout.evaluate(noisy, [walk("drawn") for _ in range(3)], seed=1)
        runs.append(seen)
        torch.rand(3), np.random.rand(3), random.random()  # training goes on
    assert all(np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize(
    "draw",
    [random.random, lambda: float(np.random.rand()), lambda: torch.rand(1).item()],
    ids=["python", "numpy", "torch"],
)
def test_evaluating_leaves_every_generator_as_it_was(draw: Callable[[], float]) -> None:
    def greedy(states: np.ndarray) -> np.ndarray:
        torch.randn(9), np.random.rand(9), random.random()
        return zeros(states)

    rollout.seed_generators(3)
    expected = [draw() for _ in range(3)]
    rollout.seed_generators(3)
    drawn = [draw()]
    rollout.evaluate(greedy, [walk(3) for _ in range(2)], seed=0)
    drawn += [draw(), draw()]
    assert drawn == expected


def test_generators_are_put_back_also_when_an_evaluation_fails() -> None:
    def fails(states: np.ndarray) -> np.ndarray:
        raise RuntimeError("no action")

    rollout.seed_generators(3)
    expected = torch.rand(1)
    rollout.seed_generators(3)
    with pytest.raises(RuntimeError, match="no action"):
        rollout.evaluate(fails, [walk(3) for _ in range(2)], seed=0)
    assert torch.equal(torch.rand(1), expected)


def test_evaluating_leaves_an_interaction_under_way_alone() -> None:
    def starts(evaluating: bool) -> list[float]:
        seen = []
        for step in rollout.interact(walk(3), still, 12, 0):
            seen.append(float(step.state[0]))
            if evaluating:
                rollout.evaluate(zeros, [walk("drawn") for _ in range(2)], seed=0)
        return seen

    assert starts(evaluating=True) == starts(evaluating=False)


# --- the behavioural policy's noise


def noisy_policy(
    continuous: SimpleNamespace, std: float, output: float = 0.0, seed: int = 0
) -> Any:
    """The policy that always wants `output`, on Pendulum, whose max_action is 2."""
    agent = SimpleNamespace(select_action=lambda state: np.full(1, output, np.float32))
    env = continuous.utils.make_env("Pendulum-v1")
    return continuous.main.NoisyPolicy(agent, env, std, seed)


def draws(policy: Any, uniform: bool, count: int = 4000) -> np.ndarray:
    """(count,) actions."""
    return np.array([policy(np.zeros(3), uniform=uniform)[0] for _ in range(count)])


def test_noise_is_gaussian_in_units_of_max_action(continuous: SimpleNamespace) -> None:
    actions = draws(noisy_policy(continuous, std=0.1, output=0.5), uniform=False)
    assert actions.mean() == pytest.approx(0.5, abs=0.02)
    assert actions.std() == pytest.approx(0.2, abs=0.01)  # 0.1·2
    assert actions.dtype == np.float32


def test_noisy_actions_are_clipped_to_the_bounds(continuous: SimpleNamespace) -> None:
    actions = draws(noisy_policy(continuous, std=5.0), uniform=False, count=200)
    assert (actions.min(), actions.max()) == (-2, 2)


def test_without_noise_the_policy_is_the_agents(continuous: SimpleNamespace) -> None:
    assert set(draws(noisy_policy(continuous, std=0.0, output=1.25), uniform=False, count=9)) == {
        1.25
    }


def test_uniform_actions_fill_the_action_space(continuous: SimpleNamespace) -> None:
    actions = draws(noisy_policy(continuous, std=0.0, output=2.0), uniform=True)
    counts, _ = np.histogram(actions, bins=4, range=(-2, 2))
    assert counts.sum() == 4000 and counts.min() > 850 and counts.max() < 1150


def test_the_noise_follows_its_seed_and_no_global_generator(continuous: SimpleNamespace) -> None:
    runs = []
    for seed, reseed in [(1, 0), (1, 99), (2, 0)]:
        policy = noisy_policy(continuous, std=0.1, seed=seed)
        rollout.seed_generators(reseed)
        runs.append([draws(policy, False, 5).tolist(), draws(policy, True, 5).tolist()])
    assert runs[0] == runs[1] and runs[0] != runs[2]
