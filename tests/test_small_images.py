"""Small images, as MinAtar's games show them: through all stages of discrete_BCQ, and the games."""

import importlib.metadata
import importlib.util
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import done, load_variant, run_main
from gymnasium import spaces
from kills import differing
from test_discrete_cli import run as run_stage
from test_resume import stopping

import import_dataset
from common.environment import doors, rollout
from common.environment.simulator import Snapshots, restore
from common.errors import InputError
from sweeps.variants import defaults

variant = load_variant("discrete_BCQ")
main, utils = variant.main, variant.utils
SHAPE = (6, 5, 2)
Box: Any = spaces.Box  # whose annotations know floats alone


class Grid(gym.Env[np.ndarray, int]):
    """Random pixels; 3 for action 1, else 0; 3 to 11 steps."""

    observation_space: spaces.Space[Any] = Box(0, 1, SHAPE, bool)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 12))
        return self.shown, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.shown, 3.0 * (action == 1), self.left == 0, False, {}

    @property
    def shown(self) -> np.ndarray:
        return self.np_random.integers(2, size=SHAPE).astype(bool)


class Game(gym.Env[Any, Any]):
    """As MinAtar's: a generator of its own, seeded by a reset's seed alone, and a sticky action."""

    observation_space = Box(0, 1, SHAPE, bool)
    action_space = spaces.Discrete(3)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.random = render_mode, np.random.RandomState()
        self.game = SimpleNamespace(last_action=0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.random = np.random.RandomState(seed)
        self.left = self.random.randint(3, 12)
        return self.shown, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.random.rand() < 0.3:
            action = self.game.last_action
        self.game.last_action = action
        self.left -= 1
        return self.shown, float(action), self.left == 0, False, {}

    @property
    def shown(self) -> np.ndarray:
        return self.random.rand(*SHAPE) < 0.5

    def render(self) -> Any:
        return np.full((10, 10, 3), 0.5) if self.render_mode == "rgb_array" else None


Game.__module__ = "minatar.gym"
for _kind in (Grid, Game):
    gym.register(f"{_kind.__name__}-v0", cast(Any, _kind), max_episode_steps=10)
run = partial(run_stage, env="Grid-v0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder after stages 1 and 2 on both environments."""
    folder = tmp_path_factory.mktemp("made")
    for env_id in ("Grid-v0", "Game-v0"):
        out = done(run(folder, "train", env=env_id))
        assert "buffer_size        100000\n" in out  # the MinAtar paper's
        done(run(folder, "generate", env=env_id))
    return folder


# --- what is served, and what the networks make of it


@pytest.mark.parametrize(("space", "served"), [
    (Box(0, 1, (10, 10, 4), bool), True),
    (Box(0, 255, (3, 32, 1), np.uint8), True),
    (Box(0, 255, (2, 10, 3), np.uint8), False),
    (Box(0, 255, (10, 33, 3), np.uint8), False),
    (Box(0, 1, (10, 10, 4), np.float32), False),
    (Box(0, 255, (10, 10), np.uint8), False),
    (Box(0, 1, (10,), bool), False),
    (spaces.Discrete(3), False),
])  # fmt: skip
def test_images_of_bytes_or_bools_3_to_32_both_ways_are_served(
    space: gym.Space, served: bool
) -> None:
    assert doors.is_small_image(space) == served


def test_a_state_is_the_image_as_the_environment_shows_it() -> None:
    env = utils.make_env("Grid-v0")
    assert utils.dimensions(env) == ((1, *SHAPE), 3) and not utils.is_atari(env)
    assert doors.shows_frames(env) and not doors.shows_frames(utils.make_env("CartPole-v1"))
    state, _ = env.reset(seed=4)
    assert state.dtype == bool
    np.testing.assert_array_equal(state[0], gym.make("Grid-v0").reset(seed=4)[0])
    following, *_ = env.step(0)
    assert following.shape == (1, *SHAPE) and (following != state).any()


def test_the_trunk_is_16_filters_of_3_by_3_over_the_images_as_they_lie() -> None:
    trunk, head = utils.features((1, *SHAPE)), utils.head((1, *SHAPE), 3)
    images = torch.randint(0, 256, (4, 1, *SHAPE), dtype=torch.uint8)
    weight, bias = (p.detach().double().numpy() for p in trunk.parameters())
    expected = np.zeros((4, 16, 4, 3))
    for row, column in np.ndindex(4, 3):
        patch = images[:, 0, row : row + 3, column : column + 3].double().numpy()
        expected[:, :, row, column] = np.einsum("bhwc,ochw->bo", patch, weight) + bias
    for given in (images, images.float(), utils.as_input(images)):
        np.testing.assert_allclose(
            trunk(given).detach(), expected.clip(0).reshape(4, -1), rtol=1e-4, atol=1e-3
        )
    torch.testing.assert_close(trunk(images > 99), trunk((images > 99).float()))
    assert [tuple(p.shape) for p in head.parameters()] == [(128, 192), (128,), (3, 128), (3,)]


# --- all stages


@pytest.mark.parametrize("env_id", ["Grid-v0", "Game-v0"])
def test_the_batch_holds_what_was_shown_and_paid_once_as_bytes(env_id: str, made: Path) -> None:
    prefix = made / "buffers" / f"Default_{env_id}_0"
    env = utils.make_env(env_id)
    buffer = utils.make_buffer(env, "cpu", 1)
    buffer.load(prefix)
    actions = iter(buffer.action.flatten().tolist())
    steps = list(rollout.interact(env, lambda *_: next(actions), 50, seed=0))
    batch = buffer.rows(range(50))
    for column in ("state", "next_state"):
        shown = np.stack([getattr(step, column) for step in steps])
        np.testing.assert_array_equal(getattr(batch, column).numpy(), shown)
    assert batch.state.dtype == torch.uint8
    assert batch.reward.flatten().tolist() == [step.reward for step in steps]
    assert max(step.reward for step in steps) > 1  # not clipped
    assert np.load(f"{prefix}_state_51.npy").shape == (51, *SHAPE)
    ends = [step.terminated or step.truncated for step in steps]
    first = np.load(f"{prefix}_first_timestep.npy")[:, 0].tolist()
    assert first == [1, *ends[:-1]]


@pytest.mark.parametrize(
    ("algorithm", "env_id"), [*((one, "Grid-v0") for one in main.ALGORITHMS), ("BCQ", "Game-v0")]
)
def test_every_algorithm_learns_offline_is_valued_truly_and_evaluated_again(
    algorithm: str, env_id: str, made: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    own = ["--algorithm", algorithm, "--discount", "0.5"]
    own += ["--true_value"] if algorithm != "BC" else []
    done(run(folder, "learn", *own, env=env_id))
    results = folder / "results" / f"{algorithm}_Default_{env_id}_0"
    record = json.loads(results.with_suffix(".json").read_text())
    assert record["x"] == [4, 6]
    if algorithm != "BC":
        values = np.load(f"{results}_value.npy")
        assert record["value_pairs"] == {"number": 50, "source": "simulator"}
        assert np.isfinite(values).all() and (values[:, 1] >= 0).all() and values[:, 1].max() <= 6
    out = done(run(folder, "evaluate", "--algorithm", algorithm, env=env_id))
    assert f"mean {np.mean(record['returns'][-1]):.2f}" in out


def test_true_values_are_of_rewards_that_are_not_clipped() -> None:
    env = main.as_learned_from("Grid-v0")
    env.reset(seed=0)
    assert env.step(1)[1] == 3.0


def test_a_stopped_run_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env_id = "Game-v0"
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    more = ["--save_buffer", "--buffer_size", "30", "--checkpoint_minutes", "0"]
    done(run(folders[0], "train", *more, env=env_id))
    for point in (1, 2):
        with monkeypatch.context() as patched:
            stopping(patched, point)
            assert run(folders[1], "train", *more, env=env_id).status == 143
    done(run(folders[1], "train", *more, env=env_id))
    assert differing(*folders) == []


def test_what_serves_vectors_alone_is_refused(tmp_path: Path) -> None:
    outcome = run(tmp_path, "train", "--normalize_states")
    assert outcome.status == 1 and "--normalize_states is for vectors" in outcome.err
    variant.BCQ.BCQ((1, *SHAPE), 3, "cpu").save(tmp_path / "BCQ.pt")
    outcome = run(tmp_path, "estimate", "--model", str(tmp_path / "BCQ.pt"))
    assert outcome.status == 1 and "--estimate serves vectors, not frames" in outcome.err


def test_its_batches_are_not_imported_or_exported(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", action=np.zeros(3))
    for words, message in [
        (["--npz", str(tmp_path / "x.npz")], "come from --dqn_replay alone"),
        (["--export_minari", "a/b-v0"], "its batches are not exported"),
    ]:
        outcome = run_main(import_dataset, *words, "--env", "Grid-v0")
        assert outcome.status == 1 and message in outcome.err, outcome


def test_a_sweep_knows_their_defaults() -> None:
    for env_id, kind in [("Grid-v0", main.IMAGE), ("CartPole-v1", main.VECTOR),
                         ("Nothing-v0", main.VECTOR), ("ALE/Pong-v5", main.ATARI)]:  # fmt: skip
        usual = vars(defaults("discrete_BCQ", env_id))
        assert {name: usual[name] for name in kind} == kind


# --- MinAtar, whose games have a generator of their own


def episodes(env: Any, number: int, seed: int | None) -> list[tuple[bytes, float]]:
    """What the states and rewards of so many episodes of the same actions are."""
    seen = []
    for episode in range(number):
        state, _ = env.reset(seed=seed if episode == 0 else None)
        seen.append((state.tobytes(), 0.0))
        for step in range(400):
            state, reward, terminated, truncated, _ = env.step((step + 1) % env.action_space.n)
            seen.append((state.tobytes(), float(reward)))
            if terminated or truncated:
                break
    return seen


def require_determined(env_id: str) -> None:
    """That a seed determines all episodes after it, and gymnasium's generator the next one."""
    one, other = utils.make_env(env_id), utils.make_env(env_id)
    first = episodes(one, 3, seed=5)
    assert episodes(other, 2, seed=6) != first[: len(episodes(other, 2, seed=6))]
    assert episodes(other, 3, seed=5) == first
    rollout.remember(other, rollout.between_episodes(one))
    other.unwrapped.game.last_action = 1
    assert episodes(one, 2, None) == episodes(other, 2, None)
    again = episodes(one, 5, None)
    assert again != episodes(one, 5, None)


def test_gymnasiums_generator_and_the_actions_determine_an_episode_of_minatar() -> None:
    require_determined("Game-v0")


def test_a_game_is_led_back_to_a_kept_row() -> None:
    env = Snapshots(utils.make_env("Game-v0"), range(60), 0)
    buffer = utils.make_buffer(env, "cpu", 60)

    def act(_: np.ndarray, timestep: int) -> int:
        env.keep(timestep)
        return timestep % 3

    for step in rollout.interact(env, act, 60, 0):
        buffer.add(*step.transition)
    kept = env.rows(buffer)
    assert kept is not None and len(kept) == 60
    other = utils.make_env("Game-v0")
    for row in kept:
        shown = restore(other, row[1:], int(row[0]), buffer)
        pair = buffer.rows([int(row[0])])
        np.testing.assert_array_equal(shown, pair.state[0].numpy())
        following, reward, *_ = other.step(int(pair.action))
        np.testing.assert_array_equal(following, pair.next_state[0].numpy())
        assert reward == pair.reward.item()


@pytest.mark.filterwarnings("ignore:.*RGB-array rendering should return")
def test_a_game_is_drawn_in_bytes_large_enough_for_a_video() -> None:
    env = utils.make_env("Game-v0", render_mode="rgb_array")
    env.reset(seed=0)
    picture: Any = env.render()
    assert (
        picture.dtype == np.uint8 and picture.shape == (240, 240, 3) and set(picture.flat) == {127}
    )
    env = utils.make_env("Game-v0")
    env.reset(seed=0)
    assert env.render() is None


def test_an_installed_package_that_declares_a_namespace_registers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind: Any = Grid

    def register() -> None:
        gym.register("Space/Grid-v0", kind, max_episode_steps=10)

    def entry_points(group: str, name: str) -> list[Any]:
        assert (group, name) == ("gymnasium.envs", "Space")
        return [SimpleNamespace(load=lambda: register)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    try:
        assert utils.dimensions(utils.make_env("Space/Grid-v0")) == ((1, *SHAPE), 3)
    finally:
        gym.registry.pop("Space/Grid-v0", None)


def test_without_minatar_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    with monkeypatch.context() as patched:
        for name in [name for name in gym.registry if name.startswith("MinAtar/")]:
            patched.delitem(gym.registry, name)
        with pytest.raises(InputError) as error:
            doors.make_discrete("MinAtar/Breakout-v1")
    line = "it is of the package MinAtar: `pip install -r requirements-minatar.txt`"
    assert str(error.value) == f"--env MinAtar/Breakout-v1 cannot be made: {line}"


CHANNELS = {"Asterix": 4, "Breakout": 4, "Freeway": 7, "Seaquest": 10, "SpaceInvaders": 6}


@pytest.mark.skipif(importlib.util.find_spec("minatar") is None, reason="MinAtar is not installed")
@pytest.mark.parametrize("game", CHANNELS)
def test_minatars_games_are_served_and_can_be_played_again(game: str, tmp_path: Path) -> None:
    env_id = f"MinAtar/{game}-v1"
    env = utils.make_env(env_id)
    assert utils.dimensions(env)[0] == (1, 10, 10, CHANNELS[game])
    assert env.unwrapped.game.sticky_action_prob == 0.1
    assert getattr(env.unwrapped.game.env, "ramping", True)
    require_determined(env_id)
    for stage in ("train", "generate"):
        done(run(tmp_path, stage, "--max_episode_steps", "50", env=env_id))
    done(run(tmp_path, "learn", "--true_value", "--max_episode_steps", "50", env=env_id))
    record = json.loads((tmp_path / f"results/BCQ_Default_MinAtar-{game}-v1_0.json").read_text())
    assert record["value_pairs"]["source"] == "simulator"
    assert "minatar" in sys.modules
