"""Around stopping: nothing printed decides what is saved, and the message tells the truth."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from kills import differing, ended
from test_resume import (  # noqa: F401
    ARGV,
    CARTPOLE,
    CONTINUOUS,
    DISCRETE,
    GENERATE,
    NAME,
    SMALL,
    TOY,
    TRAIN,
    _short_chunks,
    done,
    made,
    run,
    stopping,
)  # fmt: skip

from common import errors
from common.errors import going_on
from common.resume import checkpoint as checkpoint_module
from common.run import record as record_module

# --- streams that fail


def piped() -> None:
    """`2>&1 | tee log`, and tee is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    for number in (1, 2):
        os.dup2(writer, number)


def closed() -> None:
    """`>&- 2>&-`."""
    os.close(1)
    os.close(2)


def full() -> None:
    """`> log 2>&1` on a full disk."""
    for number in (1, 2):
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)


def hung_up() -> None:
    """A terminal that is gone."""
    master, slave = os.openpty()
    for number in (1, 2):
        os.dup2(slave, number)
    os.close(master)


GONE: list[Callable[[], None]] = [piped, closed, full, hung_up]


def opened(number: int) -> Any:
    """A standard stream as python makes it, of the fewest characters there are."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "ascii", write_through=True)


def unread(gone: Callable[[], None], folder: Path, *argv: str, stop_at: int = 0) -> int:
    """The status of a command line whose output nobody can read, sent SIGTERM at that point."""
    process = os.fork()
    if process:
        return ended(process)
    status: Any = 70
    try:
        gone()
        sys.stdout, sys.stderr = opened(1), opened(2)
        sys.argv = ["main.py", *SMALL, *argv, "--output_dir", str(folder)]
        if stop_at:
            stopping(pytest.MonkeyPatch(), stop_at)
        errors.run(CONTINUOUS.main)
    except SystemExit as end:
        status = end.code
    finally:
        os._exit(status if isinstance(status, int) else 1)


@pytest.mark.parametrize("gone", GONE)
def test_a_stop_saves_and_the_run_goes_on_where_nobody_reads_what_is_printed(
    gone: Callable[[], None],
    made: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folders = [shutil.copytree(made, tmp_path / name) for name in ("whole", "unread")]
    done(run(CONTINUOUS, folders[0], *ARGV))
    assert unread(gone, folders[1], *ARGV, stop_at=2) == 143
    assert (folders[1] / "checkpoints" / NAME / "state.pt").exists()
    assert unread(gone, folders[1], *ARGV) == 0
    assert differing(*folders) == []


@pytest.mark.parametrize("stage", [TRAIN, GENERATE])
def test_stages_1_and_2_the_same(
    stage: list[str],
    made: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    for path in (folder / "results").glob("behavioral*"):
        path.unlink()
    for path in (folder / "models").glob("behavioral*"):
        if stage is TRAIN:
            path.unlink()
    assert unread(piped, folder, *TOY, *stage, stop_at=2) == 143
    assert len(list((folder / "checkpoints").glob("*/state.pt"))) == 1
    assert unread(piped, folder, *TOY, *stage) == 0


def test_a_file_never_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        closed()
        sys.stdout = sys.stderr = None

        def main() -> None:
            with (tmp_path / "file").open("w") as file:
                print("to nobody")
                os.write(2, b"from a library")
                os._exit(0 if file.fileno() > 2 else 1)

        errors.run(main)
    assert ended(process) == 0 and (tmp_path / "file").read_text() == ""


def test_packages_are_imported_where_streams_are_closed() -> None:
    process = os.fork()
    if not process:
        closed()
        errors.end_quietly()  # the scripts' first call
        os._exit(0 if all(os.get_inheritable(number) for number in range(3)) else 1)
    assert ended(process) == 0


# --- signals


def test_a_lost_terminal_saves_and_nohup_goes_on(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    with monkeypatch.context() as patched:
        stopping(patched, 2, signal.SIGHUP)
        assert run(CONTINUOUS, folder, *ARGV).status == 129
    assert (folder / "checkpoints" / NAME / "state.pt").exists()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stopping(monkeypatch, 2, signal.SIGHUP)
        done(run(CONTINUOUS, folder, *ARGV))
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_sent_twice_at_once_is_one(
    signum: int,
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    saved: list[int] = []
    save = checkpoint_module.Checkpoint.save

    def counted(self: Any) -> None:
        saved.append(1)
        save(self)

    def twice(self: Any, due: bool = False) -> None:
        saved.clear()
        for _ in range(2):
            os.kill(os.getpid(), signum)
        look(self, due)

    look = checkpoint_module.Checkpoint.save_if_due
    monkeypatch.setattr(checkpoint_module.Checkpoint, "save", counted)
    monkeypatch.setattr(checkpoint_module.Checkpoint, "save_if_due", twice)
    assert run(CONTINUOUS, folder, *ARGV).status == 128 + signum
    assert saved == [1]


# --- what goes on


def test_the_command_that_goes_on_is_named(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    with monkeypatch.context() as patched:
        stopping(patched, 2)
        outcome = run(CONTINUOUS, folder, "--overwrite", *ARGV)
    words = [*SMALL, *ARGV, "--output_dir", str(folder)]
    assert outcome.err.endswith(f"is kept, python main.py {' '.join(words)} goes on\n")
    assert "goes on where it stopped" in done(run(CONTINUOUS, folder, *ARGV)).out
    assert (
        going_on(["main.py", "--env", "a b", "--overwrite"]) == "python main.py --env 'a b' goes on"
    )
    assert going_on(["main.py", "--overwrite_not"]) == "the same command goes on"


@pytest.mark.parametrize(("main", "env"), [(CONTINUOUS, TOY), (DISCRETE, CARTPOLE)])
@pytest.mark.parametrize("at", ["making the environment", "before the first checkpoint"])
def test_where_nothing_is_saved_yet_nobody_is_told_that_it_goes_on(
    at: str, main: Any, env: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(main, "make_env" if at.startswith("making") else "make_agent", stop)
    outcome = run(main, tmp_path, *env, *TRAIN)
    told = "stopped: nothing had been done yet; give the same command again\n"
    assert (outcome.status, outcome.err) == (143, told)
    assert not list(tmp_path.rglob("*.*"))


def test_the_commit_is_read_without_a_lock_that_a_kill_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*argv: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *argv], check=True, capture_output=True)

    monkeypatch.setattr(record_module, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record_module.code()["commit"] is None
    git("init", "--quiet")
    file, index = tmp_path / "file", tmp_path / ".git" / "index"
    file.write_text("as it was")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    os.utime(file, (0, 0))  # now git would like to write its index anew
    before = index.read_bytes()
    commit = record_module.code()["commit"]
    assert len(commit) == 12 and index.read_bytes() == before
    file.write_text("as it is")
    assert record_module.code()["commit"] == f"{commit}-dirty"


OTHER_CODE = {"versions": {"torch": "0.0"}, "commit": "b-dirty", "source": "2"}


@pytest.mark.parametrize("stage", [TRAIN, GENERATE, ARGV])
def test_other_code_that_goes_on_is_said_and_recorded_with_its_first_step(
    stage: list[str],
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "out" if stage is TRAIN else shutil.copytree(made, tmp_path / "out")
    first = {"versions": {"torch": "0.0"}, "commit": "a", "source": "1"}
    argv, changes = [*TOY, *stage], []
    for at, code in [(2, first), (2, first), (1, OTHER_CODE)]:
        with monkeypatch.context() as patched:
            patched.setattr("common.run.record.code", lambda code=code: dict(code))
            stopping(patched, at)
            outcome = run(CONTINUOUS, folder, *argv)
            assert outcome.status == 143
            changes.append("commit b-dirty, not a" in outcome.out)
    assert changes == [False, False, True]
    monkeypatch.setattr(
        "common.run.record.code", lambda: OTHER_CODE | {"versions": {"torch": "1.0"}}
    )
    assert "torch 1.0, not 0.0" in done(run(CONTINUOUS, folder, *argv)).out
    names = {
        0: "results/behavioral",
        1: "results/buffer_performance_Robust",
        2: "results/DDPG_Made",
    }
    name = names[[TRAIN, GENERATE, ARGV].index(stage)]
    records = [json.loads((folder / f"{name}_ToyReach-v0_0.json").read_text())]
    if stage is not ARGV:
        records.append(json.loads((folder / "buffers/Robust_ToyReach-v0_0.json").read_text()))
    for record in records:
        assert record["commit"] == "a" and record["versions"] == {"torch": "0.0"}
        one, other = record["code_changes"]
        assert 0 < one["step"] <= other["step"]
        assert (one["commit"], one["source"], other["versions"]) == (
            "b-dirty",
            "2",
            {"torch": "1.0"},
        )
    if stage is not ARGV:
        assert records[1]["finished"] is True


def test_a_change_of_any_source_file_is_a_change_of_code() -> None:
    known = record_module.code()
    assert record_module.code_differences(known, known) == []
    assert record_module.code_differences(known | {"source": "x"}, known)
    older = {key: known[key] for key in ("versions", "commit")}
    assert record_module.code_differences(older, known) == []
    named = {path for pattern in record_module.SOURCES for path in ROOT.glob(pattern)}
    assert {ROOT / "common/agent.py", ROOT / "common/run/record.py"} <= named
    assert {ROOT / "continuous_BCQ/BCQ.py", ROOT / "discrete_BCQ/main.py"} <= named


def test_the_batch_of_a_stopped_stage_1_says_that_it_is_a_part(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        stopping(patched, 3)
        assert run(CONTINUOUS, tmp_path, *TOY, *TRAIN).status == 143
    batch = json.loads((tmp_path / "buffers/Robust_ToyReach-v0_0.json").read_text())
    assert batch["finished"] is False and 0 < batch["transitions"] < 90
    out = done(run(CONTINUOUS, tmp_path, *TOY, "--max_timesteps", "2", "--algorithm", "BC")).out
    assert f"of an unfinished run: {batch['transitions']} transitions so far" in out


@pytest.mark.parametrize(("main", "env"), [(CONTINUOUS, TOY), (DISCRETE, CARTPOLE)])
def test_a_signal_in_the_last_evaluation_of_stage_2_ends_it_at_once(
    main: Any,
    env: list[str],
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = [shutil.copytree(made, tmp_path / name) for name in ("whole", "stopped")]
    argv = [*env, *GENERATE, "--buffer_name", "Mine"]
    done(run(main, folders[0], *argv))

    def evaluate(*_: Any) -> list[float]:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not stopped")

    with monkeypatch.context() as patched:
        patched.setattr("common.environment.rollout.evaluate", evaluate)
        outcome = run(main, folders[1], *argv)
    assert outcome.status == 143 and "at the next checkpoint" not in outcome.err
    assert "goes on where it stopped" in done(run(main, folders[1], *argv)).out
    assert differing(*folders) == []


@pytest.mark.parametrize(("main", "env"), [(CONTINUOUS, TOY), (DISCRETE, CARTPOLE)])
def test_stage_2_does_not_go_on_with_another_policy(
    main: Any,
    env: list[str],
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    argv = [*env, *GENERATE, "--buffer_name", "Mine"]
    with monkeypatch.context() as patched:
        stopping(patched, 2)
        assert run(main, folder, *argv).status == 143
    done(run(main, folder, *env, *TRAIN, "--buffer_name", "Other", "--overwrite", "--tau", "0.5"))
    outcome = run(main, folder, *argv)
    assert outcome.status == 1 and "the behavioural policy is not the one" in outcome.err
    assert "--overwrite" in outcome.err
    done(run(main, folder, *argv, "--overwrite"))


@pytest.mark.parametrize("script", ["continuous_BCQ/main.py", "import_dataset.py"])
def test_a_renderer_that_is_not_there_is_one_line(script: str) -> None:
    # As the package behaves whose library is missing.
    broken = "import runpy, sys; sys.modules['mujoco'] = None; sys.argv = sys.argv[1:]"
    words = ["-c", f"{broken}; runpy.run_path(sys.argv[0], run_name='__main__')"]
    ended = subprocess.run(
        [sys.executable, *words, str(ROOT / script)],
        env=os.environ | {"MUJOCO_GL": "osmesa"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("error: MUJOCO_GL=osmesa cannot be loaded here")
    assert "egl, or unset it" in ended.stderr


def test_the_quickstart_goes_on_at_the_stage_where_it_was_stopped(tmp_path: Path) -> None:
    log, stop = tmp_path / "log", tmp_path / "stop"
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n'
        f'case "$*" in *--algorithm*) [ ! -e {stop} ] || kill -INT $$ ;; esac\n'
    )
    python.chmod(0o755)
    for name in ("../requirements.txt", ".created", ".installed"):
        (tmp_path / "venv" / name).touch()
    make = ["make", "--silent", "-C", str(tmp_path), "-f", str(ROOT / "Makefile")]
    make += ["quickstart", "VENV=venv"]

    def made_stages() -> list[str]:
        log.write_text("")
        subprocess.run(make, capture_output=True, check=False)
        lines = log.read_text().splitlines()
        assert not [line for line in lines if "--overwrite" in line]
        names = ("train_behavioral", "generate_buffer", "--algorithm DDPG", "3000", "plot.py")
        return [next(name for name in names if name in line) for line in lines]

    stop.touch()
    assert made_stages() == ["train_behavioral", "generate_buffer", "--algorithm DDPG"]
    assert made_stages() == ["--algorithm DDPG"]
    stop.unlink()
    assert made_stages() == ["--algorithm DDPG", "3000", "plot.py"]
    assert len(made_stages()) == 5  # what was finished begins anew
