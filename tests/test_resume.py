"""A run that was stopped goes on exactly where it was, whatever stopped it."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_envs  # noqa: F401 (registers)
from conftest import Outcome, largest_file, load_variant, run_main, snapshot, without_digests
from kills import differing, ended, forked, killed_and_finished, reference

from common.environment import doors
from common.errors import InputError, Stopped
from common.files import Folders
from common.resume.checkpoint import Checkpoint
from common.resume.lock import Lock
from common.saving import read_sealed, write_sealed

CONTINUOUS, DISCRETE = load_variant("continuous_BCQ").main, load_variant("discrete_BCQ").main
SMALL = ["--threads", "1", "--eval_episodes", "1", "--batch_size", "8"]
OFTEN = ["--checkpoint_minutes", "0"]  # at every point from which a run can go on
TOY = ["--env", "ToyReach-v0", "--acting_candidates", "3"]
CARTPOLE = ["--env", "CartPole-v1"]
TRAIN = ["--train_behavioral", "--max_timesteps", "160", "--start_timesteps", "40"]
TRAIN += ["--eval_freq", "55", "--save_buffer", "--buffer_size", "90"]
GENERATE = ["--generate_buffer", "--max_timesteps", "150"]
LEARN = ["--max_timesteps", "33", "--eval_freq", "13"]
CASES: dict[str, tuple[Any, list[str]]] = {
    "continuous train": (CONTINUOUS, [*TOY, *TRAIN]),
    "continuous generate": (CONTINUOUS, [*TOY, *GENERATE]),
    "continuous learn": (CONTINUOUS, [*TOY, *LEARN, "--true_value", "--discount", "0.5"]),
    "discrete train": (DISCRETE, [*CARTPOLE, *TRAIN]),
    "discrete generate": (DISCRETE, [*CARTPOLE, *GENERATE]),
    "discrete learn": (DISCRETE, [*CARTPOLE, *LEARN]),
}


def run(main: Any, folder: Path, *argv: str) -> Outcome:
    """A command line on small sizes, in this process."""
    return run_main(main, *SMALL, *argv, "--output_dir", str(folder))


def done(outcome: Outcome) -> Outcome:
    assert outcome.status == 0, outcome.err
    return outcome


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several points to go on from between two evaluations, though the runs are short."""
    monkeypatch.setattr("common.run.offline.CHUNK", 5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of both variants after stages 1 and 2, but of another batch's name."""
    folder = tmp_path_factory.mktemp("made")
    for main, env in [(CONTINUOUS, TOY), (DISCRETE, CARTPOLE)]:
        done(run(main, folder, *env, *TRAIN, "--buffer_name", "Other"))
        done(run(main, folder, *env, *GENERATE, "--buffer_name", "Made"))
    return folder


def killed(case: str, made: Path, tmp_path: Path, kills: int, seed: int) -> int:
    """How often the case's run was killed; its files are in the end those of one never stopped."""
    main, argv = CASES[case]
    argv = [*SMALL, *OFTEN, *argv]
    if "learn" in case:
        argv += ["--buffer_name", "Made"]
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        if "train" not in case:
            shutil.copytree(made, folder)
    measured = reference(main, argv, folders[0])
    generator = np.random.default_rng(seed)
    number = killed_and_finished(main, argv, folders[1], measured, kills, generator)
    assert differing(*folders) == []
    return number


@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_at_random_moments_ends_as_one_never_stopped(
    case: str, made: Path, tmp_path: Path
) -> None:
    assert killed(case, made, tmp_path, kills=4, seed=0) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", CASES)
def test_two_hundred_kills(case: str, seed: int, made: Path, tmp_path: Path) -> None:
    assert killed(case, made, tmp_path, kills=7, seed=1 + seed) >= 7  # 6 cases · 5 · 7 = 210


@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_after_its_first_results_goes_on_however_rarely_it_is_saved(
    case: str, made: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    main, argv = CASES[case]
    argv = [*argv, "--checkpoint_minutes", "1e6", *(["--buffer_name", "Made"] * ("learn" in case))]
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        if "train" not in case:
            shutil.copytree(made, folder)
    done(run(main, folders[0], *argv))
    with monkeypatch.context() as patched:

        def die(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        patched.setattr("common.run.record.Recorder._show", die)
        process = forked(main, [*SMALL, *argv, "--output_dir", str(folders[1])])
        assert ended(process) == -signal.SIGKILL
    done(run(main, folders[1], *argv))
    assert differing(*folders) == []


# --- signals


def progress(state: Path) -> int:
    """Steps, or iterations, that a checkpoint goes on from."""
    parts = read_sealed(state)["parts"]
    return parts["course"]["done"] if "course" in parts else parts["played"]["timesteps"]


def stopping(monkeypatch: pytest.MonkeyPatch, at: int, signum: int = signal.SIGTERM) -> None:
    """Send this process a signal as it comes by the `at`-th point from which it could go on."""
    look, seen = Checkpoint.save_if_due, 0

    def counted(self: Checkpoint, due: bool = False) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signum)
        look(self, due)

    monkeypatch.setattr(Checkpoint, "save_if_due", counted)


def stopped_and_finished(
    monkeypatch: pytest.MonkeyPatch, main: Any, folder: Path, argv: list[str], *at: int
) -> Outcome:
    """Stop the run at these points one after the other, then let it finish."""
    for point in at:
        with monkeypatch.context() as patched:
            stopping(patched, point)
            outcome = run(main, folder, *argv)
            assert outcome.status == 143 and "the same command goes on" in outcome.err
    return done(run(main, folder, *argv))


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_and_sigterm_save_and_end_with_their_status(
    case: str, made: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    main, argv = CASES[case]
    if "learn" in case:
        argv = [*argv, "--buffer_name", "Made"]
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    for folder in folders:
        if "train" not in case:
            shutil.copytree(made, folder)
    done(run(main, folders[0], *argv))
    before = 0
    for signum, status in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
        with monkeypatch.context() as patched:
            stopping(patched, 2, signum)
            outcome = run(main, folders[1], *argv)
        assert outcome.status == status
        assert outcome.err.endswith(
            "stopped: what was saved so far is kept, the same command goes on\n"
        )
        [state] = (folders[1] / "checkpoints").glob("*/state.pt")
        assert progress(state) > before  # nothing that was done until then is lost
        before = progress(state)
    assert "goes on where it stopped" in done(run(main, folders[1], *argv)).out
    assert differing(*folders) == [] and not state.exists()


def test_a_signal_while_evaluating_stops_at_once(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    argv = [*TOY, *LEARN, "--algorithm", "DDPG", "--buffer_name", "Made"]
    with pytest.MonkeyPatch.context() as patched:

        def evaluate(*_: Any) -> list[float]:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("not stopped")

        patched.setattr("common.environment.rollout.evaluate", evaluate)
        assert run(CONTINUOUS, folder, *argv).status == 143
    assert progress(folder / "checkpoints" / NAME / "state.pt") == 13  # the first evaluation's
    done(run(CONTINUOUS, folder, *argv))
    assert np.load(folder / "results" / "DDPG_Made_ToyReach-v0_0.npy").shape == (3,)


def test_a_second_signal_does_not_wait(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("common.resume.checkpoint.TWICE", 0.0)
    args = CONTINUOUS.parse_args(["--output_dir", str(tmp_path)])
    with pytest.raises(Stopped), Checkpoint(args, Folders(tmp_path, "Toy-v0", 0)) as checkpoint:
        checkpoint.claim("run", [])
        checkpoint.resume()
        os.kill(os.getpid(), signal.SIGINT)  # waits
        os.kill(os.getpid(), signal.SIGINT)


def test_after_a_run_the_signals_are_pythons_again(made: Path, tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    done(run(CONTINUOUS, tmp_path, *TOY, *TRAIN))
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


# --- the tasks that have more to remember


def both(tmp_path: Path, made: Path | None = None) -> list[Path]:
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    for folder in folders:
        if made:
            shutil.copytree(made, folder)
    return folders


def test_the_concurrent_task_goes_on_exactly(tmp_path: Path, monkeypatch: Any) -> None:
    folders = both(tmp_path)
    learn = [*TOY, *LEARN, "--concurrent", "--algorithm", "DDPG"]
    for folder in folders:
        done(run(CONTINUOUS, folder, *TOY, *TRAIN, "--buffer_size", "1000"))
    done(run(CONTINUOUS, folders[0], *learn))
    stopped_and_finished(monkeypatch, CONTINUOUS, folders[1], learn, 2, 3)
    assert differing(*folders) == []


def test_the_simulator_states_of_a_batch_go_on_exactly(tmp_path: Path, monkeypatch: Any) -> None:
    folders = both(tmp_path)
    train = ["--env", "Hopper-v4", *TRAIN, "--acting_candidates", "3"]
    done(run(CONTINUOUS, folders[0], *train))
    stopped_and_finished(monkeypatch, CONTINUOUS, folders[1], train, 1, 2)
    generate = ["--env", "Hopper-v4", *GENERATE, "--buffer_name", "Made"]
    done(run(CONTINUOUS, folders[0], *generate))
    stopped_and_finished(monkeypatch, CONTINUOUS, folders[1], generate, 1, 2)
    learn = ["--env", "Hopper-v4", *LEARN, "--algorithm", "DDPG", "--true_value"]
    learn += ["--discount", "0.5", "--buffer_name", "Made"]
    done(run(CONTINUOUS, folders[0], *learn))
    stopped_and_finished(monkeypatch, CONTINUOUS, folders[1], learn, 3, 4)
    assert len(list((folders[0] / "buffers").glob("*_simulator.npy"))) == 2
    assert differing(*folders) == []


def test_atari_goes_on_exactly(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(doors, "ATARI_STEPS", 12)
    folders = both(tmp_path)
    pong = ["--env", "PongNoFrameskip-v0"]  # sticky actions: the emulator's own generator
    train = [*pong, *TRAIN, "--max_timesteps", "60", "--buffer_size", "30", "--eval_freq", "40"]
    done(run(DISCRETE, folders[0], *train))
    stopped_and_finished(monkeypatch, DISCRETE, folders[1], train, 2, 2)
    assert differing(*folders) == []


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Blackjack-v1"])
def test_other_environments_go_on_exactly(env_id: str, tmp_path: Path, monkeypatch: Any) -> None:
    folders = both(tmp_path)
    train = ["--env", env_id, *TRAIN, "--max_timesteps", "300", "--start_timesteps", "250"]
    done(run(DISCRETE, folders[0], *train))
    stopped_and_finished(monkeypatch, DISCRETE, folders[1], train, 1, 1)
    assert differing(*folders) == []


def test_tensorboard_shows_a_resumed_run_as_one(
    made: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    folder = shutil.copytree(made, tmp_path / "out")
    argv = [*TOY, *LEARN, "--algorithm", "DDPG", "--buffer_name", "Made", "--tensorboard"]
    stopped_and_finished(monkeypatch, CONTINUOUS, folder, argv, 7)
    path = folder / "results" / "tensorboard" / "DDPG_Made_ToyReach-v0_0"
    events = EventAccumulator(str(path))
    events.Reload()
    assert [event.step for event in events.Scalars("return")] == [13, 26, 33]


# --- what goes on, what is refused


@pytest.fixture
def unfinished(made: Path, tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder in which the learning of ARGV was stopped."""
    folder = shutil.copytree(made, tmp_path / "out")
    with monkeypatch.context() as patched:
        stopping(patched, 2)
        assert run(CONTINUOUS, folder, *ARGV).status == 143
    return folder


ARGV = [*TOY, *LEARN, "--algorithm", "DDPG", "--buffer_name", "Made"]
NAME = "DDPG_Made_ToyReach-v0_0"


def refused(folder: Path, *words: str, argv: list[str] = ARGV) -> None:
    """One line with these words, and not a file changed."""
    before = snapshot(folder)
    outcome = run(CONTINUOUS, folder, *argv)
    assert outcome.status == 1, outcome
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    for word in words:
        assert word in outcome.err
    assert snapshot(folder) == before


def test_other_arguments_are_named_and_those_that_change_nothing_go_on(unfinished: Path) -> None:
    refused(unfinished, "discount 0.99, not 0.5", "--overwrite", argv=[*ARGV, "--discount", "0.5"])
    done(run(CONTINUOUS, unfinished, *ARGV, "--checkpoint_minutes", "1", "--device", "cpu"))
    refused(unfinished, f"{NAME}.npy exists", "--overwrite")


def test_overwrite_starts_anew_and_may_have_other_arguments(unfinished: Path) -> None:
    out = done(run(CONTINUOUS, unfinished, *ARGV, "--overwrite", "--discount", "0.5")).out
    assert "goes on" not in out
    assert not (unfinished / "checkpoints").exists()


def test_another_batch_under_the_same_name_is_refused(unfinished: Path) -> None:
    prefix = unfinished / "buffers" / "Made_ToyReach-v0_0"
    path = Path(f"{prefix}_reward.npy")
    reward = np.load(path)
    reward[1] += 1  # one number of all there are
    np.save(path, reward)
    refused(unfinished, f"{path.name} is damaged, or not of the batch")
    without_digests(prefix)
    refused(unfinished, "the batch is not the one", "--overwrite")


def test_another_batch_under_the_same_name_is_refused_where_actions_are_discrete(
    made: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    argv = [*CARTPOLE, *LEARN, "--buffer_name", "Made"]
    with monkeypatch.context() as patched:
        stopping(patched, 2)
        assert run(DISCRETE, folder, *argv).status == 143
    prefix = folder / "buffers" / "Made_CartPole-v1_0"
    reward = np.load(f"{prefix}_reward.npy")
    reward[1] += 1
    np.save(f"{prefix}_reward.npy", reward)
    without_digests(prefix)
    outcome = run(DISCRETE, folder, *argv)
    assert outcome.status == 1 and "the batch is not the one" in outcome.err


def test_results_without_a_checkpoint_are_refused(unfinished: Path) -> None:
    (unfinished / "results" / f"{NAME}.npy").touch()
    shutil.rmtree(unfinished / "checkpoints")
    refused(unfinished, f"{NAME}.npy exists", "--overwrite")


def test_a_damaged_checkpoint_is_refused_with_the_remedy(unfinished: Path) -> None:
    path = unfinished / "checkpoints" / NAME / "state.pt"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    refused(unfinished, str(path), "damaged: its checksum differs", "--overwrite")
    path.write_bytes(content.replace(b"checkpoint 1 ", b"checkpoint 0 ", 1))
    refused(unfinished, "another version of this code ('BCQ checkpoint 0'", "--overwrite")
    path.write_bytes(content)
    done(run(CONTINUOUS, unfinished, *ARGV))


@pytest.mark.parametrize("spoil", ["damage", "delete", "exchange"])
def test_a_damaged_file_of_the_buffer_is_refused(
    spoil: str, made: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    stopping(monkeypatch, 3)
    argv = [*TOY, *GENERATE]
    folder = shutil.copytree(made, tmp_path / "out")
    assert run(CONTINUOUS, folder, *argv).status == 143
    [path] = (folder / "checkpoints").glob("*/rows_*.pt")
    if spoil == "damage":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    elif spoil == "delete":
        path.unlink()
    else:  # by a whole one: of another run, say
        rows = read_sealed(path)
        write_sealed(path, rows | {"reward": rows["reward"] + 1})
    refused(folder, path.name, "--overwrite", argv=argv)


def test_a_checkpoints_folder_holds_what_it_names_and_nothing_else(
    tmp_path: Path, monkeypatch: Any
) -> None:
    folder = tmp_path / "checkpoints" / "behavioral_ToyReach-v0_0"
    folder.mkdir(parents=True)
    (folder / ".state.pt.1.tmp").touch()
    stopping(monkeypatch, 14)  # of 140 steps the buffer holds 90
    assert run(CONTINUOUS, tmp_path, *TOY, *TRAIN, *OFTEN).status == 143
    named = [name for name, *_ in read_sealed(folder / "state.pt")["parts"]["rows"]["files"]]
    assert {path.name for path in folder.iterdir()} == {"state.pt", *named}
    assert 9 <= len(named) < 14


def test_where_the_next_checkpoint_cannot_be_written_the_former_one_goes_on(
    unfinished: Path,
) -> None:
    path = unfinished / "checkpoints" / NAME / "state.pt"
    before = path.read_bytes()
    with largest_file(len(before) // 2):
        refused(unfinished, "cannot write", path.name, "free some space")
    assert path.read_bytes() == before
    done(run(CONTINUOUS, unfinished, *ARGV))


def test_a_checkpoint_of_another_code_is_refused(unfinished: Path) -> None:
    path = unfinished / "checkpoints" / NAME / "state.pt"
    state = read_sealed(path)
    nothing: dict[str, Any] = {name: {} for name in state["parts"]}
    for name, other in [("parts", {}), ("parts", nothing), ("arguments", 3)]:
        write_sealed(path, state | {name: other})
        refused(unfinished, str(path.parent), "--overwrite")


def test_a_run_that_another_process_makes_is_refused(unfinished: Path) -> None:
    lock = Lock(unfinished / "checkpoints" / NAME / "lock")
    refused(unfinished, f"{NAME} is being made by process {os.getpid()} on ", "wait")
    lock.release()
    (unfinished / "checkpoints" / NAME / "lock").write_text("process 1 on a machine long gone\n")
    done(run(CONTINUOUS, unfinished, *ARGV))


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_a_folder_that_an_ending_run_takes_along_is_made_again(
    error: type[OSError], tmp_path: Path, monkeypatch: Any
) -> None:
    mkdir = os.mkdir
    raced: list[Any] = []

    def racing(path: Any, *mode: Any, **options: Any) -> None:
        if Path(path).name == "run" and len(raced) < 2:  # pathlib itself tries twice
            raced.append(path)
            raise error(path)
        mkdir(path, *mode, **options)

    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(os, "mkdir", racing)
    Lock(tmp_path / "checkpoints" / "run" / "lock").release()
    assert len(raced) == 2


def test_a_file_in_the_place_of_the_locks_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(InputError, match=r"cannot write .*run/lock"):
        Lock(tmp_path / "run" / "lock")


def test_an_owner_that_ends_as_it_is_named_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: Any
) -> None:
    lock = Lock(tmp_path / "run" / "lock")

    def gone(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", gone)
    with pytest.raises(InputError, match="run is being made by another process"):
        Lock(tmp_path / "run" / "lock")
    lock.release()


def test_of_two_processes_at_once_one_is_refused(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    argv = [*SMALL, *ARGV, "--output_dir", str(folder)]
    statuses = [ended(process) for process in [forked(CONTINUOUS, argv) for _ in range(3)]]
    assert statuses.count(0) == 1 and statuses.count(1) == 2


@pytest.mark.parametrize("case", ["continuous generate", "discrete train"])
def test_a_finished_runs_state_goes_before_the_rows_that_it_names(
    case: str, made: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    unlink, gone = Path.unlink, list[str]()

    def noted(self: Path, **options: Any) -> None:
        if self.parent.parent.name == "checkpoints":
            gone.append(self.name)
        unlink(self, **options)

    folder = shutil.copytree(made, tmp_path / "out")
    monkeypatch.setattr(Path, "unlink", noted)
    main, argv = CASES[case]
    done(run(main, folder, *argv, *OFTEN, "--overwrite"))
    assert any(name.startswith("rows_") for name in gone[gone.index("state.pt") :])


def test_temporary_files_of_killed_runs_go_and_others_stay(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    own = [f"results/.{NAME}.npy", f"results/.{NAME}_value.npy", f"results/.{NAME}.json",
           f"models/.{NAME}.pt", f"models/.{NAME}_best.pt"]  # fmt: skip
    others = ["results/.DDPG_Mad_ToyReach-v0_0.npy", f"models/.{NAME}0.pt",
              "buffers/.Made_ToyReach-v0_0_state.npy"]  # fmt: skip
    for name in [*own, *others]:
        (folder / f"{name}.{dead}.tmp").touch()
    alive = folder / f"{own[0]}.{os.getppid()}.tmp"
    alive.touch()
    done(run(CONTINUOUS, folder, *ARGV))
    left = {path for path in snapshot(folder) if path.endswith(".tmp")}
    assert left == {str(alive.relative_to(folder)), *(f"{name}.{dead}.tmp" for name in others)}
    done(run(CONTINUOUS, folder, *TOY, *GENERATE, "--buffer_name", "Made", "--overwrite"))
    assert not list((folder / "buffers").glob(".*"))
