"""Minari, read and written by the library itself: boundaries, exact round trips, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
import test_import_dataset  # registers ToySkewed
import toy_envs
from conftest import Outcome, done, load_variant
from import_tools import BATCH, batch, imported, refused, silence
from minari.data_collector import EpisodeBuffer

from common.data.replay import ReplayBuffer
from common.files import file_part
from datasets.minari_sets import episode_ends
from datasets.rows import Transitions

assert test_import_dataset


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def episode(
    states: list[float], terminated: bool, truncated: bool, **columns: Any
) -> EpisodeBuffer:
    """States (x, x, x) of Pendulum, one more than steps; rewards count."""
    steps = len(states) - 1
    flags = np.zeros((2, steps), bool)
    flags[:, -1] = terminated, truncated
    return EpisodeBuffer(
        **{
            "observations": np.array(states, np.float32)[:, None] * np.ones((1, 3), np.float32),
            "actions": np.linspace(-1, 1, steps, dtype=np.float32)[:, None],
            "rewards": np.arange(steps, dtype=np.float64),
            "terminations": flags[0],
            "truncations": flags[1],
        }
        | columns
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def record(*episodes: EpisodeBuffer, env: str = "Pendulum-v1", name: str = "toy/set-v0") -> Any:
    return minari.create_dataset_from_buffers(name, list(episodes), env=env)


def not_done(folder: Path) -> list[float]:
    return batch(folder)["not_done"][:, 0].tolist()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_n_actions_and_one_more_observation_are_n_transitions(tmp_path: Path) -> None:
    record(episode([0, 1, 2, 3], False, True), episode([10, 11, 12], True, False))
    out = done(imported(tmp_path, "--minari", "toy/set-v0"))  # the environment is the data set's
    columns = batch(tmp_path)
    assert columns["state"][:, 0].tolist() == [0, 1, 2, 10, 11]
    assert columns["next_state"][:, 0].tolist() == [1, 2, 3, 11, 12]
    assert columns["reward"][:, 0].tolist() == [0, 1, 2, 0, 1]
    assert not_done(tmp_path) == [1, 1, 1, 1, 0]
    assert "2 finished: 1 in a terminal state, 1 by time-out" in out
    assert "return     mean 2, from 1 to 3" in out


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_episode_that_says_neither_is_cut_where_it_ends(tmp_path: Path) -> None:
    record(episode([0, 1, 2], False, False), episode([10, 11], False, True))
    out = done(imported(tmp_path, "--minari", tmp_path / "minari" / "toy" / "set-v0"))
    assert batch(tmp_path)["next_state"][:, 0].tolist() == [1, 2, 11]
    assert not_done(tmp_path) == [1, 1, 1] and "1 episodes say neither" in out


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_another_version_is_a_warning_and_another_environment_an_error(tmp_path: Path) -> None:
    columns = {"observations": np.zeros((3, 11)), "actions": np.zeros((2, 3))}
    record(episode([0, 1, 2], False, True, **columns), env="Hopper-v5")
    out = done(imported(tmp_path, "--minari", "toy/set-v0", "--env", "Hopper-v4"))
    assert "warning: the Minari data set toy/set-v0 was recorded in Hopper-v5, and --env" in out
    outcome = imported(tmp_path / "x", "--minari", "toy/set-v0", "--env", "Pendulum-v1")
    refused(tmp_path / "x", outcome, "toy/set-v0 was recorded in Hopper-v5, not in Pendulum-v1")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"rewards": np.zeros(3)}, ["episode 0 has 2 actions, 3 observations and 3, 2, 2"]),
        ({"observations": np.zeros((2, 3))}, ["2 actions, 2 observations"]),
        ({"observations": np.zeros((3, 5))}, ["episode 0, observations is 5 wide"]),
        ({"actions": np.full((2, 1), 3.0)}, ["2 actions are beyond", "step 0"]),
        ({"rewards": np.zeros((2, 2))}, ["episode 0, rewards is 2 wide"]),
        ({"rewards": np.array([np.nan, 0])}, ["NaN or infinity in step 0"]),
        ({"terminations": np.array([3, 0])}, ["terminations holds 3"]),
    ],
)
def test_episodes_that_do_not_fit_are_refused(
    tmp_path: Path, columns: dict[str, Any], words: list[str]
) -> None:
    record(episode([0, 1, 2], False, True, **columns))
    refused(tmp_path, imported(tmp_path, "--minari", "toy/set-v0"), "toy/set-v0", *words)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_states_that_are_no_vectors_are_refused(tmp_path: Path) -> None:
    states = gym.spaces.Dict({"seen": gym.spaces.Box(-1, 1, (3,))})
    one = episode([0, 1, 2], False, True, observations={"seen": np.zeros((3, 3), np.float32)})
    actions = gym.make("Pendulum-v1").action_space
    minari.create_dataset_from_buffers(
        "toy/set-v0", [one], observation_space=states, action_space=actions
    )
    outcome = imported(tmp_path, "--minari", "toy/set-v0", "--env", "Pendulum-v1")
    refused(tmp_path, outcome, "keys seen, not vectors")
    refused(tmp_path, imported(tmp_path, "--minari", "toy/set-v0"), "keys seen, not vectors")


def test_what_is_not_there_and_cannot_be_fetched_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: Any) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("minari.storage.local.hosting.download_dataset", offline)
    outcome = imported(tmp_path, "--minari", "mujoco/nothing/here-v0")
    refused(tmp_path, outcome, "mujoco/nothing/here-v0", "cannot be fetched", "the network there")
    outcome = imported(tmp_path, "--minari", "../../x")
    refused(tmp_path, outcome, "--minari ../../x is no folder, and no id such as")
    (tmp_path / "empty").mkdir()
    outcome = imported(tmp_path, "--minari", tmp_path / "empty")
    refused(tmp_path, outcome, "empty is damaged or no Minari data set")


def ring(env_id: str, steps: int, size: int, tmp_path: Path, discrete: bool = False) -> None:
    """A batch as stage 2 saves it: random actions, a ring of `size` rows, oldest first."""
    from conftest import load_variant

    utils = load_variant("discrete_BCQ" if discrete else "continuous_BCQ").utils
    env = utils.make_env(env_id)
    kept: Any
    if discrete:
        kept = utils.make_buffer(env, "cpu", size)
    else:
        state_dim, action_dim, _ = utils.dimensions(env)
        kept = ReplayBuffer(state_dim, action_dim, "cpu", size)
    env.action_space.seed(0)
    state, _ = env.reset(seed=0)
    for _ in range(steps):
        action = env.action_space.sample()
        next_state, reward, terminated, truncated, _ = env.step(action)
        kept.add(state, action, next_state, float(reward), terminated, truncated)
        state = env.reset()[0] if terminated or truncated else next_state
    kept.save(tmp_path / "buffers" / f"A_{env_id}_0", {"env": env_id})


@pytest.mark.parametrize(
    ("env_id", "steps", "size", "discrete"),
    [
        ("Pendulum-v1", 450, 450, False),  # two time limits and an unfinished episode
        ("Hopper-v4", 300, 200, False),  # terminal states; a full ring that begins in an episode
        ("ToySkewed-v0", 52, 52, False),  # actions that are rescaled
        ("CartPole-v1", 120, 120, True),
        ("FrozenLake-v1", 60, 60, True),  # one-hot states, and resets to the same state
    ],
)
def test_a_batch_comes_back_from_minari_bit_by_bit(
    tmp_path: Path, env_id: str, steps: int, size: int, discrete: bool
) -> None:
    ring(env_id, steps, size, tmp_path, discrete)
    done(imported(tmp_path, "--export_minari", "toy/out-v0", "--env", env_id, name="A"))
    done(imported(tmp_path, "--minari", "toy/out-v0"))
    before, after = batch(tmp_path, env_id, "A"), batch(tmp_path, env_id)
    for name in BATCH:
        assert before[name].dtype == after[name].dtype, name
        assert before[name].tobytes() == after[name].tobytes(), name
    assert {0.0, 1.0} >= set(before["not_done"][:, 0].tolist())


class Own(toy_envs.Reach):
    """An environment of the user's, known as `test_import_minari:Own-v0`."""


gym.register("Own-v0", "test_import_minari:Own", max_episode_steps=5)
gym.register("OwnClass-v0", Own, max_episode_steps=5)  # type: ignore[arg-type]


def test_an_environment_of_ones_own_goes_to_minari_and_back(tmp_path: Path) -> None:
    env_id = "test_import_minari:Own-v0"
    write_batch(tmp_path, env_id)
    out = done(imported(tmp_path, "--export_minari", "toy/own-v0", "--env", env_id, name="A"))
    assert minari.load_dataset("toy/own-v0").env_spec.id == "Own-v0" and "note: it" not in out
    out = done(imported(tmp_path, "--minari", "toy/own-v0", "--env", env_id))
    assert "warning" not in out and len(batch(tmp_path, file_part(env_id))["state"]) == 3
    argv = ["--minari", "toy/own-v0", "--env", "toy_envs:ToyReach-v0"]
    refused(tmp_path / "x", imported(tmp_path / "x", *argv), "in Own-v0, not in toy_envs:ToyReach")


def test_an_environment_registered_as_a_class_is_left_out_of_the_data_set(tmp_path: Path) -> None:
    env_id = "test_import_minari:OwnClass-v0"
    write_batch(tmp_path, env_id)
    out = done(imported(tmp_path, "--export_minari", "toy/own-v0", "--env", env_id, name="A"))
    assert f"note: it cannot say how {env_id} is made" in out
    assert minari.load_dataset("toy/own-v0").env_spec is None
    done(imported(tmp_path, "--minari", "toy/own-v0", "--env", env_id))
    # It then counts as data without an environment: all of its actions are 0.
    outcome = imported(tmp_path / "x", "--minari", "toy/own-v0")
    refused(tmp_path / "x", outcome, "which leaves no choice: give --action_low")


def write_batch(folder: Path, env_id: str, size: int = 2, actions: int = 2) -> None:
    """A batch A of three transitions, whose last one is terminal."""
    column = np.arange(3, dtype=np.float32)[:, None]
    columns: dict[str, np.ndarray] = {
        "state": column * np.ones((1, size)), "action": np.zeros((3, actions)),
        "next_state": (column + 1) * np.ones((1, size)), "reward": column,
        "not_done": np.array([[1], [1], [0]]),
    }  # fmt: skip
    prefix = folder / "buffers" / f"A_{file_part(env_id)}_0"
    prefix.parent.mkdir()
    for name, values in columns.items():
        np.save(f"{prefix}_{name}.npy", values.astype(np.float32))
    np.save(f"{prefix}_ptr.npy", np.array(0))
    Path(f"{prefix}.json").write_text(json.dumps({"env": env_id}))


def test_minari_itself_reads_what_was_exported(tmp_path: Path) -> None:
    ring("Hopper-v4", 100, 100, tmp_path)
    out = done(imported(tmp_path, "--export_minari", "toy/out-v0", "--env", "Hopper-v4", name="A"))
    columns = batch(tmp_path, "Hopper-v4", "A")
    ends = columns["not_done"][:, 0] == 0
    dataset = minari.load_dataset("toy/out-v0")
    assert dataset.total_steps == 100 and dataset.total_episodes == ends.sum() + (not ends[-1])
    assert dataset.env_spec.id == "Hopper-v4" and str(dataset.total_episodes) in out
    first = 0
    for one in dataset.iterate_episodes():
        assert len(one.observations) == len(one.actions) + 1 == len(one) + 1
        for column, space in [
            (one.observations, dataset.observation_space),
            (one.actions, dataset.action_space),
        ]:
            assert all(space.contains(row) for row in column)
        last = first + len(one) - 1
        assert one.terminations[-1] == ends[last] and one.truncations[-1] != ends[last]
        assert not one.terminations[:-1].any() and not one.truncations[:-1].any()
        np.testing.assert_array_equal(one.observations[-1], columns["next_state"][last])
        first = last + 1
    assert first == 100
    with silence():
        assert "toy/out-v0" in minari.list_local_datasets()
    assert not list((tmp_path / "minari").glob(".*"))


def test_an_episode_ends_where_it_does_not_go_on(tmp_path: Path) -> None:
    state = np.array([[0], [1], [2], [5], [-0.0]], np.float32)
    next_state = np.array([[1], [2], [3], [0.0], [1]], np.float32)
    not_done_column = np.array([[1], [0], [1], [1], [1]], np.float32)
    rows = Transitions(state, state, next_state, state, not_done_column)
    # −0 is not 0: it would not come back bit by bit.
    ended = not_done_column[:, 0] == 0
    assert episode_ends(rows, ended).tolist() == [False, True, True, True, True]
    ended[0] = True  # as the batch itself says, whatever the states
    assert episode_ends(rows, ended).tolist() == [True] * 5


class Still(toy_envs.Reach):
    """Every state is the same: a reset's is the last next state."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}


class StillDiscrete(Still):
    action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]


gym.register("ToyStill-v0", "test_import_minari:Still", max_episode_steps=5)
gym.register("ToyStillDiscrete-v0", "test_import_minari:StillDiscrete", max_episode_steps=5)


@pytest.mark.parametrize("discrete", [False, True])
def test_episodes_are_told_apart_where_a_reset_begins_where_the_last_one_ended(
    discrete: bool, tmp_path: Path
) -> None:
    env_id = "ToyStillDiscrete-v0" if discrete else "ToyStill-v0"
    ring(env_id, 62, 58, tmp_path, discrete)  # 12 episodes and 2 steps; the first 4 are overwritten
    prefix = tmp_path / "buffers" / f"A_{env_id}_0"
    argv = ["--export_minari", "toy/out-v0", "--env", env_id]
    out = done(imported(tmp_path, *argv, name="A"))
    assert "58 transitions in 13 episodes" in out and "note" not in out
    lengths = [len(one) for one in minari.load_dataset("toy/out-v0").iterate_episodes()]
    assert lengths == [1, *[5] * 11, 2]
    # It comes back with the same episodes, and a part of it has its own.
    out = done(imported(tmp_path, "--minari", "toy/out-v0"))
    back = np.load(tmp_path / "buffers" / f"B_{env_id}_0_episode.npy")
    numbers = np.load(f"{prefix}_episode.npy")
    assert numbers[-3:, 0].tolist() == [11, -1, -1]  # the last had not ended
    np.testing.assert_array_equal(back[:-2], numbers[:-2])
    utils = load_variant("discrete_BCQ" if discrete else "continuous_BCQ").utils
    kept = utils.ReplayBuffer(2, "cpu", 1) if discrete else utils.ReplayBuffer(2, 2, "cpu", 1)
    kept.load(prefix, 11)
    assert kept.episode_returns() == [1.0, 5.0, 5.0]
    # A batch that does not say it cannot be told apart, and a line says that.
    Path(f"{prefix}_episode.npy").unlink()
    Path(f"{prefix}.json").write_text(json.dumps({"env": env_id, "episodes": 12}))
    out = done(imported(tmp_path, *argv, "--overwrite", name="A"))
    assert "in 1 episodes" in out and "has no column episode" in out and "counts 12" in out


def test_an_export_that_fails_leaves_nothing_and_a_former_one_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring("Pendulum-v1", 30, 30, tmp_path)
    argv = ["--export_minari", "toy/out-v0", "--env", "Pendulum-v1"]
    done(imported(tmp_path, *argv, name="A"))
    outcome = imported(tmp_path, *argv, name="A")
    assert outcome.status == 1 and "out-v0 exists: --overwrite" in outcome.err
    data = tmp_path / "minari" / "toy" / "out-v0" / "data" / "main_data.hdf5"
    before = data.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("minari.create_dataset_from_buffers", full)
        outcome = imported(tmp_path, *argv, "--overwrite", name="A")
    assert outcome.status == 1 and "No space left on device" in outcome.err
    assert data.read_bytes() == before and not list((tmp_path / "minari").glob(".*"))
    done(imported(tmp_path, *argv, "--overwrite", name="A"))
    for wrong in ["x", "toy/out", "../out-v0", "a/../../b-v0"]:
        outcome = imported(tmp_path, "--export_minari", wrong, *argv[2:], name="A")
        assert outcome.status == 1 and f"--export_minari {wrong} is no id" in outcome.err


def test_only_a_data_set_is_replaced(tmp_path: Path) -> None:
    write_batch(tmp_path, "ToyReach-v0")
    root = tmp_path / "minari"

    def exported(dataset_id: str) -> Outcome:
        argv = ["--export_minari", dataset_id, "--env", "ToyReach-v0", "--overwrite"]
        return imported(tmp_path, *argv, name="A")

    done(exported("space-v0/inner-v1"))
    outcome = exported("space-v0")
    assert outcome.status == 1 and "space-v0 exists, but is no data set" in outcome.err
    outcome = exported("space-v0/inner-v1/x-v0")
    assert outcome.status == 1 and "inner-v1 is a data set, which holds" in outcome.err
    # Made by Minari itself, a data set may hold others.
    shutil.copytree(root / "space-v0" / "inner-v1", root / "outer-v0")
    shutil.copytree(root / "space-v0" / "inner-v1", root / "outer-v0" / "inner-v1")
    done(exported("outer-v0"))
    for name in ("space-v0/inner-v1", "outer-v0/inner-v1", "outer-v0"):
        assert (root / name / "data" / "main_data.hdf5").exists()
    assert sorted(path.name for path in root.iterdir()) == ["outer-v0", "space-v0"]


def test_a_folder_of_minaris_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batch(tmp_path, "ToyReach-v0")
    (tmp_path / "file").touch()
    argvs = [["--minari", "toy/set-v0"], ["--export_minari", "toy/set-v0", "--env", "ToyReach-v0"]]
    for argv in argvs:
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file"))
        outcome = imported(tmp_path, *argv, name="A")
        assert outcome.status == 1 and "set MINARI_DATASETS_PATH to another" in outcome.err
        assert f"{tmp_path / 'file'}, which is no folder to use (File exists)" in outcome.err
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        with monkeypatch.context() as patched:
            patched.setattr("os.access", lambda *_: False)
            outcome = imported(tmp_path, *argv, name="A")
        assert outcome.status == 1 and "which is no folder to use (Permission" in outcome.err


def test_a_batch_that_is_not_there_or_anothers_is_not_exported(tmp_path: Path) -> None:
    argv = ["--export_minari", "toy/out-v0", "--env", "Pendulum-v1"]
    refused(tmp_path, imported(tmp_path, *argv), "B_Pendulum-v1_0_state.npy does not exist")
    ring("Pendulum-v1", 30, 30, tmp_path)
    (tmp_path / "buffers" / "A_Pendulum-v1_0.json").write_text(json.dumps({"env": "Hopper-v4"}))
    outcome = imported(tmp_path, *argv, name="A")
    assert outcome.status == 1 and "were made in Hopper-v4, not in Pendulum-v1" in outcome.err


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_minaris_own_collector_records_is_what_the_environment_did(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="Minari's DataCollector needs jax")
    env = minari.DataCollector(gym.make("Hopper-v4"))
    env.action_space.seed(0)
    seen: list[tuple[Any, ...]] = []
    state, _ = env.reset(seed=0)
    for _ in range(150):
        action = env.action_space.sample()
        next_state, reward, terminated, truncated, _ = env.step(action)
        seen.append((state, action, next_state, [reward], [1.0 - terminated]))
        state = env.reset()[0] if terminated or truncated else next_state
    env.create_dataset("toy/collected-v0")
    env.close()
    out = done(imported(tmp_path, "--minari", "toy/collected-v0", "--env", "Hopper-v4"))
    for name, column in zip(BATCH, zip(*seen, strict=True), strict=True):
        expected = np.array(column, np.float32)
        np.testing.assert_array_equal(batch(tmp_path, "Hopper-v4")[name], expected)
    assert "score" in out
    done(imported(tmp_path, "--export_minari", "toy/again-v0", "--env", "Hopper-v4"))
    one, other = minari.load_dataset("toy/collected-v0"), minari.load_dataset("toy/again-v0")
    assert one.total_episodes == other.total_episodes
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(np.float32(first.observations), second.observations)
        np.testing.assert_array_equal(first.actions, second.actions)
        np.testing.assert_array_equal(first.terminations, second.terminations)
    shutil.rmtree(tmp_path / "minari")


class Valve(toy_envs.Reach):
    """Three valves, with whole numbers for positions."""

    action_space = gym.spaces.Box(0, 5, (3,), np.uint8)


class Pieces(toy_envs.Reach):
    """A state of a place, a room and two switches, not in the order of the alphabet."""

    observation_space = gym.spaces.Dict(  # type: ignore[assignment]
        [
            ("place", gym.spaces.Box(-1, 1, (2,), np.float32)),
            ("inside", gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)])),
        ]
    )
    action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.x = (self.x + 0.1 * action).clip(-1, 1).astype(np.float32)
        return self.seen(), 1.0, False, False, {}

    def seen(self) -> Any:
        switches = np.array([self.steps % 2, self.steps % 3 == 0], np.int8)
        return {"place": self.x.copy(), "inside": (self.steps % 3, switches)}


gym.register("ToyValve-v0", "test_import_minari:Valve", max_episode_steps=5)
gym.register("ToyPieces-v0", "test_import_minari:Pieces", max_episode_steps=5)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_whole_numbers_of_actions_come_and_go_scaled_and_rounded(tmp_path: Path) -> None:
    states = np.zeros((7, 2), np.float32)
    actions = np.arange(18, dtype=np.uint8).reshape(6, 3) % 6
    record(episode([0] * 7, False, True, observations=states, actions=actions), env="ToyValve-v0")
    out = done(imported(tmp_path, "--minari", "toy/set-v0"))
    assert "bounds [0, 5]; scaled to [-1, 1] in the batch" in out
    held = batch(tmp_path, "ToyValve-v0")["action"]
    np.testing.assert_allclose(held, actions / 2.5 - 1, atol=1e-7)
    argv = ["--export_minari", "toy/out-v0", "--env", "ToyValve-v0"]
    done(imported(tmp_path, *argv))
    dataset = minari.load_dataset("toy/out-v0")
    assert dataset.action_space == Valve.action_space
    np.testing.assert_array_equal(next(dataset.iterate_episodes()).actions, actions)
    done(imported(tmp_path, "--minari", "toy/out-v0", "--overwrite"))
    np.testing.assert_array_equal(batch(tmp_path, "ToyValve-v0")["action"], held)


def test_a_fraction_is_no_action_of_whole_numbers(tmp_path: Path) -> None:
    action, one = np.array([[0, 1, 2], [3, 4, 5], [0, 1.4, 6]]), np.ones(3)
    state = np.zeros((3, 2))
    np.savez(tmp_path / "log.npz", state=state, action=action, reward=one, terminated=one)
    argv = ["--npz", str(tmp_path / "log.npz"), "--env", "ToyValve-v0"]
    words = ["1 actions are no whole numbers or beyond ToyValve-v0's bounds [0, 5]", "in row 2"]
    refused(tmp_path, imported(tmp_path, *argv), *words)
    done(imported(tmp_path, *argv, "--clip_actions"))
    np.testing.assert_allclose(batch(tmp_path, "ToyValve-v0")["action"][2], [-1, -0.6, 1])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_states_of_parts_are_imported_and_exported_as_main_py_flattens_them(
    tmp_path: Path,
) -> None:
    env = load_variant("discrete_BCQ").utils.make_env("ToyPieces-v0")
    inner = gym.make("ToyPieces-v0")
    flat = [env.reset(seed=0)[0], *(env.step(1)[0] for _ in range(5))]
    seen = [inner.reset(seed=0)[0], *(inner.step(1)[0] for _ in range(5))]
    assert flat[0].shape == (7,)
    columns = {
        "observations": {
            "place": np.stack([one["place"] for one in seen]),
            "inside": (
                np.array([one["inside"][0] for one in seen]),
                np.stack([one["inside"][1] for one in seen]),
            ),
        },
        "actions": np.ones(5, np.int64),
    }
    record(episode([0] * 6, False, True, **columns), env="ToyPieces-v0")
    done(imported(tmp_path, "--minari", "toy/set-v0"))
    held = batch(tmp_path, "ToyPieces-v0")
    np.testing.assert_array_equal(held["state"], flat[:-1])
    np.testing.assert_array_equal(held["next_state"], flat[1:])
    done(imported(tmp_path, "--export_minari", "toy/out-v0", "--env", "ToyPieces-v0"))
    done(imported(tmp_path, "--minari", "toy/out-v0", "--overwrite"))
    np.testing.assert_array_equal(batch(tmp_path, "ToyPieces-v0")["state"], flat[:-1])
    # and a table with a column a number, the room's number being one of them
    raw = [[*one["place"], one["inside"][0], *one["inside"][1]] for one in seen[:-1]]
    ends = np.array([0, 0, 0, 0, 1])
    one = np.ones(5)
    np.savez(tmp_path / "log.npz", state=np.array(raw), action=one, reward=one, truncated=ends)
    argv = ["--npz", str(tmp_path / "log.npz"), "--env", "ToyPieces-v0", "--overwrite"]
    done(imported(tmp_path, *argv))
    np.testing.assert_array_equal(batch(tmp_path, "ToyPieces-v0")["state"], flat[:-2])
