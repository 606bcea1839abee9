"""Environments of one's own and other packages': found, not shadowed, pointed to, described."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import ale_py
import gymnasium as gym
import mujoco
import numpy as np
import pytest
import toy_envs
from conftest import ROOT, load_variant, run_main, snapshot
from gymnasium.envs.mujoco.inverted_pendulum_v4 import InvertedPendulumEnv

from common import notes
from common.arguments import keyword_arguments
from common.data.replay import Batch, ReplayBuffer
from common.environment import doors, making, rollout
from common.environment.elsewhere import advice
from common.environment.simulator import restore, simulator_state
from common.errors import InputError
from common.run.flags import environment_options
from datasets.task import task_of

SHORT = ["--max_timesteps", "30", "--eval_freq", "30", "--eval_episodes", "1", "--threads", "1",
         "--start_timesteps", "20"]  # fmt: skip

MODULE = """
import gymnasium as gym, numpy as np
from gymnasium import spaces
from common import SCALE
from helpers.more import SHIFT
import utils

class Valve(gym.Env):
    observation_space = spaces.Box(-9, 9, (utils.SIZE,), np.float32)
    action_space = spaces.{space}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        import DQN  # a name of this project's too, and only now
        self.step_by = DQN.STEP
        return np.zeros(utils.SIZE, np.float32), {{}}

    def step(self, action):
        state = np.full(utils.SIZE, self.step_by * SCALE + SHIFT, np.float32)
        return state, 1.0, False, False, {{}}

gym.register("Valve-v0", "myenvs:Valve", max_episode_steps=5)
"""


@pytest.mark.parametrize(
    ("variant", "found_by"),
    [("continuous_BCQ", "the current folder"), ("discrete_BCQ", "PYTHONPATH")],
)
def test_a_module_of_ones_own_is_found_and_imports_its_own_neighbours(
    tmp_path: Path, variant: str, found_by: str
) -> None:
    space = "Box(-1, 1, (1,))" if variant == "continuous_BCQ" else "Discrete(2)"
    (tmp_path / "myenvs.py").write_text(MODULE.format(space=space), encoding="utf-8")
    (tmp_path / "utils.py").write_text("SIZE = 4\n", encoding="utf-8")
    (tmp_path / "DQN.py").write_text("STEP = 2\n", encoding="utf-8")
    (tmp_path / "common.py").write_text("SCALE = 3\n", encoding="utf-8")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "more.py").write_text("SHIFT = 1\n", encoding="utf-8")
    here = found_by == "the current folder"
    if not here:
        (tmp_path / "elsewhere").mkdir()
    path = [str(tmp_path)] if not here else []
    command = [ROOT / variant / "main.py", "--train_behavioral", "--save_buffer", *SHORT]
    command += ["--env", "myenvs:Valve-v0", "--output_dir", tmp_path / "out"]
    ended = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=tmp_path if here else tmp_path / "elsewhere",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    [states] = (tmp_path / "out" / "buffers").glob("*_next_state.npy")
    np.testing.assert_array_equal(np.load(states), np.full((30, 4), 7))


# --- ids that gymnasium does not know


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("FetchReach-v3", ["package gymnasium-robotics: `pip install gymnasium-robotics`",
                           "--env gymnasium_robotics:FetchReach-v3"]),
        ("PointMaze_UMaze-v3", ["--env gymnasium_robotics:PointMaze_UMaze-v3"]),
        ("MiniGrid-Empty-5x5-v0", ["`pip install minigrid`", "minigrid:MiniGrid-Empty-5x5-v0"]),
        ("hopper-medium-v2", ["data set of D4RL", "--d4rl FILE.hdf5 --env Hopper-v4"]),
        ("antmaze-large-diverse-v0", ["data set of D4RL", "import_dataset.py"]),
        ("mujoco/hopper/medium-v0", ["Minari", "import_dataset.py --minari mujoco/hopper/medium"]),
        ("D4RL/door-human-v2", ["Minari", "--minari D4RL/door-human-v2"]),
    ],
)  # fmt: skip
def test_an_id_from_elsewhere_says_where_it_is_from_at_every_door(
    env_id: str, words: list[str]
) -> None:
    for door in (doors.make_continuous, doors.make_discrete, task_of):
        with pytest.raises(InputError, match=f"--env {env_id} cannot be made") as error:
            door(env_id)
        assert all(word in str(error.value) for word in words), error.value
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("env_id", ["Hoper-v4", "hopper-v2", "ant", "my:Own-v0"])
def test_an_unknown_id_is_from_nowhere(env_id: str) -> None:
    assert advice(env_id) is None


# --- Atari, whatever its id


class Framed(ale_py.AtariEnv):
    """A subclass of one's own."""


def handing_on(**options: Any) -> ale_py.AtariEnv:
    """A game made by a function."""
    return ale_py.AtariEnv(game="pong", **options)


def skipping(**_: Any) -> ale_py.AtariEnv:
    """One that skips frames whatever it is told."""
    return ale_py.AtariEnv(game="pong", frameskip=4)


def wrapped(**options: Any) -> gym.Env:
    """One that skips frames by a wrapper."""
    return gym.wrappers.AtariPreprocessing(handing_on(**options | {"frameskip": 1}), noop_max=0)


gym.register("Made-v0", "test_own_envs:handing_on", kwargs={"frameskip": 3})
gym.register("Skipping-v0", skipping)
gym.register("Wrapped-v0", "test_own_envs:wrapped")
gym.register("OwnPong-v0", "ale_py:AtariEnv", kwargs={"game": "pong", "full_action_space": True,
             "frameskip": (2, 5), "max_num_frames_per_episode": 40})  # fmt: skip
gym.register("OwnPong-v1", "test_own_envs:Framed", max_episode_steps=10, kwargs={"game": "pong"})
gym.register("Memory-v0", "ale_py.env:AtariEnv", kwargs={"game": "pong", "obs_type": "ram"})
gym.register("Sounds-v0", "ale_py.env:AtariEnv", kwargs={"game": "pong", "sound_obs": True})


@pytest.mark.parametrize(
    ("env_id", "actions", "said"),
    [
        ("ale_py:ALE/Pong-v5", 6, ""),
        ("test_own_envs:OwnPong-v0", 18, "its frame skip, (2, 5), is replaced by 4"),
        ("Made-v0", 6, "its frame skip, 3, is replaced by 4"),
        ("OwnPong-v1", 6, "its limit of 10 steps is not used; --max_episode_steps"),
    ],
)
def test_a_game_is_four_frames_a_step_to_its_end_whatever_its_id(
    env_id: str, actions: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    notes.begin()
    env = doors.make_discrete(env_id)
    assert said in capsys.readouterr().out
    assert env.action_space == gym.spaces.Discrete(actions)
    env.reset(seed=0)
    inner: Any = env.unwrapped
    frames = inner.ale.getFrameNumber
    begin = frames()
    for step in range(1, 13):
        *_, terminated, truncated, _ = env.step(0)
        assert frames() - begin == 4 * step and not terminated and not truncated
    limited = doors.make_discrete(env_id, max_episode_steps=3)
    limited.reset(seed=0)
    assert [limited.step(0)[3] for _ in range(3)] == [False, False, True]
    assert task_of(env_id).atari and task_of(env_id).num_actions == actions


@pytest.mark.parametrize(
    ("env_id", "why"),
    [
        ("Memory-v0", "learned from the screen"),
        ("Sounds-v0", "learned from the screen"),
        ("Skipping-v0", "a frame skip of its own"),
        ("Wrapped-v0", "with wrappers"),
    ],
)
def test_a_game_that_cannot_be_shown_as_the_others_is_refused_at_every_door(
    env_id: str, why: str
) -> None:
    for door in (doors.make_discrete, task_of):
        with pytest.raises(InputError, match=why):
            door(env_id)
    with pytest.raises(InputError, match="frameskip of Atari's games is fixed"):
        doors.make_discrete("ALE/Pong-v5", frameskip=2)


# --- keyword arguments and the step limit


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a=1"], {"a": 1}),
        (["b=x", "a=True", "c=[0.8, 2]"], {"a": True, "b": "x", "c": [0.8, 2]}),
        (["a=(1, 2)", "b=null"], {"a": [1, 2], "b": None}),
        (['{"b": {"c": false}, "a": 1e3}'], {"a": 1000.0, "b": {"c": False}}),
    ],
)
def test_keyword_arguments_are_read_as_python_json_or_text(
    words: list[str], expected: dict[str, object]
) -> None:
    for variant in ("continuous_BCQ", "discrete_BCQ"):
        args = load_variant(variant).main.parse_args(["--env_kwargs", *words])
        assert args.env_kwargs == expected and list(args.env_kwargs) == sorted(expected)
        assert environment_options(args) == expected
    args = load_variant(variant).main.parse_args(["--max_episode_steps", "7"])
    assert environment_options(args) == {"max_episode_steps": 7} and args.env_kwargs is None


@pytest.mark.parametrize("text", ["a", "=1", "1a=2", "{", "a=1e999", "render_mode=human",
                                  "max_episode_steps=3"])  # fmt: skip
def test_what_is_no_keyword_argument_is_refused(text: str) -> None:
    import argparse

    with pytest.raises(argparse.ArgumentTypeError):
        keyword_arguments(text)


@pytest.mark.parametrize("variant", ["continuous_BCQ", "discrete_BCQ"])
def test_an_environment_is_made_with_its_keyword_arguments_and_limit_in_every_stage(
    variant: str, tmp_path: Path
) -> None:
    main = load_variant(variant).main
    env_id, actions = f"{variant}-Told-v0", "box" if variant == "continuous_BCQ" else "two"
    gym.register(env_id, "test_own_envs:Told", max_episode_steps=9, kwargs={"actions": actions})
    Told.shifts.clear()
    base = ["--env", env_id, "--output_dir", str(tmp_path), *SHORT[:-2]]
    told = ["--env_kwargs", "shift=2", "--max_episode_steps", "4"]
    online = ["--train_behavioral", "--save_buffer", "--start_timesteps", "20"]
    for stage in (
        online,
        ["--generate_buffer", "--buffer_name", "Made"],
        ["--buffer_name", "Made"],
    ):
        outcome = run_main(main, *stage, *base, *told)
        assert outcome.status == 0, outcome.err
    assert Told.shifts == {2}
    [path] = (tmp_path / "buffers").glob("Made_*.json")
    record = json.loads(path.read_text())
    assert record["arguments"]["env_kwargs"] == {"shift": 2}
    assert record["arguments"]["max_episode_steps"] == 4 and record["episodes"] == 7
    # --evaluate plays as the run's record says, and what differs from the batch's is told
    outcome = run_main(main, "--evaluate", "--buffer_name", "Made", *base)
    assert outcome.status == 0 and "steps              mean 4.0" in outcome.out
    assert "shift" in outcome.out and Told.shifts == {2}
    outcome = run_main(main, "--buffer_name", "Made", *base, "--overwrite")
    assert (
        outcome.status == 0 and "were made with --env_kwargs {'shift': 2}, not None" in outcome.out
    )
    before = snapshot(tmp_path)
    outcome = run_main(
        main, "--generate_buffer", "--buffer_name", "None", *base, "--env_kwargs", "x=1"
    )
    assert outcome.status == 1 and "unexpected keyword argument 'x'" in outcome.err
    assert snapshot(tmp_path) == before


class Told(toy_envs.Reach):
    """Keeps the keyword arguments that it was made with."""

    shifts: ClassVar[set[int]] = set()

    def __init__(self, actions: str, shift: int = 0) -> None:
        self.shifts.add(shift)
        self.observation_space = gym.spaces.Box(-1, 1, (2,))
        if actions == "two":
            self.action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]


def test_other_keyword_arguments_are_another_run(tmp_path: Path) -> None:
    from common.resume.checkpoint import Checkpoint

    main = load_variant("continuous_BCQ").main
    one = main.parse_args(["--env_kwargs", "a=1", "b=2"])
    same = main.parse_args(["--env_kwargs", "b=2", "--env_kwargs", "a=1"])
    other = main.parse_args(["--env_kwargs", "a=1"])
    arguments = [Checkpoint(args)._arguments() for args in (one, same, other)]
    assert arguments[0] == arguments[1] != arguments[2]


# --- lines


def test_an_environment_without_a_limit_is_told_once_a_run_and_not_where_none_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gym.register("Endless-v0", "toy_envs:Reach")
    notes.begin()
    for _ in range(3):
        doors.make_continuous("Endless-v0")
    said = (
        "Endless-v0 has no step limit: an episode is cut after 100,000 steps; --max_episode_steps"
    )
    assert capsys.readouterr().out.count(said) == 1
    notes.begin()
    doors.make_continuous("Endless-v0", max_episode_steps=-1)
    doors.make_continuous("Endless-v0", max_episode_steps=5)
    doors.make_continuous("Pendulum-v1")
    assert capsys.readouterr().out == ""


def test_mujoco_warns_on_the_screen_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    notes.begin()
    mujoco.set_mju_user_warning(None)
    env = making.make("Hopper-v4")
    inner: Any = env.unwrapped
    env.reset(seed=0)
    for _ in range(2):
        inner.data.qvel[:] = np.nan
        env.step(np.zeros(3, np.float32))
    assert capsys.readouterr().out.count("MuJoCo: Nan, Inf or huge value in QVEL") == 1
    assert not list(tmp_path.iterdir())


class Far(toy_envs.Reach):
    """States of a million, as a position in millimetres."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def step(self, action: np.ndarray) -> Any:
        state, *others = super().step(action)
        return state + np.float32(1e6), *others


def test_states_of_a_million_are_told_once_where_they_are_played_and_where_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes.begin()
    gym.register("Far-v0", "test_own_envs:Far", max_episode_steps=5)
    env = doors.make_continuous("Far-v0")
    buffer = ReplayBuffer(2, 2, "cpu", 20)
    for step in rollout.interact(env, lambda *_: np.zeros(2, np.float32), 20, 0):
        buffer.add(*step.transition)
    assert capsys.readouterr().out.count("Far-v0 has states of 100,000 and more") == 1
    buffer.save(tmp_path / "b")
    ReplayBuffer(2, 2, "cpu", 1).load(tmp_path / "b")
    assert "b_state.npy has states of 100,000 and more" in capsys.readouterr().out


def test_actions_of_a_batch_by_hand_are_asked_after_where_they_would_be_scaled(
    tmp_path: Path,
) -> None:
    main = load_variant("continuous_BCQ").main
    prefix = tmp_path / "buffers" / "Hand_ToyAsymmetric-v0_0"
    prefix.parent.mkdir()
    for name in Batch._fields:
        width = 1 if name in ("reward", "not_done") else 2
        np.save(f"{prefix}_{name}.npy", np.ones((9, width), np.float32))
    learn = ["--env", "ToyAsymmetric-v0", "--buffer_name", "Hand", "--output_dir", str(tmp_path)]
    learn += ["--max_timesteps", "2", "--eval_freq", "2", "--eval_episodes", "1"]
    outcome = run_main(main, *learn)
    words = "takes actions Box([ 0. -1.], [4. 5.], (2,), float32), which a batch has scaled"
    assert outcome.status == 0 and "have no record. ToyAsymmetric-v0" in outcome.out
    assert words in outcome.out
    np.save(f"{prefix}_action.npy", np.full((9, 2), 3, np.float32))
    outcome = run_main(main, *learn, "--overwrite")
    assert outcome.status == 1 and words in outcome.err
    np.save(f"{prefix}_action.npy", np.ones((9, 2), np.float32))
    Path(f"{prefix}.json").write_text("{}", encoding="utf-8")
    outcome = run_main(main, *learn, "--overwrite")
    assert outcome.status == 0 and "no record" not in outcome.out


class OneArray(InvertedPendulumEnv):
    """MuJoCo whose observations are one array."""

    held = np.zeros(4)

    def _get_obs(self) -> np.ndarray:
        self.held[:] = super()._get_obs()
        return self.held


@pytest.mark.filterwarnings("ignore:.*share an object")
def test_restored_observations_are_copies() -> None:
    gym.register("OneArray-v0", "test_own_envs:OneArray", max_episode_steps=9)
    env = making.make("OneArray-v0")
    env.reset(seed=0)
    one = simulator_state(env)
    env.step(np.ones(1, np.float32))
    other = simulator_state(env)
    assert one is not None and other is not None
    first = restore(env, one, 0, None)
    assert not np.shares_memory(first, OneArray.held)
    assert (first != restore(env, other, 0, None)).any()
