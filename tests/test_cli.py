"""continuous_BCQ/main.py from the command line: three stages, exact counts, clear refusals.

The workflow runs as a user types it, each stage a process of its own; what a single flag or a bad
file does is run inside this process (`run_main`), which a shell could not tell apart.
"""

import inspect
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, Outcome, done, load_variant, run_main, snapshot, without_digests
from toy_envs import Asymmetric

from common.errors import InputError, run
from common.files import Folders

variant = load_variant("continuous_BCQ")
main = variant.main
ALGORITHMS: dict[str, Any] = main.ALGORITHMS
FOLDER = ROOT / "continuous_BCQ"
COLUMNS = ("state", "action", "next_state", "reward", "not_done")
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


# --- the three stages on Pendulum-v1, typed into a shell

PENDULUM = [
    "--env",
    "Pendulum-v1",
    "--threads",
    "1",
    "--eval_episodes",
    "2",
    "--batch_size",
    "8",
    "--acting_candidates",
    "5",
]
STAGE_1 = [
    "--train_behavioral",
    "--gaussian_std",
    "0.1",
    "--max_timesteps",
    "270",
    "--start_timesteps",
    "210",
    "--eval_freq",
    "100",
]
STAGE_2 = ["--generate_buffer", "--max_timesteps", "450"]
STAGE_3 = ["--max_timesteps", "7", "--eval_freq", "3"]


def shell(*argv: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run python with these arguments and nothing of this process but its environment."""
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The output folder of the three stages, run from three places, and what they printed."""
    elsewhere = tmp_path_factory.mktemp("workflow")
    folder = elsewhere / "out"
    here = ["--output_dir", str(folder)]
    ran = [
        shell("main.py", *PENDULUM, *STAGE_1, *here, cwd=FOLDER),
        # Relative to where the caller stands.
        shell(str(FOLDER / "main.py"), *PENDULUM, *STAGE_2, "--output_dir", "out", cwd=elsewhere),
        shell("continuous_BCQ/main.py", *PENDULUM, *STAGE_3, *here, "--tensorboard", cwd=ROOT),
    ]
    return folder, ran


def test_the_three_stages_run_from_inside_the_folder_and_from_elsewhere(
    workflow: tuple[Path, list[Any]],
) -> None:
    folder, ran = workflow
    # No warning, and no progress bar where there is no terminal.
    assert [(stage.returncode, stage.stderr) for stage in ran] == [(0, "")] * 3
    files = {path for path in snapshot(folder) if "tensorboard" not in path}
    name = "Pendulum-v1_0"
    assert files == {
        *(
            f"models/{run}_{name}{end}"
            for run in ("behavioral", "BCQ_Robust")
            for end in (".pt", "_best.pt")
        ),
        f"models/BCQ_Robust_{name}_end.pt",
        *(
            f"buffers/Robust_{name}_{column}.npy"
            for column in (*COLUMNS, "ptr", "episode", "simulator")
        ),
        f"buffers/Robust_{name}.json",
        *(
            f"results/{run}_{name}{end}"
            for run in ("behavioral", "buffer_performance_Robust", "BCQ_Robust")
            for end in (".npy", ".json")
        ),
        f"results/BCQ_Robust_{name}_value.npy",
    }


def test_the_header_shows_the_settings_in_force(workflow: tuple[Path, list[Any]]) -> None:
    _, ran = workflow
    for stage, shown in zip(
        ran,
        [["gaussian_std 0.1", "discount 0.99"], ["rand_action_p 0.3"], ["lmbda 0.75", "phi 0.05"]],
        strict=True,
    ):
        lines = [" ".join(line.split()) for line in stage.stdout.splitlines()]
        assert lines[0].startswith("Stage ")
        assert {"env Pendulum-v1", "seed 0", "threads 1", *shown} <= set(lines)


def test_there_is_one_line_an_evaluation(workflow: tuple[Path, list[Any]]) -> None:
    _, ran = workflow
    for stage, expected in zip(
        ran,
        [["timesteps 100", "timesteps 200", "timesteps 270"], ["timesteps 450"],
         ["iterations 3", "iterations 6", "iterations 7"]],
        strict=True,
    ):  # fmt: skip
        lines = [" ".join(line.split()) for line in stage.stdout.splitlines() if " return " in line]
        assert [line.split(" return")[0] for line in lines] == expected


def test_the_same_command_and_seed_give_identical_buffers_and_weights(
    workflow: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    folder, _ = workflow
    for stage in [STAGE_1, STAGE_2, STAGE_3]:
        assert run_main(main, *PENDULUM, *stage, "--output_dir", str(tmp_path)).status == 0
    first, second = snapshot(folder), snapshot(tmp_path)
    same = [path for path in second if path.endswith((".npy", ".pt"))]
    # Evaluations and value estimates; columns, episodes, pointer and states; agents, last and best,
    # and what stage 3 needs to go on to more.
    assert len(same) == 4 + 8 + 5
    assert [path for path in same if first[path] != second[path]] == []


def test_another_seed_gives_another_buffer_and_other_weights(
    workflow: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    folder, _ = workflow
    for stage in [STAGE_1, STAGE_2, STAGE_3]:
        argv = [*PENDULUM, *stage, "--seed", "1", "--output_dir", str(tmp_path)]
        assert run_main(main, *argv).status == 0
    first, second = snapshot(folder), snapshot(tmp_path)
    columns = [f"buffers/Robust_Pendulum-v1_1_{c}.npy" for c in COLUMNS if c != "not_done"]
    models = [f"models/{run}_Pendulum-v1_1.pt" for run in ("behavioral", "BCQ_Robust")]
    for path in [*columns, *models]:
        assert second[path] != first[path.replace("v1_1", "v1_0")], path


def test_tensorboard_writes_returns_losses_and_mean_q(workflow: tuple[Path, list[Any]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    folder, _ = workflow
    events = EventAccumulator(str(folder / "results" / "tensorboard" / "BCQ_Robust_Pendulum-v1_0"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        "return", "vae_loss", "critic_loss", "actor_loss", "q", "value_estimate"
    }  # fmt: skip
    returns = [(event.step, event.value) for event in events.Scalars("return")]
    saved = np.load(folder / "results" / "BCQ_Robust_Pendulum-v1_0.npy")
    assert [step for step, _ in returns] == [3, 6, 7]
    assert [value for _, value in returns] == pytest.approx(saved.tolist(), rel=1e-6)


def test_pendulums_batch_never_terminates_and_lies_in_its_bounds(
    workflow: tuple[Path, list[Any]],
) -> None:
    folder, _ = workflow
    arrays = {c: np.load(folder / "buffers" / f"Robust_Pendulum-v1_0_{c}.npy") for c in COLUMNS}
    assert [arrays[c].shape for c in COLUMNS] == [(450, 3), (450, 1), (450, 3), (450, 1), (450, 1)]
    assert (arrays["not_done"] == 1).all()
    assert 1 < np.abs(arrays["action"]).max() <= 2


def test_an_error_is_one_line_on_stderr_and_status_1(tmp_path: Path) -> None:
    ran = shell("main.py", "--env", "Pendulum-v1", "--output_dir", str(tmp_path), cwd=FOLDER)
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.startswith("error: no batch: ") and ran.stderr.count("\n") == 1
    assert snapshot(tmp_path) == {}


def test_a_full_disk_leaves_no_half_batch_and_an_error_that_says_so(
    workflow: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    shutil.copytree(workflow[0] / "models", tmp_path / "models")

    def small_disk() -> None:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (16_000, 16_000)
        )  # the first checkpoint needs more

    argv = [*PENDULUM, "--generate_buffer", "--max_timesteps", "2000", "--buffer_name", "Big"]
    before = snapshot(tmp_path)
    ran = shell("main.py", *argv, "--output_dir", str(tmp_path), cwd=FOLDER, preexec_fn=small_disk)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: cannot write ") and ran.stderr.count("\n") == 1
    assert "Big_Pendulum-v1_0/state.pt" in ran.stderr and "free some space" in ran.stderr
    assert snapshot(tmp_path) == before


# --- everything else on a toy environment of ten steps an episode

TOY = [
    "--env",
    "ToyReach-v0",
    "--threads",
    "1",
    "--eval_episodes",
    "1",
    "--batch_size",
    "8",
    "--acting_candidates",
    "3",
    "--warm_up",
    "2",
]
STAGES = {
    "train": [
        "--train_behavioral",
        "--max_timesteps",
        "60",
        "--start_timesteps",
        "30",
        "--eval_freq",
        "40",
    ],
    "generate": ["--generate_buffer", "--max_timesteps", "50"],
    "learn": ["--max_timesteps", "6", "--eval_freq", "4"],
}
BATCH = "buffers/Robust_ToyReach-v0_0"


def toy(folder: Path, stage: str, *more: str) -> Outcome:
    """One stage on ToyReach (or --evaluate); later flags override the small sizes."""
    words = STAGES.get(stage, [f"--{stage}"])
    return run_main(main, *TOY, *words, "--output_dir", str(folder), *more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder after stages 1 and 2."""
    folder = tmp_path_factory.mktemp("made")
    done(toy(folder, "train"))
    done(toy(folder, "generate"))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return shutil.copytree(made, tmp_path / "out")


def record(path: Path) -> dict[str, Any]:
    """A run's json."""
    return json.loads(path.with_suffix(".json").read_text())


def model(folder: Path, name: str) -> dict[str, Any]:
    """A saved agent's state."""
    return torch.load(folder / "models" / f"{name}_ToyReach-v0_0.pt", weights_only=True)


def column(folder: Path, name: str) -> np.ndarray:
    """One column of the toy batch."""
    return np.load(folder / f"{BATCH}_{name}.npy")


def same(one: dict[str, Any], other: dict[str, Any], *networks: str) -> bool:
    """Whether these networks of two saved agents agree bit for bit."""
    return all(torch.equal(one[n][k], other[n][k]) for n in networks for k in one[n])


# --- counts


@every_algorithm
def test_the_learner_runs_exactly_max_timesteps_iterations(algorithm: str, folder: Path) -> None:
    done(toy(folder, "learn", "--algorithm", algorithm))
    saved = model(folder, f"{algorithm}_Robust")
    optimisers = [part for name, part in saved.items() if name.endswith("_optimizer")]
    steps = {float(s["step"]) for one in optimisers for s in one["state"].values()}
    assert steps == ({6, 3} if algorithm == "TD3_BC" else {6})  # its actor learns every second time
    path = folder / "results" / f"{algorithm}_Robust_ToyReach-v0_0.npy"
    assert record(path)["x"] == [4, 6]  # a last short block, and its evaluation
    assert np.load(path).shape == (2,)


def test_the_behavioural_policy_learns_once_a_step_from_start_timesteps_on(made: Path) -> None:
    steps = {
        float(s["step"]) for s in model(made, "behavioral")["actor_optimizer"]["state"].values()
    }
    assert steps == {30.0}
    path = made / "results" / "behavioral_ToyReach-v0_0.npy"
    assert record(path)["x"] == [40, 60]
    assert np.load(path).shape == (2,)


def test_an_evaluation_that_falls_on_the_last_step_is_made_once(folder: Path) -> None:
    done(toy(folder, "learn", "--algorithm", "DDPG", "--max_timesteps", "8"))
    assert record(folder / "results" / "DDPG_Robust_ToyReach-v0_0.npy")["x"] == [4, 8]


def test_counts_are_read_in_either_notation_and_fractions_refused() -> None:
    for text in ["1e6", "1000000", "1E+6"]:
        assert main.parse_args(["--max_timesteps", text]).max_timesteps == 1_000_000
    for flag in ["max_timesteps", "eval_freq", "eval_episodes", "batch_size", "seed"]:
        for text in ["1.5", "-1", "many", "nan", "inf"]:
            outcome = run_main(main, f"--{flag}={text}")
            assert outcome.status == 2
            assert f"--{flag}: {text} is not a whole number" in outcome.err
    for flag in ["max_timesteps", "eval_freq", "eval_episodes", "batch_size", "threads"]:
        assert run_main(main, f"--{flag}", "0").status == 2


@pytest.mark.parametrize("flag", ["rand_action_p", "discount", "tau", "lmbda"])
def test_probabilities_outside_0_and_1_are_refused(flag: str) -> None:
    assert getattr(main.parse_args([f"--{flag}", "1"]), flag) == 1.0
    for text in ["1.2", "-0.1", "nan"]:
        outcome = run_main(main, f"--{flag}={text}")
        assert outcome.status == 2
        assert f"--{flag}: {text} is not a number in [0, 1]" in outcome.err


@pytest.mark.parametrize("flag", ["gaussian_std", "phi", "alpha"])
def test_sizes_below_0_are_refused(flag: str) -> None:
    for text in ["-0.1", "nan", "inf"]:
        outcome = run_main(main, f"--{flag}={text}")
        assert outcome.status == 2
        assert f"--{flag}: {text} is not a number of at least 0" in outcome.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--train_behavioral", "--generate_buffer"], "not allowed with argument"),
        (["--algorithm", "SAC"], "invalid choice: 'SAC'"),
        (["--kernel_type", "cosine"], "'cosine' (choose from 'laplacian', 'gaussian')"),
        (["--mode", "automatic"], "'automatic' (choose from 'auto', 'hardcoded')"),
        (["--mmd_sigma", "0"], "--mmd_sigma: 0 is not a number above 0"),
        (["--mmd_sigma=-1"], "--mmd_sigma: -1 is not a number above 0"),
        (["--mmd_sigma", "inf"], "--mmd_sigma: inf is not a number above 0"),
        (["--num_samples_match", "0"], "--num_samples_match: 0 is not a whole number of at least"),
        (["--lagrange_thresh=-6"], "--lagrange_thresh: -6 is not a number of at least -5"),
        (["--warm_up=-1"], "--warm_up: -1 is not a whole number"),
        (["--buffer_name", "../elsewhere"], "'../elsewhere' may hold letters"),
        (["--eval_fre", "10"], "unrecognized arguments: --eval_fre"),
    ],
)
def test_a_bad_command_line_ends_with_status_2(argv: list[str], message: str) -> None:
    outcome = run_main(main, *argv)
    assert outcome.status == 2 and message in outcome.err


def test_every_flag_is_explained_with_its_symbol() -> None:
    help_text = run_main(main, "--help").out
    for symbol in ["γ", "τ", "λ", "Φ", "σ"]:
        assert symbol in help_text
    for action in main.parse_args([]).__dict__:
        assert f"--{action}" in help_text


# --- what a run leaves


def test_a_result_holds_the_mean_of_its_episodes_and_all_that_made_it(folder: Path) -> None:
    done(toy(folder, "learn", "--eval_episodes", "3"))
    path = folder / "results" / "BCQ_Robust_ToyReach-v0_0.npy"
    saved, made_by = np.load(path), record(path)
    assert saved.dtype == np.float64
    assert [len(episodes) for episodes in made_by["returns"]] == [3, 3]
    np.testing.assert_allclose(saved, np.mean(made_by["returns"], 1))
    assert (made_by["finished"], made_by["x_label"]) == (True, "iterations")
    assert [set(figures) for figures in made_by["figures"]] == [
        {"vae_loss", "critic_loss", "actor_loss", "q"}
    ] * 2
    assert made_by["versions"]["torch"] == torch.__version__
    arguments = made_by["arguments"]
    assert (arguments["algorithm"], arguments["env"], arguments["seed"]) == (
        "BCQ",
        "ToyReach-v0",
        0,
    )
    assert (arguments["max_timesteps"], arguments["batch_size"], arguments["lmbda"]) == (6, 8, 0.75)
    assert arguments["device"] == "cpu"


def test_a_batch_says_what_made_it(made: Path) -> None:
    made_by = json.loads((made / f"{BATCH}.json").read_text())
    assert (made_by["env"], made_by["seed"], made_by["stage"]) == (
        "ToyReach-v0",
        0,
        "generate_buffer",
    )
    assert (made_by["transitions"], made_by["episodes"]) == (50, 5)
    rewards = column(made, "reward").reshape(5, 10)
    assert made_by["mean_return"] == pytest.approx(rewards.sum(1).mean(), rel=1e-5)
    assert made_by["arguments"]["gaussian_std"] == made_by["arguments"]["rand_action_p"] == 0.3


def test_save_buffer_keeps_every_transition_of_the_training(tmp_path: Path) -> None:
    done(toy(tmp_path, "train", "--save_buffer", "--buffer_name", "Final"))
    prefix = tmp_path / "buffers" / "Final_ToyReach-v0_0"
    arrays = {c: np.load(f"{prefix}_{c}.npy") for c in COLUMNS}
    assert {len(array) for array in arrays.values()} == {60}
    follows = (arrays["next_state"][:-1] == arrays["state"][1:]).all(1)
    assert (~follows).nonzero()[0].tolist() == [9, 19, 29, 39, 49]  # a reset every ten steps
    assert json.loads(Path(f"{prefix}.json").read_text())["stage"] == "train_behavioral"


def test_without_save_buffer_the_training_leaves_no_batch(tmp_path: Path) -> None:
    done(toy(tmp_path, "train"))
    assert not (tmp_path / "buffers").exists()


def test_a_figure_that_some_updates_lack_is_the_mean_over_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = variant.TD3_BC.TD3_BC

    class Agent(kind):
        def update(self, batch: Any) -> dict[str, torch.Tensor]:
            self.updates += 1
            number = torch.tensor(float(self.updates))
            return {"q": number} | ({} if self.updates % 2 else {"actor_loss": number})

    monkeypatch.setitem(ALGORITHMS, "TD3_BC", Agent)
    # 101 iterations are a chunk of 100 and one of 1, whose one update is without the figure.
    counts = ["--max_timesteps", "102", "--eval_freq", "101"]
    done(toy(folder, "learn", "--algorithm", "TD3_BC", *counts))
    path = folder / "results" / "TD3_BC_Robust_ToyReach-v0_0.npy"
    assert record(path)["figures"] == [{"q": 51.0, "actor_loss": 51.0},
                                       {"q": 102.0, "actor_loss": 102.0}]  # fmt: skip


@every_algorithm
def test_the_header_shows_the_algorithms_own_batch_size(
    algorithm: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> None:
        raise InputError("enough")

    monkeypatch.setattr(main, "learn", nothing)
    without = [word for word in TOY if word not in {"--batch_size", "8"}]
    argv = [*without, "--algorithm", algorithm, "--output_dir", str(folder)]
    lines = [" ".join(line.split()) for line in run_main(main, *argv).out.splitlines()]
    own = ALGORITHMS[algorithm].batch_size
    assert f"batch_size {own}" in lines
    help_text = " ".join(run_main(main, "--help").out.split())
    assert "(default: 100, TD3_BC 256)" in help_text
    assert own == (256 if algorithm == "TD3_BC" else 100)


# --- flags change what they say


OTHER_VALUES = {
    "normalize": ["--no-normalize"],
    "lagrange_thresh": ["--lagrange_thresh", "-1"],  # log α begins at 0
    "kernel_type": ["--kernel_type", "gaussian"],
    "mode": ["--mode", "hardcoded"],
}


def other_value(flag: str, default: float) -> list[str]:
    """The flag with a value that differs from the default and is as legal."""
    if flag in OTHER_VALUES:
        return OTHER_VALUES[flag]
    return [f"--{flag}", str(default // 2 if isinstance(default, int) else default / 2)]


def main_network(algorithm: str) -> str:
    """The network on which every flag of an algorithm tells."""
    return {"BC": "actor", "VAE_BC": "vae", "DQN": "network"}.get(algorithm, "critic")


LEARNER_FLAGS = [
    (algorithm, other_value(name, parameter.default))
    for algorithm, kind in ALGORITHMS.items()
    for name, parameter in list(inspect.signature(kind).parameters.items())[4:]
    if not name.startswith("acting_")
]


@pytest.fixture(scope="module")
def learned(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made folder after every algorithm has learned with its defaults."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("learned") / "out")
    for algorithm in ALGORITHMS:
        done(toy(folder, "learn", "--algorithm", algorithm))
    return folder


@pytest.mark.parametrize(
    ("algorithm", "flag"),
    [*LEARNER_FLAGS, *((algorithm, ["--batch_size", "9"]) for algorithm in ALGORITHMS)],
)
def test_every_hyper_parameter_flag_changes_what_is_learned_offline(
    algorithm: str, flag: list[str], learned: Path, folder: Path
) -> None:
    done(toy(folder, "learn", "--algorithm", algorithm, *flag))
    name = f"{algorithm}_Robust"
    assert not same(model(learned, name), model(folder, name), main_network(algorithm))


@every_algorithm
def test_the_seed_changes_what_is_learned_from_the_same_batch(
    algorithm: str, learned: Path, folder: Path
) -> None:
    for path in (folder / "buffers").iterdir():
        path.rename(path.with_name(path.name.replace("ToyReach-v0_0", "ToyReach-v0_1")))
    done(toy(folder, "learn", "--algorithm", algorithm, "--seed", "1"))
    path = folder / "models" / f"{algorithm}_Robust_ToyReach-v0_1.pt"
    other = torch.load(path, weights_only=True)
    assert not same(model(learned, f"{algorithm}_Robust"), other, main_network(algorithm))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("discount", "0.5"),
        ("tau", "0.5"),
        ("batch_size", "9"),
        ("gaussian_std", "0.9"),
        ("start_timesteps", "29"),
    ],
)
def test_every_flag_of_stage_1_changes_the_behavioural_policy(
    flag: str, value: str, made: Path, tmp_path: Path
) -> None:
    done(toy(tmp_path, "train", f"--{flag}", value))
    assert not same(model(made, "behavioral"), model(tmp_path, "behavioral"), "critic")


def test_acting_candidates_changes_how_bcq_acts_and_not_what_it_learns(
    learned: Path, folder: Path
) -> None:
    done(toy(folder, "learn", "--acting_candidates", "50"))
    name = "BCQ_Robust"
    assert same(model(learned, name), model(folder, name), "actor", "critic", "vae")
    results = [f / "results" / f"{name}_ToyReach-v0_0.npy" for f in (learned, folder)]
    assert not np.array_equal(*map(np.load, results))


@every_algorithm
def test_evaluating_more_often_does_not_change_what_is_learned_offline(
    algorithm: str, learned: Path, folder: Path
) -> None:
    more = ["--eval_freq", "1", "--eval_episodes", "2"]
    done(toy(folder, "learn", "--algorithm", algorithm, *more))
    name = f"models/{algorithm}_Robust_ToyReach-v0_0.pt"
    assert (learned / name).read_bytes() == (folder / name).read_bytes()


def test_evaluating_more_often_does_not_change_the_behavioural_policy(
    made: Path, tmp_path: Path
) -> None:
    done(toy(tmp_path, "train", "--eval_freq", "7", "--eval_episodes", "2"))
    name = "models/behavioral_ToyReach-v0_0.pt"
    assert (made / name).read_bytes() == (tmp_path / name).read_bytes()


def behavioural_actions(folder: Path) -> np.ndarray:
    """What the trained policy itself does in the batch's states."""
    agent = variant.DDPG.DDPG(2, 2, 1.0, "cpu")
    agent.load(Folders(folder, "ToyReach-v0", 0).model("behavioral"))
    return agent.select_action(column(folder, "state"))


def test_a_batch_without_noise_is_the_trained_policys(folder: Path) -> None:
    done(toy(folder, "generate", "--overwrite", "--gaussian_std", "0", "--rand_action_p", "0"))
    np.testing.assert_allclose(column(folder, "action"), behavioural_actions(folder), atol=1e-6)


def test_rand_action_p_is_the_share_of_uniform_actions(folder: Path) -> None:
    more = [
        "--overwrite",
        "--gaussian_std",
        "0",
        "--rand_action_p",
        "0.25",
        "--max_timesteps",
        "800",
    ]
    done(toy(folder, "generate", *more))
    own = np.isclose(column(folder, "action"), behavioural_actions(folder), atol=1e-5).all(1)
    assert 1 - own.mean() == pytest.approx(0.25, abs=0.05)
    uniform = column(folder, "action")[~own]
    assert uniform.min() < -0.9 and uniform.max() > 0.9


def test_gaussian_std_is_the_noise_of_the_batch(folder: Path) -> None:
    more = [
        "--overwrite",
        "--gaussian_std",
        "0.1",
        "--rand_action_p",
        "0",
        "--max_timesteps",
        "800",
    ]
    done(toy(folder, "generate", *more))
    noise = column(folder, "action") - behavioural_actions(folder)
    inside = np.abs(behavioural_actions(folder)) < 0.6  # where clipping plays no part
    assert inside.sum() > 400
    assert noise[inside].std() == pytest.approx(0.1, rel=0.1)


# --- bad input


def refused(folder: Path, outcome: Outcome, *words: str) -> None:
    """A one-line error with these words."""
    assert outcome.status == 1
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word in outcome.err
    assert not [path for path in snapshot(folder) if path.endswith(".tmp")]


def test_learning_without_a_batch_names_the_file_and_the_command(tmp_path: Path) -> None:
    refused(
        tmp_path,
        toy(tmp_path, "learn", "--seed", "3", "--buffer_name", "Mine"),
        str(tmp_path / "buffers" / "Mine_ToyReach-v0_3_state.npy"),
        "python main.py --generate_buffer --env ToyReach-v0 --seed 3 --buffer_name Mine",
        f"--output_dir {tmp_path}",
    )
    assert snapshot(tmp_path) == {}


def test_generating_without_a_policy_names_the_file_and_the_command(tmp_path: Path) -> None:
    refused(
        tmp_path,
        toy(tmp_path, "generate"),
        str(tmp_path / "models" / "behavioral_ToyReach-v0_0.pt"),
        "python main.py --train_behavioral --env ToyReach-v0 --seed 0",
    )
    assert snapshot(tmp_path) == {}


def test_the_commands_that_errors_name_are_commands(tmp_path: Path) -> None:
    for stage in ["learn", "generate"]:
        named = toy(tmp_path, stage).err.split("python main.py ")[1].split()
        parsed = main.parse_args(named)
        assert parsed.train_behavioral or parsed.generate_buffer
        assert parsed.output_dir == tmp_path


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: Path(f"{folder / BATCH}_{name}.npy").unlink()


def put(name: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: np.save(f"{without_digests(folder / BATCH)}_{name}.npy", array)


def truncate(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = Path(f"{folder / BATCH}_{name}.npy")
        path.write_bytes(path.read_bytes()[:-9])

    return spoil


def empty(folder: Path) -> None:
    for name, width in zip(COLUMNS, (2, 2, 2, 1, 1), strict=True):
        put(name, np.ones((0, width)))(folder)


def of_another_environment(folder: Path) -> None:
    Path(f"{folder / BATCH}.json").write_text('{"env": "Hopper-v4"}')


def one(value: float, width: int = 1, row: int = 7) -> np.ndarray:
    array = np.zeros((50, width))
    array[row, width - 1] = value
    return array


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (drop("reward"), ["_reward.npy does not exist"]),
        (empty, ["Robust_ToyReach-v0_0_*.npy are empty"]),
        (of_another_environment, ["were made in Hopper-v4, not in ToyReach-v0", "--buffer_name"]),
        (put("state", np.ones((50, 3))), ["_state.npy has shape (50, 3)", "(N, 2)"]),
        (put("action", np.ones((50, 1))), ["_action.npy has shape (50, 1)", "(N, 2)"]),
        (put("reward", np.ones((49, 1))), ["differ in length", "reward 49", "state 50"]),
        (put("reward", one(float("nan"))), ["_reward.npy: row 7, column 0 is nan"]),
        (put("next_state", one(float("inf"), 2)), ["_next_state.npy: row 7, column 1 is inf"]),
        (put("action", one(1.01, 2)), ["_action.npy: 1 actions lie outside [-1, 1]", "number 7"]),
        (put("not_done", one(0.5)), ["_not_done.npy: row 7, column 0 is 0.5"]),
        (truncate("state"), ["_state.npy is damaged"]),
        (truncate("ptr"), ["_ptr.npy is damaged"]),
    ],
)
def test_a_bad_batch_is_refused_and_nothing_is_written(
    spoil: Callable[[Path], None], words: list[str], folder: Path
) -> None:
    spoil(folder)
    before = snapshot(folder)
    refused(folder, toy(folder, "learn", "--algorithm", "DDPG"), *words)
    assert snapshot(folder) == before


def test_rewards_saved_as_n_are_learned_from_as_n_by_1(learned: Path, folder: Path) -> None:
    put("reward", column(folder, "reward").reshape(-1))(folder)
    done(toy(folder, "learn", "--algorithm", "DDPG"))
    assert same(model(learned, "DDPG_Robust"), model(folder, "DDPG_Robust"), "actor", "critic")


@pytest.mark.parametrize("stage", ["train", "generate", "learn"])
def test_a_run_that_exists_is_kept_unless_overwrite_is_asked_for(
    stage: str, learned: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(learned, tmp_path / "out")
    before = snapshot(folder)
    refused(folder, toy(folder, stage), "exists", "--overwrite")
    assert snapshot(folder) == before
    done(toy(folder, stage, "--overwrite", "--discount", "0.5", "--gaussian_std", "0.2"))
    assert snapshot(folder).keys() == before.keys()
    assert snapshot(folder) != before


def test_save_buffer_does_not_write_over_a_batch(folder: Path) -> None:
    for path in [*(folder / "models").iterdir(), *(folder / "results").iterdir()]:
        path.unlink()
    before = snapshot(folder)
    refused(folder, toy(folder, "train", "--save_buffer"), "_action.npy exists", "--overwrite")
    assert snapshot(folder) == before


def test_a_damaged_behavioural_model_is_refused(folder: Path) -> None:
    path = folder / "models" / "behavioral_ToyReach-v0_0.pt"
    path.write_bytes(path.read_bytes()[:1000])
    before = snapshot(folder)
    refused(folder, toy(folder, "generate", "--overwrite"), f"{path} is damaged")
    assert snapshot(folder) == before


def test_another_algorithms_model_is_no_behavioural_policy(folder: Path) -> None:
    variant.BCQ.BCQ(2, 2, 1.0, "cpu").save(folder / "models" / "behavioral_ToyReach-v0_0.pt")
    refused(folder, toy(folder, "generate", "--overwrite"), "another algorithm than DDPG")


def test_an_output_folder_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    refused(tmp_path, toy(tmp_path, "train"), "cannot write", "results")


def test_a_learner_that_diverges_stops_and_says_which_loss(folder: Path) -> None:
    put("reward", one(3e38))(folder)
    outcome = toy(folder, "learn", "--algorithm", "DDPG", "--batch_size", "400")
    refused(folder, outcome, "critic_loss became inf by step", "diverged")


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for device in ["cuda:99", "abacus"]:
        outcome = toy(tmp_path, "train", "--device", device)
        refused(tmp_path, outcome, f"--device {device} cannot be used here", "--device cpu")


# --- environments


@pytest.mark.parametrize("old", ["Hopper-v1", "Hopper-v2", "Hopper-v3"])
def test_old_mujoco_ids_run_as_v4_with_a_line_saying_so(old: str, tmp_path: Path) -> None:
    outcome = run_main(main, "--generate_buffer", "--env", old, "--output_dir", str(tmp_path))
    assert outcome.out.splitlines() == [
        f"{old} runs as Hopper-v4, the same task on the maintained engine"
    ]
    refused(tmp_path, outcome, "behavioral_Hopper-v4_0.pt does not exist")


def test_an_old_id_given_to_make_env_itself_is_an_error_of_the_user() -> None:

    with pytest.raises(InputError, match=r"--env Hopper-v2 cannot be made"):
        variant.utils.make_env("Hopper-v2")


def test_hopper_v4_is_made_without_a_warning_and_v5_only_when_asked_for() -> None:
    env = variant.utils.make_env("Hopper-v4")
    assert variant.utils.dimensions(env) == (11, 3, 1.0)
    assert env.spec.id == "Hopper-v4"
    assert variant.utils.make_env("Hopper-v5").spec.id == "Hopper-v5"


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Hoper-v4", ["--env Hoper-v4 cannot be made"]),
        ("Hopper-v9", ["--env Hopper-v9 cannot be made"]),
        ("", ["--env", "cannot be made"]),
        ("no id at all", ["cannot be made"]),
        ("no_such_module:Hopper-v4", ["cannot be made", "no_such_module"]),
        ("Pendulum", ["names no version", "Pendulum-v1"]),
        ("CartPole-v1", ["discrete actions", "discrete_BCQ/main.py"]),
        ("ToyImage-v0", ["(8, 8, 3)", "Hopper-v4"]),
        ("ToyUnbounded-v0", ["bounded", "Hopper-v4"]),
    ],
)
def test_an_environment_that_cannot_serve_is_refused_at_the_start_of_every_stage(
    env_id: str, words: list[str], tmp_path: Path
) -> None:
    for stage in STAGES:
        refused(tmp_path, toy(tmp_path, stage, "--env", env_id), *words)
    assert snapshot(tmp_path) == {}


def test_an_environment_of_a_users_module_runs(tmp_path: Path) -> None:
    done(toy(tmp_path, "train", "--env", "toy_envs:ToyReach-v0"))
    assert (tmp_path / "models" / "behavioral_toy_envs-ToyReach-v0_0.pt").exists()


def test_bounds_that_are_not_symmetric_are_scaled_per_dimension(tmp_path: Path) -> None:
    env = variant.utils.make_env("ToyAsymmetric-v0")
    assert variant.utils.dimensions(env) == (2, 2, 1.0)
    env.reset(seed=0)
    Asymmetric.actions.clear()
    for action in [[-1, -1], [1, 1], [0, 0], [0.5, -0.5]]:
        env.step(np.array(action, np.float32))
    expected = np.array(
        [[0, -1], [4, 5], [2, 2], [3, 0.5]]
    )  # the ends, the middle, a quarter from each end
    np.testing.assert_allclose(Asymmetric.actions, expected, atol=1e-6)


def test_all_three_stages_run_on_bounds_that_are_not_symmetric(tmp_path: Path) -> None:
    for stage in STAGES:
        done(toy(tmp_path, stage, "--env", "ToyAsymmetric-v0"))
    actions = np.load(tmp_path / "buffers" / "Robust_ToyAsymmetric-v0_0_action.npy")
    assert actions.min() < -0.5 and actions.max() > 0.5 and np.abs(actions).max() <= 1


def test_ctrl_c_ends_with_130_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        run(interrupted)
    assert end.value.code == 130
    assert capsys.readouterr().err.startswith("stopped: ")
