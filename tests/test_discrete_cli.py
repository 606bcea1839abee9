"""discrete_BCQ/main.py: its environments, its three stages, what it refuses."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, Outcome, done, load_variant, run_main, snapshot, without_digests
from gymnasium import spaces

from common.environment import doors, rollout

variant = load_variant("discrete_BCQ")
main, utils = variant.main, variant.utils
Info = dict[str, Any]


class Pick(gym.Env[np.ndarray, int]):
    """State (steps, last action); the reward is 3 for action 1, else 0."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, Info]:
        assert self.action_space.contains(action)
        self.steps += 1
        return np.array([self.steps, action], np.float32), 3.0 * (action == 1), False, False, {}


def pick(name: str, limit: int | None = 10, **attributes: Any) -> str:
    """The id of a variant of Pick."""
    kind: Any = type("Pick", (Pick,), attributes)
    gym.register(name, kind, max_episode_steps=limit)
    return name


PICK = pick("DiscretePick-v0")
SMALL = ["--threads", "1", "--eval_episodes", "1", "--batch_size", "8"]
STAGES = {
    "train": ["--train_behavioral", "--max_timesteps", "60", "--start_timesteps", "20",
              "--eval_freq", "40"],
    "generate": ["--generate_buffer", "--max_timesteps", "50"],
    "learn": ["--max_timesteps", "6", "--eval_freq", "4"],
}  # fmt: skip


def run(folder: Path, stage: str, *more: str, env: str = PICK) -> Outcome:
    """One stage (or --evaluate); later flags override the small sizes."""
    words = STAGES.get(stage, [f"--{stage}"])
    argv = ["--env", env, *SMALL, *words, "--output_dir", str(folder), *more]
    return run_main(main, *argv)


def refused(outcome: Outcome) -> str:
    """The one line of a run that must fail."""
    assert outcome.status == 1
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    return outcome.err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder after stages 1 and 2 on Pick."""
    folder = tmp_path_factory.mktemp("made")
    done(run(folder, "train"))
    done(run(folder, "generate"))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return shutil.copytree(made, tmp_path / "out")


def model(folder: Path, label: str, env: str = PICK) -> Info:
    """A saved agent's state."""
    return torch.load(folder / "models" / f"{label}_{env}_0.pt", weights_only=True)


def record(folder: Path, label: str, env: str = PICK) -> Info:
    """A run's json."""
    return json.loads((folder / "results" / f"{label}_{env}_0.json").read_text())


# --- environments


@pytest.mark.parametrize(
    ("env_id", "sticky"),
    [
        ("PongNoFrameskip-v0", 0.25),
        ("PongNoFrameskip-v4", 0.0),
        ("Pong-v4", 0.0),
        ("ALE/Pong-v5", 0.25),
    ],
)
def test_every_step_of_atari_is_four_frames_of_the_emulator(env_id: str, sticky: float) -> None:
    env = utils.make_env(env_id)
    assert utils.is_atari(env) and utils.dimensions(env) == ((4, 84, 84), 6)
    ale = env.unwrapped.ale
    assert ale.getFloat("repeat_action_probability") == sticky
    state, _ = env.reset(seed=0)
    assert state.dtype == np.uint8 and not state[:3].any() and state[3].any()
    before = ale.getEpisodeFrameNumber()
    for step in range(1, 6):
        former = state.copy()
        state, *_ = env.step(0)
        assert ale.getEpisodeFrameNumber() == before + 4 * step
        np.testing.assert_array_equal(state[:3], former[1:])
    assert ale.getInt("max_num_frames_per_episode") == 0  # the limit is the wrapper's alone
    env.close()


def test_an_episode_of_atari_ends_after_27000_steps_with_its_own_last_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert doors.ATARI_STEPS == 27_000
    monkeypatch.setattr(doors, "ATARI_STEPS", 5)
    limited = utils.make_env("PongNoFrameskip-v4")
    monkeypatch.setattr(doors, "ATARI_STEPS", 9)
    longer = utils.make_env("PongNoFrameskip-v4")
    limited.reset(seed=0), longer.reset(seed=0)
    steps = [(limited.step(3), longer.step(3)) for _ in range(5)]
    assert [ended[2:4] for ended, _ in steps] == [(False, False)] * 4 + [(False, True)]
    for (state, *_), (expected, *_) in steps:
        np.testing.assert_array_equal(state, expected)


def test_states_of_a_finite_set_are_one_hot_vectors() -> None:
    for env_id, size, actions in [
        ("FrozenLake-v1", 16, 4),
        ("Taxi-v4", 500, 6),
        ("Blackjack-v1", 45, 2),
    ]:
        env = utils.make_env(env_id)
        assert utils.dimensions(env) == ((size,), actions) and not utils.is_atari(env)
        state, _ = env.reset(seed=0)
        assert set(np.unique(state)) == {0, 1} and state.sum() == (3 if size == 45 else 1)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pendulum-v1", "continuous actions: continuous_BCQ/main.py serves it"),
        (pick("DiscreteMany-v0", action_space=spaces.MultiDiscrete([2, 3])), "needs one number"),
        (pick("DiscreteFromOne-v0", action_space=spaces.Discrete(3, start=1)), "from 0 up"),
        (pick("DiscreteImage-v0", observation_space=spaces.Box(0, 255, (33, 8, 3), np.uint8)),
         "an Atari game, or images (H, W, C) of bytes or bools, 3 to 32 both ways"),
        ("ALE/Nothing-v5", "--env ALE/Nothing-v5 cannot be made"),
        ("CartPole", "CartPole"),
    ],
)  # fmt: skip
def test_an_environment_this_folder_cannot_serve_is_refused(
    env_id: str, message: str, tmp_path: Path
) -> None:
    for stage in STAGES:
        assert message in refused(run(tmp_path, stage, env=env_id))
    assert snapshot(tmp_path) == {}


# --- hyper-parameters by the kind of environment

# SPEC of arXiv 1910.01708, appendix (Atari), and of the released code (all else).
ATARI = {
    "start_timesteps": 2e4, "initial_eps": 1, "end_eps": 0.01, "eps_decay_period": 25e4,
    "train_freq": 4, "batch_size": 32, "lr": 6.25e-5, "adam_eps": 1.5e-4, "tau": 1,
    "target_update_freq": 8e3, "eval_freq": 5e4, "eval_eps": 0.001,
}  # fmt: skip
VECTOR = {
    "start_timesteps": 1e3, "initial_eps": 0.1, "end_eps": 0.1, "eps_decay_period": 1,
    "train_freq": 1, "batch_size": 64, "lr": 3e-4, "adam_eps": 1e-8, "tau": 0.005,
    "target_update_freq": 1, "eval_freq": 5e3, "eval_eps": 0,
}  # fmt: skip
# arXiv 1903.03176; Adam's ε and the evaluations' are Atari's, how often they are is chosen.
IMAGE = {
    "start_timesteps": 5e3, "initial_eps": 1, "end_eps": 0.1, "eps_decay_period": 1e5,
    "train_freq": 1, "batch_size": 32, "lr": 2.5e-4, "adam_eps": 1.5e-4, "tau": 1,
    "target_update_freq": 1e3, "eval_freq": 1e4, "eval_eps": 0.001,
}  # fmt: skip
IMAGES = pick("DiscreteGrid-v0", observation_space=spaces.Box(0, 255, (4, 3, 2), np.uint8))


@pytest.mark.parametrize(
    ("env_id", "table"), [("ALE/Pong-v5", ATARI), ("CartPole-v1", VECTOR), (IMAGES, IMAGE)]
)
def test_what_was_not_set_takes_the_papers_value_for_this_kind(env_id: str, table: Info) -> None:
    env = utils.make_env(env_id)
    args = main.parse_args([])
    main.resolve_by_kind(args, env)
    assert {name: vars(args)[name] for name in table} == table
    given = [text for name in table for text in (f"--{name}", "1")]
    args = main.parse_args(given)
    main.resolve_by_kind(args, env)
    assert {vars(args)[name] for name in table} == {1}


def test_the_other_defaults_are_the_papers() -> None:
    flags = vars(main.parse_args([]))
    table = {
        "env": "PongNoFrameskip-v0", "seed": 0, "buffer_name": "Default", "algorithm": "BCQ",
        "max_timesteps": 1_000_000, "threshold": 0.3, "low_noise_p": 0.2, "rand_action_p": 0.2,
        "discount": 0.99, "eval_episodes": 10, "buffer_size": None, "device": "auto",
    }  # fmt: skip
    assert {name: flags[name] for name in table} == table
    assert main.stages.ONLINE_BUFFER_SIZE == 1_000_000 and main.IMAGE_BUFFER_SIZE == 100_000


def test_help_shows_the_values_of_all_kinds() -> None:
    shown = " ".join(run_main(main, "--help").out.split())
    rates = "(default: Atari 6.25e-05, vectors 0.0003, small images 0.00025)"
    assert f"Adam's learning rate {rates}" in shown
    assert "a gradient step (default: Atari 32, vectors 64, small images 32)" in shown


def test_the_header_shows_what_is_in_force(made: Path, tmp_path: Path) -> None:
    out = done(run(tmp_path, "train", "--lr", "0.002"))
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert {
        "lr 0.002",
        "batch_size 8",
        "tau 0.005",
        "initial_eps 0.1",
        "buffer_size 1000000",
    } <= lines


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan"])
@pytest.mark.parametrize("flag", ["BCQ_threshold", "low_noise_p", "rand_action_p", "eval_eps"])
def test_a_probability_outside_0_and_1_is_refused(flag: str, text: str) -> None:
    outcome = run_main(main, f"--{flag}={text}")
    assert outcome.status == 2 and f"--{flag}: {text} is not a number in [0, 1]" in outcome.err


# --- ε


def test_epsilon_falls_linearly_with_the_updates_and_then_stays() -> None:
    args = main.parse_args(["--initial_eps", "1", "--end_eps", "0.2", "--eps_decay_period", "100"])
    shown = [main.epsilon(updates, args) for updates in (0, 25, 50, 100, 1000)]
    assert shown == pytest.approx([1, 0.8, 0.6, 0.2, 0.2])


class Always:
    """An agent that takes action 0."""

    def select_action(self, state: np.ndarray) -> Any:
        return np.zeros(len(state), np.int64) if state.ndim > 1 else 0


def test_an_action_is_uniform_with_probability_epsilon() -> None:
    noisy = main.NoisyPolicy(Always(), 4, seed=0)
    for eps, share in [(0.0, 1.0), (0.4, 0.7), (1.0, 0.25)]:
        actions = [noisy(np.zeros(2), eps) for _ in range(4000)]
        assert np.mean(np.equal(actions, 0)) == pytest.approx(share, abs=0.03)
        assert set(actions) <= {0, 1, 2, 3}


def test_evaluations_are_epsilon_greedy_the_same_each_time_and_leave_the_generators_alone() -> None:
    args = main.parse_args(["--env", PICK, "--eval_episodes", "40"])
    args.eval_eps = 0.5
    evaluate = main.evaluator(Always(), args, utils.make_env(PICK))
    state = np.random.get_state()[1].tolist()  # type: ignore[index]
    returns = evaluate()
    assert returns == evaluate() and state == np.random.get_state()[1].tolist()  # type: ignore[index]
    assert np.mean(returns) == pytest.approx(10 * 3 * 0.5 / 3, rel=0.2)
    args.eval_eps = 0.0
    evaluate = main.evaluator(Always(), args, utils.make_env(PICK))
    assert evaluate() == [0.0] * 40


# --- the three stages


def test_the_three_stages_leave_their_files_and_exact_counts(folder: Path) -> None:
    done(run(folder, "learn"))
    name = f"{PICK}_0"
    columns = ("state", "action", "next_state", "reward", "not_done", "ptr", "episode", "simulator")
    assert set(snapshot(folder)) == {
        *(
            f"models/{run}_{name}{end}"
            for run in ("behavioral", "BCQ_Default")
            for end in (".pt", "_best.pt")
        ),
        f"models/BCQ_Default_{name}_end.pt",
        *(f"buffers/Default_{name}_{column}.npy" for column in columns),
        f"buffers/Default_{name}.json",
        *(
            f"results/{label}_{name}{end}"
            for label in ("behavioral", "buffer_performance_Default", "BCQ_Default")
            for end in (".npy", ".json")
        ),
        f"results/BCQ_Default_{name}_value.npy",
    }
    assert model(folder, "behavioral")["updates"] == 40  # one a step from step 20 on
    assert model(folder, "BCQ_Default")["updates"] == 6
    assert record(folder, "BCQ_Default")["x"] == [4, 6]
    assert np.load(folder / "buffers" / f"Default_{name}_not_done.npy").all()
    assert record(folder, "buffer_performance_Default")["batch"]["episodes"] == 5


@pytest.mark.parametrize("algorithm", [name for name in main.ALGORITHMS if name != "BC"])
def test_every_evaluation_has_its_value_estimate_and_its_true_value(
    algorithm: str, folder: Path
) -> None:
    done(run(folder, "learn", "--algorithm", algorithm, "--true_value", "--discount", "0.5"))
    label = f"{algorithm}_Default"
    values = np.load(folder / "results" / f"{label}_{PICK}_0_value.npy")
    assert values.shape == (2, 2) and np.isfinite(values).all()
    assert record(folder, label)["value_pairs"]["source"] == "simulator"
    # An action of PICK pays 0 or 3: no return is beyond 3 / (1 − γ).
    assert (values[:, 1] >= 0).all() and (values[:, 1] <= 6).all()


def test_there_is_an_update_every_train_freq_steps(tmp_path: Path) -> None:
    done(run(tmp_path, "train", "--train_freq", "4"))
    assert model(tmp_path, "behavioral")["updates"] == 10


@pytest.mark.parametrize("algorithm", main.ALGORITHMS)
def test_every_algorithm_learns_offline_and_the_same_seed_gives_the_same_files(
    algorithm: str, folder: Path, tmp_path: Path
) -> None:
    label = f"{algorithm}_Default"
    weights = []
    for again in ([], ["--overwrite"]):
        done(run(folder, "learn", "--algorithm", algorithm, *again))
        weights.append(model(folder, label)["network"])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_the_same_seed_gives_the_same_batch_and_another_seed_another(
    made: Path, tmp_path: Path
) -> None:
    actions: list[list[list[int]]] = []
    for seed in ("0", "0", "1"):
        out = tmp_path / str(len(actions))
        done(run(out, "train", "--seed", seed)), done(run(out, "generate", "--seed", seed))
        actions.append(np.load(out / "buffers" / f"Default_{PICK}_{seed}_action.npy").tolist())
    first = np.load(made / "buffers" / f"Default_{PICK}_0_action.npy").tolist()
    assert first == actions[0] == actions[1] != actions[2]


@pytest.mark.parametrize(("low_noise_p", "rand_action_p", "expected"), [
    ("1", "1", {0, 10}), ("0", "0", {0, 10}), ("0", "1", {3}), ("0.5", "1", {0, 3, 10}),
])  # fmt: skip
def test_an_episode_is_low_noise_or_has_random_actions(
    folder: Path, low_noise_p: str, rand_action_p: str, expected: set[int]
) -> None:
    """Of ten actions the policy takes action 1 in none or all; a random one in about a third."""
    flags = ["--low_noise_p", low_noise_p, "--rand_action_p", rand_action_p]
    done(run(folder, "generate", *flags, "--overwrite", "--max_timesteps", "2000"))
    actions = np.load(folder / "buffers" / f"Default_{PICK}_0_action.npy").reshape(200, 10)
    greedy = (actions == actions[:, :1]).all(1).mean()
    low, rand = float(low_noise_p), float(rand_action_p)
    assert greedy == pytest.approx(low + (1 - low) * (1 - rand), abs=0.1), expected


def test_a_low_noise_episode_is_played_with_the_epsilon_of_evaluations(folder: Path) -> None:
    flags = ["--low_noise_p", "1", "--rand_action_p", "0", "--eval_eps", "1"]
    done(run(folder, "generate", *flags, "--overwrite", "--max_timesteps", "2000"))
    actions = np.load(folder / "buffers" / f"Default_{PICK}_0_action.npy")
    assert 0.2 < (actions == 1).mean() < 0.5
    assert (main.ATARI["eval_eps"], main.VECTOR["eval_eps"]) == (0.001, 0.0)


def test_vector_rewards_are_learned_from_as_they_are(made: Path) -> None:
    reward = np.load(made / "buffers" / f"Default_{PICK}_0_reward.npy")
    assert set(np.unique(reward)) == {0.0, 3.0}


def test_the_learner_uses_the_first_buffer_size_transitions(folder: Path) -> None:
    prefix = without_digests(folder / "buffers" / f"Default_{PICK}_0")
    action = np.load(f"{prefix}_action.npy")
    action[20:] = 7  # would be refused if they were used
    np.save(f"{prefix}_action.npy", action)
    out = done(run(folder, "learn", "--buffer_size", "20"))
    assert "buffer_size        20" in out
    assert record(folder, "BCQ_Default")["arguments"]["buffer_size"] == 20


def test_no_step_limit_is_no_crash(tmp_path: Path) -> None:
    class Endless(Pick):
        def step(self, action: int) -> tuple[Any, float, bool, bool, Info]:
            state, reward, _, _, info = super().step(action)
            return state, reward, self.steps == 7, False, info

    kind: Any = Endless
    gym.register("DiscreteEndless-v0", kind)
    done(run(tmp_path, "train", env="DiscreteEndless-v0"))
    done(run(tmp_path, "generate", env="DiscreteEndless-v0"))
    done(run(tmp_path, "learn", env="DiscreteEndless-v0"))


def test_frozen_lake_runs_through(tmp_path: Path) -> None:
    for stage in STAGES:
        done(run(tmp_path, stage, env="FrozenLake-v1"))


# As an error, this warning of SWIG's ends the interpreter while Box2D is imported.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
def test_lunar_lander_v2_runs_as_v3_and_says_so(tmp_path: Path) -> None:
    out = done(run(tmp_path, "train", "--max_timesteps", "25", env="LunarLander-v2"))
    assert out.startswith("LunarLander-v2 runs as LunarLander-v3")
    assert (tmp_path / "models" / "behavioral_LunarLander-v3_0.pt").exists()


@pytest.fixture(scope="module")
def pacman(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder after the three stages on a game, episodes of 100 steps at most."""
    folder = tmp_path_factory.mktemp("pacman")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doors, "ATARI_STEPS", 100)
        done(run(folder, "train", "--eval_freq", "100", env="ALE/MsPacman-v5"))
        done(run(folder, "generate", "--max_timesteps", "220", env="ALE/MsPacman-v5"))
        done(run(folder, "learn", "--max_timesteps", "3", env="ALE/MsPacman-v5"))
    return folder


def test_an_id_with_a_slash_becomes_no_folder(pacman: Path) -> None:
    assert {path.name for path in pacman.iterdir()} == {"models", "results", "buffers"}
    assert all(path.is_file() for path in pacman.glob("*/*"))
    name = "ALE-MsPacman-v5_0"
    runs = ("behavioral", "BCQ_Default")
    models = {f"{run}_{name}{end}" for run in runs for end in (".pt", "_best.pt")}
    assert {path.name for path in (pacman / "models").iterdir()} == {
        *models,
        f"BCQ_Default_{name}_end.pt",
    }
    assert (pacman / "buffers" / f"Default_{name}_state_221.npy").exists()


def test_atari_learns_from_clipped_rewards_and_reports_the_scores(pacman: Path) -> None:
    reward = np.load(pacman / "buffers" / "Default_ALE-MsPacman-v5_0_reward.npy")
    batch = record(pacman, "buffer_performance_Default", "ALE-MsPacman-v5")["batch"]
    assert reward.max() == 1.0 and batch["episodes"] == 2
    # Two finished episodes of 100 steps; the game pays 10 points a pellet.
    assert batch["mean_return"] == pytest.approx(10 * reward[:200].sum() / 2)


def test_the_batch_on_disk_is_what_the_emulator_showed(pacman: Path) -> None:
    buffer = utils.FrameBuffer((4, 84, 84), "cpu", 1)
    buffer.load(pacman / "buffers" / "Default_ALE-MsPacman-v5_0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doors, "ATARI_STEPS", 100)
        env = utils.make_env("ALE/MsPacman-v5")
    actions = iter(buffer.action.flatten().tolist())
    steps = list(rollout.interact(env, lambda *_: next(actions), 220, seed=0))
    batch = buffer.rows(range(220))
    for column in ("state", "next_state"):
        shown = np.stack([getattr(step, column) for step in steps])
        np.testing.assert_array_equal(getattr(batch, column).numpy(), shown)
    assert batch.not_done.all()  # cut by the limit, not ended


def test_the_command_runs_from_inside_the_folder(tmp_path: Path) -> None:
    argv = ["--env", "CartPole-v1", *SMALL, *STAGES["train"], "--output_dir", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "main.py", *argv],
        cwd=ROOT / "discrete_BCQ", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Stage 1: train the behavioural policy\n")


# --- what is refused


def test_a_missing_model_or_batch_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    text = refused(run(tmp_path, "generate"))
    assert "no behavioural policy: " in text and f"--train_behavioral --env {PICK}" in text
    text = refused(run(tmp_path, "learn"))
    assert "no batch: " in text and f"--generate_buffer --env {PICK}" in text
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize("stage", STAGES)
def test_a_finished_run_is_not_overwritten_unless_asked(stage: str, folder: Path) -> None:
    if stage == "learn":
        done(run(folder, "learn"))
    before = snapshot(folder)
    assert "--overwrite replaces it" in refused(run(folder, stage))
    assert snapshot(folder) == before
    done(run(folder, stage, "--overwrite"))


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("action", lambda a: a + 2, r"holds action 3; DiscretePick-v0 has 3 actions, 0 to 2"),
        ("action", lambda a: a - 1, "holds action -1"),
        ("action", lambda a: a + 0.5, "_action.npy: row 0"),
        ("reward", lambda a: a * np.nan, "_reward.npy: row 0, column 0 is nan"),
        ("state", lambda a: a[:, :1], "_state.npy has shape (50, 1)"),
        ("next_state", lambda a: a[:-1], "differ in length"),
        ("state", lambda a: a[:0], "differ in length (state 0, action 50"),
    ],
)
def test_a_bad_batch_is_refused_by_file_and_row(
    column: str, change: Any, message: str, folder: Path
) -> None:
    without_digests(folder / "buffers" / f"Default_{PICK}_0")
    path = folder / "buffers" / f"Default_{PICK}_0_{column}.npy"
    values = change(np.load(path))
    if message.startswith("holds action 3"):
        values = values.clip(None, 3)
    np.save(path, values)
    assert message in refused(run(folder, "learn"))
    assert not list((folder / "results").glob("BCQ*"))


def test_a_batch_of_another_environment_is_refused(folder: Path) -> None:
    other = pick("DiscreteOther-v0")
    for path in (folder / "buffers").iterdir():
        path.rename(path.with_name(path.name.replace(PICK, other)))
    assert f"were made in {PICK}, not in {other}" in refused(run(folder, "learn", env=other))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [("pacman", PICK, "belongs to a batch of frames"),
     ("made", "ALE/MsPacman-v5", "holds vector states")],
)  # fmt: skip
def test_frames_given_to_vectors_and_the_other_way_round_are_refused(
    source: str, target: str, message: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "buffers").mkdir()
    for path in (request.getfixturevalue(source) / "buffers").glob("*.npy"):
        names = ("ALE-MsPacman-v5", PICK) if source == "pacman" else (PICK, "ALE-MsPacman-v5")
        name = path.name.replace(*names)
        shutil.copy(path, tmp_path / "buffers" / name)
    assert message in refused(run(tmp_path, "learn", env=target))


# --- a saved policy, evaluated


@pytest.mark.parametrize("algorithm", ["BCQ", "DQN", "BC"])
def test_a_saved_policy_is_evaluated_as_the_run_evaluated_it(algorithm: str, folder: Path) -> None:
    # With exploration, so that the draws must be the same too.
    done(run(folder, "learn", "--algorithm", algorithm, "--eval_eps", "0.5", "--lr", "0.01"))
    out = done(run(folder, "evaluate", "--algorithm", algorithm))
    returns = record(folder, f"{algorithm}_Default")["returns"][-1]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"return mean {np.mean(returns):.2f} std {np.std(returns):.2f}" in " ".join(lines)
    assert {"eval_eps 0.5", "lr 0.01", "D4RL score n/a"} <= set(lines)  # those of the run


def test_stage_2_plays_a_saved_policy_from_anywhere(folder: Path, tmp_path: Path) -> None:
    policy, elsewhere = tmp_path / "given" / "Pick.pt", tmp_path / "elsewhere"
    whole = folder / "models" / f"behavioral_{PICK}_0.pt"
    done(run(folder, "evaluate", "--model", str(whole), "--save_policy", str(policy)))
    done(run(elsewhere, "generate", "--model", str(policy)))
    for path in (folder / "buffers").glob("*.npy"):
        assert (elsewhere / "buffers" / path.name).read_bytes() == path.read_bytes()
    # Of a learner of stage 3, too, with the settings of its run.
    done(run(folder, "learn", "--algorithm", "BC", "--lr", "0.01"))
    whole = folder / "models" / f"BC_Default_{PICK}_0.pt"
    done(run(folder, "generate", "--model", str(whole), "--buffer_name", "Second"))
    made = json.loads((folder / "buffers" / f"Second_{PICK}_0.json").read_text())
    assert made["policy"] == f"BC_Default_{PICK}_0" and made["arguments"]["lr"] == 0.01


def test_a_video_of_a_discrete_policy_is_made(tmp_path: Path) -> None:
    load_variant("discrete_BCQ").BC.BC((4,), 2, "cpu").save(tmp_path / "policy.pt")
    argv = ["--env", "CartPole-v1", "--threads", "1", "--eval_episodes", "1", "--video"]
    argv += ["--evaluate", "--algorithm", "BC", "--output_dir", str(tmp_path)]
    out = done(run_main(main, *argv, "--model", str(tmp_path / "policy.pt")))
    video = tmp_path / "results" / "policy.mp4"
    assert f"saved {video}" in out and video.read_bytes()[4:8] == b"ftyp"


# --- a batch in another folder


def test_buffer_dir_reads_the_batch_where_it_lies_and_changes_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    done(run(folder, "learn"))
    other = tmp_path / "other"
    assert "no batch" in run(other, "learn").err
    done(run(other, "learn", "--buffer_dir", str(folder)))
    assert not (other / "buffers").exists()
    name = next((folder / "results").glob("BCQ_*_0.npy")).name
    assert (folder / "results" / name).read_bytes() == (other / "results" / name).read_bytes()
    records = [
        json.loads((p / "results" / name).with_suffix(".json").read_text()) for p in (folder, other)
    ]
    assert records[0]["arguments"] == records[1]["arguments"]
    assert records[0].get("batch") == records[1].get("batch")


@pytest.mark.parametrize("stage", ["train", "generate"])
def test_buffer_dir_is_of_stage_3_alone(stage: str, tmp_path: Path) -> None:
    outcome = run(tmp_path, stage, "--buffer_dir", str(tmp_path))
    assert outcome.status == 1 and "--buffer_dir is where stage 3 reads" in outcome.err


def test_the_policy_of_pong_to_begin_with_is_good(tmp_path: Path) -> None:
    policy = ROOT / "models" / "reference" / "PongNoFrameskip-v0.pt"
    argv = ["--evaluate", "--model", str(policy), "--eval_episodes", "2", "--precision", "float32"]
    out = done(run_main(main, *argv, "--threads", "1", "--output_dir", str(tmp_path)))
    assert float(out.split("mean ")[1].split()[0]) > -10  # -21 at random
