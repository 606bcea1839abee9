"""Value estimates and true values: known chains, MuJoCo put back to a row, no future in sight."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import fill, load_variant, random_batch, without_digests
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import Reach, Walk

from common.data.batch_files import column_path
from common.data.replay import GrowingBatch, ReplayBuffer
from common.environment import rollout, simulator
from common.errors import InputError
from common.files import write_array
from common.run import true_values
from common.run.collecting import collect

variant = load_variant("continuous_BCQ")
MUJOCO = ["Hopper-v4", "Walker2d-v4", "HalfCheetah-v4"]


def zeros(states: np.ndarray) -> np.ndarray:
    """The policy that stands still."""
    return np.zeros((len(states), 1), np.float32)


def begin(env: gym.Env, seed: int = 0) -> np.ndarray:
    """The first state of an episode."""
    return env.reset(seed=seed)[0]


# --- Monte-Carlo returns


@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_return_of_a_chain_of_ones_is_the_geometric_sum(length: int) -> None:
    envs: list[gym.Env] = [Walk(length), Walk(3)]
    first = [begin(env) for env in envs]
    played = rollout.play(zeros, envs, first, np.zeros((2, 1)), 0.9)
    expected = [sum(0.9**t for t in range(n)) for n in (length, 3)]
    assert played.returns.tolist() == pytest.approx(expected)
    assert played.lengths.tolist() == [length, 3]


def test_a_sum_ends_where_a_reward_counts_less_than_a_thousandth() -> None:
    env = Walk(None)
    played = rollout.play(zeros, [env], [begin(env)], np.zeros((1, 1)), 0.5)
    assert env.steps == 10  # 0.5⁹ = 0.002 counts, 0.5¹⁰ < 0.001 does not
    assert played.returns.tolist() == [sum(0.5**t for t in range(10))]


class Follow(Reach):
    """Reach whose reward is the first coordinate of the action."""

    def step(self, action: np.ndarray) -> Any:
        state, _, terminated, truncated, info = super().step(action)
        return state, float(action[0]), terminated, truncated, info


def test_the_given_action_comes_first_and_then_the_policys() -> None:
    envs: list[gym.Env] = [Follow(), Follow()]
    first = [begin(env, seed) for seed, env in enumerate(envs)]

    def policy(states: np.ndarray) -> np.ndarray:
        return np.full((len(states), 2), 0.25, np.float32)

    played = rollout.play(policy, envs, first, np.array([[1.0, 0], [-1, 0]]), 0.5)
    later = 0.25 * sum(0.5**t for t in range(1, 10))
    assert played.returns.tolist() == pytest.approx([1 + later, -1 + later])


# --- the simulator put back


@pytest.mark.parametrize("env_id", MUJOCO)
def test_from_the_stored_state_the_next_step_is_the_original(env_id: str) -> None:
    original, again = variant.utils.make_env(env_id), variant.utils.make_env(env_id)
    original.reset(seed=0)
    original.action_space.seed(0)
    clipped = 0
    for _ in range(300):
        action = original.action_space.sample()
        state = simulator.simulator_state(original)
        assert state is not None
        observation = np.asarray(original.unwrapped._get_obs())
        clipped += bool((np.abs(observation) == 10).any())
        assert np.array_equal(simulator.restore(again, state, 0, None), observation)
        expected, reward, terminated, truncated, _ = original.step(action)
        given, given_reward, given_terminated, _, _ = again.step(action)
        np.testing.assert_allclose(given, expected, rtol=0, atol=1e-9)
        assert given_reward == pytest.approx(reward, abs=1e-9)
        assert given_terminated == terminated
        if terminated or truncated:
            original.reset()
    assert clipped > 50 or env_id != "Walker2d-v4"  # where the observation does not tell all


@pytest.mark.parametrize("env_id", MUJOCO)
def test_from_an_unclipped_observation_too(env_id: str) -> None:
    original, again = variant.utils.make_env(env_id), variant.utils.make_env(env_id)
    state, _ = original.reset(seed=0)
    original.action_space.seed(0)
    compared, off = 0, []
    for _ in range(400):
        # Small actions keep the velocities below the clip.
        action = 0.2 * original.action_space.sample()
        rebuilt = simulator.state_from_observation(again, state)
        assert rebuilt is not None
        known = np.abs(original.unwrapped.data.qvel).max() < 10
        expected, reward, terminated, truncated, _ = original.step(action)
        if known:
            compared += 1
            simulator.restore(again, rebuilt, 0, None)
            given, given_reward, *_ = again.step(action)
            off.append(max(np.abs(given - expected).max(), abs(given_reward - reward)))
        state = expected
        if terminated or truncated:
            state, _ = original.reset()
    assert compared > 100
    # The solver of contacts sets out from zero, not from the last step's forces, and stops at a
    # tolerance of 1e-8: a few steps in contact differ by that.
    assert np.quantile(off, 0.9) < 1e-9 and max(off) < 1e-5


def test_what_the_observation_does_not_hold_is_not_restored() -> None:
    for env_id in ["Ant-v4", "Reacher-v4", "Pendulum-v1"]:
        env = variant.utils.make_env(env_id)
        state, _ = env.reset(seed=0)
        rebuilt = simulator.state_from_observation(env, state)
        # Ant's observation holds all positions but x and y; Reacher's gives angles by cosine.
        assert (rebuilt is not None) == (env_id == "Ant-v4")


# --- the rows of a batch whose exact state is kept


def hopper_batch(folder: Path, steps: int, kept: int, buffer_size: int) -> tuple[Path, Any]:
    """A saved batch of random play on Hopper, through a ring of `buffer_size`."""
    env = variant.utils.make_env("Hopper-v4")
    buffer = ReplayBuffer(11, 3, "cpu", buffer_size)
    snapshots = simulator.Snapshots(env, range(steps - kept, steps), seed=0)
    env.action_space.seed(0)

    def act(state: np.ndarray, timestep: int) -> np.ndarray:
        snapshots.keep(timestep)
        return env.action_space.sample()

    collect(snapshots, act, buffer, steps, 0)
    prefix = folder / "b"
    buffer.save(prefix, {}, snapshots.rows(buffer))
    return prefix, buffer


@pytest.mark.parametrize(("steps", "size"), [(300, 300), (1500, 1200), (150, 60)])
def test_every_kept_state_is_that_of_its_row(steps: int, size: int, tmp_path: Path) -> None:
    prefix, buffer = hopper_batch(tmp_path, steps, size, size)
    kept = np.load(column_path(prefix, "simulator"))
    assert len(kept) == len(np.unique(kept[:, 0]))
    assert len(kept) == size or 500 < len(kept) < 700 < 1000 < size
    assert kept[:, 0].min() >= 0 and kept[:, 0].max() < size
    env = variant.utils.make_env("Hopper-v4")
    for place in range(0, len(kept), 29):
        row = buffer.rows([int(kept[place, 0])])
        restored = simulator.restore(env, kept[place, 1:], 0, None)
        np.testing.assert_allclose(restored, row.state[0], rtol=1e-6, atol=1e-6)
        following, reward, *_ = env.step(row.action[0].numpy())
        np.testing.assert_allclose(following, row.next_state[0], rtol=1e-5, atol=1e-6)
        assert reward == pytest.approx(float(row.reward), rel=1e-5)


def test_a_batch_without_states_takes_those_of_an_older_one_away(tmp_path: Path) -> None:
    prefix, buffer = hopper_batch(tmp_path, 50, 50, 50)
    assert column_path(prefix, "simulator").exists()
    buffer.save(prefix, {})
    assert not column_path(prefix, "simulator").exists()


# --- the estimates


class Known:
    """A policy standing still, whose critic says 3 times the first state, plus the action's sum."""

    device = torch.device("cpu")

    @staticmethod
    def select_action(states: np.ndarray) -> np.ndarray:
        return np.zeros((len(states), 3), np.float32)

    @staticmethod
    def value(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return 3 * state[:, :1] + action.sum(1, keepdim=True)


def measure(prefix: Path, buffer: Any, env_id: str, **options: Any) -> true_values.ValueEstimates:
    """The estimates of `Known` on a batch."""
    args = Namespace(**{"seed": 0, "discount": 0.9, "true_value": True} | options)

    def make_env() -> gym.Env:
        return variant.utils.make_env(env_id, max_episode_steps=-1)

    return true_values.ValueEstimates(Known(), args, prefix, buffer, make_env)


def test_from_kept_states_the_true_value_is_that_of_the_rows(tmp_path: Path) -> None:
    prefix, buffer = hopper_batch(tmp_path, 150, 150, 150)
    estimates = measure(prefix, buffer, "Hopper-v4")
    assert estimates.record == {"number": 100, "source": "simulator"}
    found = estimates()
    kept = np.load(column_path(prefix, "simulator"))
    env, returns, said = variant.utils.make_env("Hopper-v4", max_episode_steps=-1), [], []
    chosen = kept[np.isin(kept[:, 0], np.array(estimates.positions))]
    for row, state in zip(chosen[:, 0].astype(int), chosen[:, 1:], strict=True):
        pair = buffer.rows([row])
        said.append(float(Known.value(pair.state, pair.action)))
        simulator.restore(env, state, row, None)
        total, weight, action, ended = 0.0, 1.0, pair.action[0].numpy(), False
        while not ended and weight >= 1e-3:
            _, reward, ended, _, _ = env.step(action)
            total, weight, action = total + weight * float(reward), weight * 0.9, np.zeros(3)
        returns.append(total)
    assert found["true"] == pytest.approx(np.mean(returns), rel=1e-6)
    assert found["estimate"] == pytest.approx(np.mean(said), rel=1e-5)
    assert estimates() == found


def test_kept_states_beyond_the_part_of_the_batch_in_use_are_left_out(tmp_path: Path) -> None:
    prefix, _ = hopper_batch(tmp_path, 150, 150, 150)
    part = ReplayBuffer(11, 3, "cpu", 1)
    part.load(prefix, 40)
    estimates = measure(prefix, part, "Hopper-v4")
    assert estimates.record == {"number": 40, "source": "simulator"}


def test_without_kept_states_the_observation_is_used_and_without_that_episode_starts(
    tmp_path: Path,
) -> None:
    prefix, buffer = hopper_batch(tmp_path, 60, 60, 60)
    column_path(prefix, "simulator").unlink()
    estimates = measure(prefix, buffer, "Hopper-v4")
    assert estimates.record == {"number": 100, "source": "observation"}
    assert np.isfinite(list(map(float, filter(None, estimates().values())))).all()

    pendulum = fill(ReplayBuffer(3, 1, "cpu", 20), random_batch(20, 3, 1))
    estimates = measure(tmp_path / "none", pendulum, "Pendulum-v1")
    assert estimates.record["source"] == "episode starts"


def test_at_episode_starts_the_policys_own_actions_are_valued() -> None:
    walk = fill(ReplayBuffer(2, 1, "cpu", 20), random_batch(20, 2, 1))

    class Standing(Known):
        @staticmethod
        def select_action(states: np.ndarray) -> np.ndarray:
            return np.full((len(states), 1), 0.5, np.float32)

    args = Namespace(seed=0, discount=0.9, true_value=True)
    made: list[Walk] = []

    def make_env() -> gym.Env:
        made.append(Walk(4))
        return made[-1]

    found = true_values.ValueEstimates(Standing(), args, Path("none"), walk, make_env)()
    assert found["true"] == pytest.approx(1 + 0.9 + 0.81 + 0.729)
    starts = [env.start for env in made]
    assert len(set(starts)) == 100
    assert found["estimate"] == pytest.approx(3 * np.mean(starts) + 0.5, rel=1e-5)


def test_without_true_value_rows_of_the_batch_are_valued_and_nothing_is_played() -> None:
    buffer = fill(ReplayBuffer(3, 2, "cpu", 50), random_batch(50))
    estimates = measure(Path("none"), buffer, "none of these", true_value=False)
    assert estimates.record == {"number": 100, "source": "batch"}
    pairs = buffer.rows(estimates.positions)
    expected = float(Known.value(pairs.state, pairs.action).mean())
    assert estimates() == {"estimate": pytest.approx(expected), "true": None}


def test_measuring_changes_no_generator(tmp_path: Path) -> None:
    prefix, buffer = hopper_batch(tmp_path, 60, 60, 60)
    rollout.seed_generators(3)
    expected = (torch.rand(1).item(), np.random.rand())
    rollout.seed_generators(3)
    estimates = measure(prefix, buffer, "Hopper-v4")
    estimates()
    assert (torch.rand(1).item(), np.random.rand()) == expected


def test_a_discount_of_1_is_refused() -> None:
    buffer = fill(ReplayBuffer(3, 2, "cpu", 50), random_batch(50))
    with pytest.raises(InputError, match="--discount below 1"):
        measure(Path("none"), buffer, "Hopper-v4", discount=1.0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept[:, :-1],
        lambda kept: np.where(np.arange(kept.shape[1]) == 5, np.nan, kept),
        lambda kept: kept[:, 0],
        lambda kept: kept - np.eye(1, kept.shape[1]) * 1000,
        lambda kept: np.column_stack([kept[::-1, 0], kept[:, 1:]]),
    ],
    ids=["narrow", "nan", "flat", "negative rows", "other rows"],
)
def test_states_of_another_batch_are_refused(damage: Any, tmp_path: Path) -> None:
    prefix, buffer = hopper_batch(tmp_path, 60, 60, 60)
    path = column_path(without_digests(prefix), "simulator")
    write_array(path, damage(np.load(path)))
    with pytest.raises(InputError, match=r"b_simulator\.npy is damaged or of another batch"):
        measure(prefix, buffer, "Hopper-v4")


# --- the concurrent task


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 60), st.data())
def test_a_concurrent_learner_never_samples_its_future(size: int, data: Any) -> None:
    start = data.draw(st.integers(0, size - 1))
    batch_size = data.draw(st.integers(1, 40))
    buffer = ReplayBuffer(1, 1, "cpu", size)
    for number in range(size):
        buffer.add(np.array([number]), np.zeros(1), np.zeros(1), 0.0, False, False)
    view, seen = GrowingBatch(buffer, start), set()
    for t in range(1, size - start + 1):
        numbers = view.sample(batch_size).state
        assert numbers.shape == (batch_size, 1)
        assert numbers.max() < start + t
        seen |= set(numbers.flatten().tolist())
    assert seen  # and with many draws the newest comes too:
    assert int(GrowingBatch(buffer, size - 1).sample(2000).state.max()) == size - 1
    with pytest.raises(IndexError, match="no more came"):
        view.sample(1)


def test_of_the_behaviours_seed_concurrent_ddpg_is_the_behaviour_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It sees exactly what the behavioural agent saw; so by default its seed is another."""
    from conftest import run_main

    common = ["--env", "ToyReach-v0", "--threads", "1", "--eval_episodes", "1", "--eval_freq", "30"]
    common += ["--buffer_name", "Concurrent", "--output_dir", str(tmp_path)]
    stage_1 = ["--train_behavioral", "--save_buffer", "--start_timesteps", "20"]
    stage_1 += ["--max_timesteps", "60", *common]
    stage_3 = ["--concurrent", "--algorithm", "DDPG", *common]
    assert run_main(variant.main, *stage_1).status == 0

    def model(name: str) -> Any:
        return torch.load(tmp_path / "models" / f"{name}_ToyReach-v0_0.pt")["actor"]

    behaviour = model("behavioral")
    for offset, same in [(0, True), (variant.main.CONCURRENT_SEED, False)]:
        monkeypatch.setattr(variant.main, "CONCURRENT_SEED", offset)
        assert run_main(variant.main, *stage_3, "--overwrite").status == 0
        actor = model("DDPG_Concurrent")
        assert all(torch.equal(actor[k], behaviour[k]) for k in actor) == same
    assert variant.main.CONCURRENT_SEED != 0
