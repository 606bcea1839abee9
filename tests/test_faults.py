"""Faults that a hostile user found, each tested as a kind: nothing mixed, lost or half-said."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import Outcome, done, largest_file, load_variant, snapshot
from gymnasium import spaces
from kills import differing
from test_cli import folder, made, model, record, refused, toy  # noqa: F401
from toy_envs import Reach

import plot
from common.environment.making import EPISODE_STEPS, make, with_time_limit
from common.environment.rollout import evaluate, interact
from common.errors import InputError, run
from common.files import read_array, replacing, write_json
from common.resume.checkpoint import Checkpoint
from common.run import stages
from common.saving import read_state, save_state
from datasets.task import task_of


class Faulty(Reach):
    """As Reach, and from the fourth step on it gives what `fault` says."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.taken = 0
        return super().reset(**options)

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state: Any
        reward: Any
        state, reward, _, _, info = super().step(action)
        self.taken += 1
        if self.taken > 3:
            state, reward = {
                "nan reward": (state, float("nan")),
                "no reward": (state, None),
                "wide reward": (state, 1e300),
                "infinite state": (state * np.inf, reward),
                "wide state": (state.astype(np.float64) + 1e300, reward),
                "other shape": (np.zeros(3, np.float32), reward),
            }[self.fault]
        return state, reward, False, self.taken == 10, info


FAULTS = ["nan reward", "no reward", "wide reward", "infinite state", "wide state", "other shape"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_no_agent_can_learn_from_is_refused_where_the_environment_gives_it(fault: str) -> None:
    def still(states: np.ndarray) -> np.ndarray:
        return np.zeros((*states.shape[:-1], 2), np.float32)

    with np.errstate(invalid="ignore"):
        with pytest.raises(InputError, match="mend the environment"):
            list(interact(Faulty(fault), lambda state, _: still(state), 8, seed=0))
        with pytest.raises(InputError, match="mend the environment"):
            evaluate(still, [Faulty(fault) for _ in range(2)], seed=0)


def test_a_record_is_json_without_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"), replacing(tmp_path / "record.json") as [path]:
        write_json(path, {"mean_return": float("nan")})
    assert not list(tmp_path.iterdir())


def test_any_one_file_of_a_batch_guards_it(folder: Path) -> None:  # noqa: F811
    contents = {
        path: path.read_bytes()
        for path in [
            *(folder / "buffers").glob("Robust_ToyReach-v0_0*"),
            *(folder / "results").glob("buffer_performance_*"),
        ]
    }
    # Six columns, pointer, states, the record; the policy's own evaluation and its record.
    assert len(contents) == 11
    for kept, content in contents.items():
        for path in contents:
            path.unlink(missing_ok=True)
        kept.write_bytes(content)
        refused(folder, toy(folder, "generate"), kept.name, "--overwrite")


def test_where_the_checkpoint_cannot_be_written_the_former_run_stays_whole(folder: Path) -> None:  # noqa: F811
    done(toy(folder, "learn", "--algorithm", "DDPG"))
    before = snapshot(folder)
    with largest_file(100_000):
        outcome = toy(folder, "learn", "--algorithm", "DDPG", "--overwrite", "--discount", "0.5")
    # The checkpoint, which holds as much as the model, is written before it.
    refused(folder, outcome, "cannot write", "DDPG_Robust_ToyReach-v0_0/state.pt:")
    assert snapshot(folder) == before


def half_written(path: Path, *_: Any) -> None:
    """What a full disk leaves of a file."""
    path.write_bytes(b"the first half")
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("writer", ["write_array", "write_json", "write_state"])
@pytest.mark.parametrize("stage", ["train", "learn"])
def test_where_a_file_of_a_run_cannot_be_written_the_former_run_stays_whole(
    stage: str,
    writer: str,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if stage == "learn":
        done(toy(folder, "learn", "--algorithm", "DDPG"))
    before = snapshot(folder)
    monkeypatch.setattr(f"common.run.record.{writer}", half_written)
    outcome = toy(folder, stage, "--algorithm", "DDPG", "--overwrite", "--discount", "0.5")
    refused(folder, outcome, "cannot write", "No space left on device", "free some space")
    shutil.rmtree(folder / "checkpoints")
    assert snapshot(folder) == before


@pytest.mark.parametrize("stage", ["train", "learn"])
def test_where_the_model_cannot_be_written_there_is_no_model(
    stage: str,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in (folder / "models").iterdir():
        path.unlink()
    monkeypatch.setattr("common.run.record.write_state", half_written)
    refused(folder, toy(folder, stage, "--algorithm", "DDPG", "--overwrite"), "cannot write", ".pt")
    assert not list((folder / "models").iterdir())


def test_the_final_buffer_is_saved_also_where_stage_1_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = load_variant("continuous_BCQ").main
    replay_buffer, add = main.ReplayBuffer, main.ReplayBuffer.add

    def add_37(self: Any, *transition: Any) -> None:
        if self.size == 37:
            raise KeyboardInterrupt
        add(self, *transition)

    monkeypatch.setattr(replay_buffer, "add", add_37)
    outcome = toy(tmp_path, "train", "--save_buffer")
    assert outcome.status == 130 and outcome.err.startswith("stopped: ")
    assert len(np.load(tmp_path / "buffers" / "Robust_ToyReach-v0_0_state.npy")) == 37
    assert record(tmp_path / "buffers" / "Robust_ToyReach-v0_0.json")["transitions"] == 37


def test_records_of_stages_1_and_2_name_the_algorithm_that_ran(made: Path) -> None:  # noqa: F811
    for name in ["behavioral", "buffer_performance_Robust"]:
        path = made / "results" / f"{name}_ToyReach-v0_0.json"
        assert record(path)["arguments"]["algorithm"] == "DDPG"


def test_tensorboard_holds_the_events_of_one_run(folder: Path) -> None:  # noqa: F811
    for _ in range(2):
        done(toy(folder, "learn", "--algorithm", "DDPG", "--overwrite", "--tensorboard"))
    events = list((folder / "results" / "tensorboard").rglob("events*"))
    assert len(events) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({1: torch.zeros(1)}, "holds no saved agent"),
        ([torch.zeros(1)], "holds no saved agent"),
        ({"actor": {"weight": torch.tensor([1.0, float("nan")])}}, "NaN or infinity"),
        ({"actor_optimizer": {"state": [torch.tensor(float("inf"))]}}, "NaN or infinity"),
    ],
)
def test_a_file_that_holds_no_usable_agent_is_refused(
    tmp_path: Path, content: Any, reason: str
) -> None:
    save_state(tmp_path / "agent.pt", content)
    with pytest.raises(InputError, match=rf"agent\.pt .*{reason}"):
        read_state(tmp_path / "agent.pt", "cpu")


def test_a_refused_model_is_named_with_what_to_do(folder: Path) -> None:  # noqa: F811
    done(toy(folder, "learn"))
    own = folder / "models" / "behavioral_ToyReach-v0_0.pt"
    own.write_bytes((folder / "models" / "BCQ_Robust_ToyReach-v0_0.pt").read_bytes())
    outcome = toy(folder, "generate", "--overwrite")
    refused(folder, outcome, str(own), "another algorithm than DDPG", "train it again")


@pytest.mark.parametrize(
    "array", [np.array(["text"]), np.array([1j]), np.array([object()], dtype=object)]
)
def test_an_array_of_anything_but_numbers_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=r"a\.npy (holds|is damaged)"):
        read_array(tmp_path / "a.npy")


def test_an_archive_under_the_name_of_an_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", state=np.zeros(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"a\.npy is an archive"):
        read_array(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
    ],
)
def test_no_memory_is_one_line(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit, match=message):
        run(main)
    assert capsys.readouterr().out == ""


def test_any_other_error_of_the_program_keeps_its_traceback() -> None:
    def main() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(main)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--threads", "100000"], ["--threads 100000"]),
        (["--device", "meta"], ["--device meta", "--device cpu"]),
        (["--device", "no-such"], ["--device no-such"]),
        (["--env", ":X"], ["--env :X cannot be made"]),
        (["--env", "a:b:c"], ["--env a:b:c cannot be made"]),
        (["--env", "Hopper"], ["names no version", "Hopper-v4"]),
        (["--env", "ALE/Pong-v5"], ["discrete_BCQ/main.py"]),
    ],
)
def test_what_this_machine_or_folder_cannot_run_is_refused_in_one_line(
    tmp_path: Path, flags: list[str], words: list[str]
) -> None:
    refused(tmp_path, toy(tmp_path, "train", *flags), *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "x" * 101, "a/b", "..", ".hidden"])
def test_a_name_that_makes_no_file_name_is_refused(tmp_path: Path, text: str) -> None:
    outcome = toy(tmp_path, "learn", "--buffer_name", text)
    assert outcome.status == 2 and "--buffer_name" in outcome.err


def test_an_empty_folder_name_is_refused(tmp_path: Path) -> None:
    outcome = toy(tmp_path, "learn", "--output_dir", "")
    assert outcome.status == 2 and "empty" in outcome.err


def test_the_command_that_an_error_names_can_be_pasted(tmp_path: Path) -> None:
    args = load_variant("continuous_BCQ").main.parse_args(["--output_dir", str(tmp_path / "a b")])
    assert f"'{tmp_path}/a b'" in stages.command(args, "--train_behavioral")


class NoChoice(Reach):
    """One of the two action dimensions has no width."""

    action_space = spaces.Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32))


class Blind(Reach):
    """A state without numbers."""

    observation_space = spaces.Box(-1, 1, (0,), np.float32)


class BlindChoice(Blind):
    """A state without numbers, and discrete actions."""

    action_space = spaces.Discrete(2)  # type: ignore[assignment]


class BlindDict(BlindChoice):
    """A state of parts, none of which has a number."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {"a": spaces.Box(-1, 1, (0,)), "b": spaces.Box(-1, 1, (2, 0))}
    )


@pytest.mark.filterwarnings("ignore:.*A Box")
@pytest.mark.parametrize("kind", [NoChoice, Blind, BlindChoice, BlindDict])
def test_an_environment_without_choice_or_sight_is_refused(kind: type[gym.Env]) -> None:
    env_id = f"{kind.__name__}-v0"
    gym.register(env_id, f"test_faults:{kind.__name__}", max_episode_steps=5)
    discrete = isinstance(kind.action_space, spaces.Discrete)
    variant = load_variant("discrete_BCQ" if discrete else "continuous_BCQ")
    for door in (variant.utils.make_env, task_of):
        with pytest.raises(InputError, match=f"--env {env_id} has"):
            door(env_id)


def test_an_environment_without_a_limit_gets_one_and_others_keep_theirs() -> None:
    gym.register("NoLimit-v0", "toy_envs:Reach")
    limited = with_time_limit(make("NoLimit-v0"), None)
    assert isinstance(limited, gym.wrappers.TimeLimit)
    assert limited._max_episode_steps == EPISODE_STEPS
    pendulum = make("Pendulum-v1")
    assert with_time_limit(pendulum, None) is pendulum


def plotted(monkeypatch: pytest.MonkeyPatch, *words: Any) -> Outcome:
    """plot.py on one evaluation, as typed."""
    monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, words)])
    try:
        plot.main()
    except SystemExit as end:
        return Outcome(int(end.code or 0), "", "")
    return Outcome(0, "", "")


@pytest.mark.parametrize(
    ("output", "stem"),
    [("fig.v1", "fig.v1"), ("a.png", "a"), ("a.pdf", "a"), ("phi0.05", "phi0.05")],
)
def test_only_png_and_pdf_are_suffixes_of_a_figures_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, stem: str
) -> None:
    np.save(tmp_path / "r_0.npy", np.ones(3))
    plotted(monkeypatch, tmp_path / "r_0.npy", "--output", tmp_path / output)
    made_files = {path.name for path in tmp_path.iterdir()} - {"r_0.npy"}
    assert made_files == {f"{stem}.png", f"{stem}.pdf", f"{stem}.csv"}


@pytest.mark.parametrize(
    "flags", [("--output", ""), ("--output", "."), ("--spread", "-1"), ("--spread", "nan")]
)
def test_a_figure_without_a_name_or_a_band_without_a_width_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, str]
) -> None:
    np.save(tmp_path / "r_0.npy", np.ones(3))
    assert plotted(monkeypatch, tmp_path / "r_0.npy", *flags).status == 2


# --- what happens while a run is under way: the last good state is kept, and goes on


class Breaks(Reach):
    """As Reach, with an error of its own at the steps `at`, counted over all instances."""

    at: ClassVar[set[int]] = set()
    error: ClassVar[BaseException] = RuntimeError("the motor\nis burnt")
    steps: ClassVar[int] = 0

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        type(self).steps += 1
        if self.steps in self.at:
            raise self.error
        return super().step(action)


gym.register("ToyBreaks-v0", "test_faults:Breaks", max_episode_steps=10)
BREAKS = ["--env", "ToyBreaks-v0", "--save_buffer", "--checkpoint_minutes", "0"]


def broken(monkeypatch: pytest.MonkeyPatch, *at: int, error: BaseException | None = None) -> None:
    monkeypatch.setattr(Breaks, "at", set(at))
    monkeypatch.setattr(Breaks, "steps", 0)
    if error:
        monkeypatch.setattr(Breaks, "error", error)


@pytest.mark.parametrize(("at", "where"), [(34, "at step 33"), (43, "while evaluating")])
def test_an_error_of_an_environment_is_one_line_and_the_run_goes_on_when_it_is_mended(
    at: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "whole", tmp_path / "broken"]
    broken(monkeypatch)
    done(toy(folders[0], "train", *BREAKS))
    broken(monkeypatch, at)  # steps 41 to 50 are an evaluation's
    outcome = toy(folders[1], "train", *BREAKS)
    words = [f"ToyBreaks-v0 failed {where} (RuntimeError: the motor is burnt)", "mend"]
    refused(folders[1], outcome, *words)
    broken(monkeypatch)
    assert "goes on where it stopped" in done(toy(folders[1], "train", *BREAKS))
    assert differing(*folders) == []


def test_ctrl_c_within_an_environment_is_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, 7, error=KeyboardInterrupt())
    assert toy(tmp_path, "train", *BREAKS).status == 130


@pytest.mark.parametrize(
    ("stage", "at"),
    # In stage 1 both fall on the end of an episode, and the tenth on an evaluation too.
    [("train", 10), ("train", 20), ("learn", 3)],
)
def test_a_loss_that_is_nan_leaves_the_last_good_checkpoint(
    stage: str,
    at: int,
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.run.offline.CHUNK", 1)
    DDPG = load_variant("continuous_BCQ").DDPG.DDPG
    folders = [tmp_path / "whole", tmp_path / "diverged"]
    flags = ["--algorithm", "DDPG", "--checkpoint_minutes", "0"]
    for path in folders:
        if stage == "learn":
            shutil.copytree(made, path)
    done(toy(folders[0], stage, *flags))
    update, calls = DDPG.update, 0

    def diverges(self: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        figures = update(self, batch)
        if calls == at:
            self.critic.network[0].weight.data.fill_(float("nan"))
            figures["critic_loss"] = torch.tensor(float("nan"))
        return figures

    with monkeypatch.context() as patched:
        patched.setattr(DDPG, "update", diverges)
        refused(folders[1], toy(folders[1], stage, *flags), "critic_loss became nan by step")
    assert "goes on where it stopped" in done(toy(folders[1], stage, *flags))
    assert differing(*folders) == []


def test_a_batch_that_memory_cannot_hold_is_one_line(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("common.data.replay.checked", full)
    refused(folder, toy(folder, "learn"), "no memory for the 50 transitions", "--buffer_size")


def test_a_folder_that_vanishes_is_made_again_with_all_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "whole", tmp_path / "vanished"]
    flags = ["--save_buffer", "--checkpoint_minutes", "0"]
    done(toy(folders[0], "train", *flags))
    look, looks = Checkpoint.save_if_due, 0

    def hostile(self: Checkpoint, due: bool = False) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            shutil.rmtree(folders[1])
        if looks == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        look(self, due)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "save_if_due", hostile)
        assert toy(folders[1], "train", *flags).status == 143
    done(toy(folders[1], "train", *flags))
    assert differing(*folders) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_must_not_be_written_to_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        refused(tmp_path, toy(tmp_path, "train"), "cannot write", "choose another folder")
    finally:
        tmp_path.chmod(0o700)
