"""Rows whose exact state is kept: from it the next step is the original, in every environment."""

import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import load_variant, without_digests
from gymnasium import spaces

from common.data.batch_files import column_path
from common.environment import rollout, simulator
from common.environment.simulator import Snapshots, restore
from common.errors import InputError
from common.files import write_array
from common.run import true_values

with warnings.catch_warnings(action="ignore"):  # its module crashes where its warning is an error
    import Box2D  # type: ignore[import-untyped]  # noqa: F401

discrete, continuous = load_variant("discrete_BCQ"), load_variant("continuous_BCQ")
STICKY = "PongNoFrameskip-v0"
DISCRETE = ["CartPole-v1", "LunarLander-v3", "Acrobot-v1", "FrozenLake-v1", STICKY]


class Noise(gym.Env[np.ndarray, int]):
    """Draws what it shows from no generator of gymnasium's."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)
    drawn = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.step(0)[0], {}

    def step(self, action: int) -> Any:
        Noise.drawn += 1
        return np.array([Noise.drawn % 97 / 97], np.float32), 1.0, False, Noise.drawn % 10 == 0, {}


gym.register("ToyNoise-v0", Noise, max_episode_steps=20)  # type: ignore[arg-type]


def played(env_id: str, steps: int, size: int, kept: bool = True) -> tuple[Any, Any]:
    """A ring of random play, and its kept rows."""
    utils = continuous.utils if env_id == "Pendulum-v1" else discrete.utils
    env: Any = utils.make_env(env_id)
    if utils is discrete.utils:
        buffer = utils.make_buffer(env, "cpu", size)
    else:
        buffer = utils.ReplayBuffer(*utils.dimensions(env)[:2], "cpu", size)
    if kept:
        env = Snapshots(env, range(steps - size, steps), seed=0)
    env.action_space.seed(3)

    def act(state: np.ndarray, timestep: int) -> Any:
        if kept:
            env.keep(timestep)
        return env.action_space.sample()

    for step in rollout.interact(env, act, steps, 5):
        buffer.add(*step.transition)
    return buffer, env.rows(buffer) if kept else None


def fresh(env_id: str) -> Any:
    """An environment without a time limit, of the variant that serves it."""
    utils = continuous.utils if env_id == "Pendulum-v1" else discrete.utils
    return utils.make_env(env_id, max_episode_steps=-1)


@pytest.mark.parametrize(
    ("env_id", "size"),
    [*((env_id, 120) for env_id in [*DISCRETE, "Pendulum-v1"]), ("CartPole-v1", 70), (STICKY, 70)],
)
def test_from_a_kept_row_the_next_step_is_the_original(env_id: str, size: int) -> None:
    buffer, kept = played(env_id, 120, size)
    assert kept.dtype == np.int64 and len(np.unique(kept[:, 0])) == len(kept)
    # Of a ring the first episode's beginning may be gone, which Atari alone does not need.
    assert len(kept) == size if size == 120 or env_id == STICKY else 20 < len(kept) < size
    env = fresh(env_id)
    for one in kept[:: 1 + len(kept) // 30]:
        row = buffer.rows([int(one[0])])
        shown = restore(env, one[1:], int(one[0]), buffer)
        np.testing.assert_array_equal(np.float32(shown), row.state[0].float())
        action = row.action[0].numpy() if env_id == "Pendulum-v1" else int(row.action)
        following, reward, terminated, *_ = env.step(action)
        assert terminated == (row.not_done.item() == 0)
        if not terminated:
            np.testing.assert_array_equal(np.float32(following), row.next_state[0].float())
        if env_id == STICKY:
            reward = np.clip(reward, -1, 1)
        assert np.float32(reward) == row.reward.item()


@pytest.mark.parametrize("env_id", ["LunarLander-v3", STICKY])
def test_what_is_kept_changes_nothing_that_is_played(env_id: str) -> None:
    with_states, without = played(env_id, 60, 60)[0], played(env_id, 60, 60, kept=False)[0]
    for one, other in zip(with_states.rows(range(60)), without.rows(range(60)), strict=True):
        assert torch.equal(one, other)


def test_a_row_is_kept_only_where_the_way_to_it_is_held() -> None:
    _, kept = played("CartPole-v1", 200, 30)
    steps = kept[:, 1]
    assert (kept[:, 0] >= steps).all() and len(kept) < 30  # an episode's first rows may be gone
    assert steps.max() > 0 and len(kept) <= simulator.KEPT


def test_half_a_thousand_to_a_thousand_rows_are_kept_drawn_from_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert simulator.KEPT == 1000
    monkeypatch.setattr(simulator, "KEPT", 50)
    _, kept = played("CartPole-v1", 400, 400)
    assert 35 < len(kept) < 65 and kept[:, 0].max() > 300 and kept[:, 0].min() < 100
    assert not np.array_equal(kept[:, 0], range(len(kept)))


@pytest.mark.parametrize("stop", [20, 24], ids=["between episodes", "within one"])
def test_a_run_that_goes_on_keeps_what_one_never_stopped_keeps(stop: int) -> None:
    def play(one: Snapshots, episode: rollout.EpisodeUnderWay, begin: int, end: int) -> None:
        def act(state: np.ndarray, timestep: int) -> int:
            one.keep(timestep)
            return timestep % 2

        for _ in rollout.interact(one, act, end, 7, first=begin, episode=episode):
            pass

    def make() -> tuple[Snapshots, rollout.EpisodeUnderWay]:
        env = Snapshots(discrete.utils.make_env("CartPole-v1", max_episode_steps=10), range(40), 1)
        return env, rollout.EpisodeUnderWay(env)

    whole, first, second = make(), make(), make()
    play(*whole, 0, 40)
    play(*first, 0, stop)
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    play(*second, stop, 40)
    assert len(whole[0].states) == 40 and whole[0].states.keys() == second[0].states.keys()
    for timestep, state in whole[0].states.items():
        np.testing.assert_array_equal(state, second[0].states[timestep])


# --- value estimates


class Steady:
    """A policy that takes action 1 always, and says 2 of every pair."""

    device = torch.device("cpu")

    @staticmethod
    def select_action(states: np.ndarray) -> np.ndarray:
        return np.ones(len(states), np.int64)

    @staticmethod
    def value(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        assert action.dtype == torch.int64 and action.shape == (len(state), 1)
        return torch.full((len(state), 1), 2.0)


def measure(prefix: Path, buffer: Any, env_id: str, **options: Any) -> Any:
    """The estimates of `Steady` on a batch, as main.py makes them."""
    args = Namespace(**{"seed": 0, "discount": 0.9, "true_value": True} | options)
    make_env = discrete.main.as_learned_from
    return true_values.ValueEstimates(Steady(), args, prefix, buffer, lambda: make_env(env_id))


def saved(folder: Path, env_id: str, steps: int = 120) -> tuple[Path, Any]:
    """A batch in its files, read again."""
    buffer, kept = played(env_id, steps, steps)
    buffer.save(folder / "b", {}, kept)
    again = discrete.utils.make_buffer(discrete.utils.make_env(env_id), "cpu", 1)
    again.load(folder / "b")
    return folder / "b", again


def test_the_true_value_of_kept_rows_is_the_return_played_from_them(tmp_path: Path) -> None:
    prefix, buffer = saved(tmp_path, "CartPole-v1")
    estimates = measure(prefix, buffer, "CartPole-v1")
    assert estimates.record == {"number": 100, "source": "simulator"}
    returns = []
    for row in estimates.positions:
        pair = buffer.rows([int(row)])
        env = gym.make("CartPole-v1", max_episode_steps=-1)
        env.reset(seed=0)
        env.unwrapped.state = pair.state[0].double().numpy()  # type: ignore[attr-defined]
        total, weight, action, ended = 0.0, 1.0, int(pair.action), False
        while not ended and weight >= 1e-3:
            _, reward, ended, _, _ = env.step(action)
            total, weight, action = total + weight * float(reward), weight * 0.9, 1
        returns.append(total)
    found = estimates()
    assert found == {"estimate": 2.0, "true": pytest.approx(np.mean(returns), rel=1e-6)}
    assert estimates() == found


def test_true_values_of_atari_are_of_rewards_as_they_are_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(true_values, "PAIRS", 3)
    prefix, buffer = saved(tmp_path, STICKY, 60)
    inner = discrete.main.as_learned_from(STICKY)
    assert isinstance(inner, gym.wrappers.TransformReward)
    assert [inner.func(reward) for reward in (-7.0, 0.5, 4.0)] == [-1.0, 0.5, 1.0]
    estimates = measure(prefix, buffer, STICKY, discount=0.5)
    assert estimates.record == {"number": 3, "source": "simulator"}
    assert estimates() == estimates()


def test_without_kept_rows_a_discrete_batch_is_valued_at_episode_starts(tmp_path: Path) -> None:
    prefix, buffer = saved(tmp_path, "CartPole-v1")
    (tmp_path / "b_simulator.npy").unlink()
    estimates = measure(prefix, buffer, "CartPole-v1")
    assert estimates.record == {"number": 100, "source": "episode starts"}
    found = estimates()
    assert found["estimate"] == 2.0 and 5 < found["true"] < 10  # falls over, always pushed one way


def test_an_environment_that_does_not_repeat_itself_is_refused(tmp_path: Path) -> None:
    prefix, buffer = saved(tmp_path, "ToyNoise-v0")
    with pytest.raises(InputError, match="or ToyNoise-v0 does not repeat itself"):
        measure(prefix, buffer, "ToyNoise-v0")
    assert measure(prefix, buffer, "ToyNoise-v0", true_value=False).record["source"] == "batch"


@pytest.mark.parametrize("env_id", ["CartPole-v1", STICKY])
def test_damaged_states_are_refused_before_an_emulator_sees_them(
    env_id: str, tmp_path: Path
) -> None:
    prefix, buffer = saved(tmp_path, env_id, 40)
    path = column_path(without_digests(prefix), "simulator")
    buffer.record = {}  # of a batch without a digest, which would tell at once
    kept = np.load(path)
    damages = [kept[:, :4], kept + 2**40 * (np.arange(kept.shape[1]) == 8), kept[:, 0]]
    damages.append(np.column_stack([kept[::-1, 0], kept[:, 1:]]))
    for damage in damages[: 4 if env_id == "CartPole-v1" else 3]:
        write_array(path, damage if damage.shape != kept.shape or (damage != kept).any() else -kept)
        with pytest.raises(InputError, match=r"b_simulator\.npy is damaged or of another batch"):
            measure(prefix, buffer, env_id)


def test_a_frame_batch_without_states_takes_those_of_an_older_one_away(tmp_path: Path) -> None:
    buffer, kept = played(STICKY, 20, 20)
    buffer.save(tmp_path / "b", {}, kept)
    assert (tmp_path / "b_simulator.npy").exists()
    buffer.save(tmp_path / "b", {})
    assert not (tmp_path / "b_simulator.npy").exists()
