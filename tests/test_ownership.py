"""One owner of a batch at a time: stage 1, stage 2 and the importer, running or stopped."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, run_main, snapshot
from kills import differing, ended
from test_resume import (  # noqa: F401
    ARGV,
    CARTPOLE,
    CONTINUOUS,
    DISCRETE,
    GENERATE,
    NAME,
    TOY,
    TRAIN,
    _short_chunks,
    done,
    made,
    run,
    stopping,
)

import import_dataset
from common.errors import InputError
from common.files import Folders
from common.resume.checkpoint import Checkpoint
from common.resume.lock import Lock
from common.resume.ownership import Ownership

MINE = ["--buffer_name", "Mine"]
VARIANTS = {"continuous": (CONTINUOUS, TOY), "discrete": (DISCRETE, CARTPOLE)}


def imported(folder: Path, *more: str, env: str = "ToyReach-v0") -> Outcome:
    """import_dataset.py with 20 rows under the name Mine."""
    rows, discrete = 20, env == "CartPole-v1"
    folder.mkdir(exist_ok=True)
    path = folder.parent / "rows.npz"
    state = np.zeros((rows, 4 if discrete else 2), np.float32)
    action = np.zeros((rows, 1 if discrete else 2), np.float32)
    cut = np.arange(rows) % 10 == 9
    np.savez(path, state=state, action=action, reward=np.zeros(rows), truncated=cut)
    argv = ["--npz", str(path), "--env", env, *MINE, "--output_dir", str(folder), *more]
    return run_main(import_dataset, *argv)


def batch(folder: Path) -> dict[str, bytes]:
    """The files of the batch."""
    return {path: content for path, content in snapshot(folder).items() if "buffers/Mine_" in path}


def refused(folder: Path, outcome: Outcome, *words: str) -> None:
    """One line with these words."""
    assert outcome.status == 1 and outcome.err.count("\n") == 1, outcome
    for word in words:
        assert word in outcome.err, outcome.err


@pytest.fixture(params=VARIANTS)
def stopped(
    request: pytest.FixtureRequest,
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Path, Callable[..., Outcome], str]:
    """A folder in which stage 2 of the batch Mine was stopped, its command, its environment."""
    main, env = VARIANTS[request.param]
    folder = shutil.copytree(made, tmp_path / "out")

    def generate(*more: str) -> Outcome:
        return run(main, folder, *env, *GENERATE, *MINE, *more)

    with monkeypatch.context() as patched:
        stopping(patched, 2)
        assert generate().status == 143
    return folder, generate, env[1]


def test_the_batch_of_a_stopped_stage_2_is_not_made_by_another(stopped: Any) -> None:
    folder, generate, env = stopped
    before = snapshot(folder)
    words = ("unfinished run", f"buffer_performance_Mine_{env}_0", "--overwrite")
    refused(folder, imported(folder, env=env), *words)
    assert snapshot(folder) == before
    done(generate())


def test_what_took_the_batch_of_a_stopped_stage_2_is_not_replaced_by_it(stopped: Any) -> None:
    folder, generate, env = stopped
    assert imported(folder, "--overwrite", env=env).status == 0
    kept = batch(folder)
    refused(folder, generate(), "another run has made", "moved away", "--overwrite")
    assert batch(folder) == kept
    for path in (folder / "buffers").glob("Mine_*"):
        path.unlink()
    done(generate())


def test_a_batch_that_comes_while_it_is_made_is_not_replaced(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = [shutil.copytree(made, tmp_path / name) for name in ("whole", "out")]
    done(run(CONTINUOUS, folders[0], *TOY, *GENERATE, *MINE))
    look, looks = Checkpoint.save_if_due, 0

    def copies(self: Checkpoint, due: bool = False) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            for path in (folders[1] / "buffers").glob("Made_ToyReach*"):
                shutil.copy(path, path.with_name(path.name.replace("Made", "Mine")))
        look(self, due)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "save_if_due", copies)
        outcome = run(CONTINUOUS, folders[1], *TOY, *GENERATE, *MINE)
    refused(folders[1], outcome, "Mine_ToyReach-v0_0_*.npy are a batch that another run has made")
    refused(folders[1], run(CONTINUOUS, folders[1], *TOY, *GENERATE, *MINE), "moved away")
    for path in (folders[1] / "buffers").glob("Mine_*"):
        assert path.read_bytes() == path.with_name(path.name.replace("Mine", "Made")).read_bytes()
        path.unlink()
    assert "goes on" in done(run(CONTINUOUS, folders[1], *TOY, *GENERATE, *MINE)).out
    assert differing(*folders) == []


def test_while_a_batch_is_made_nothing_else_makes_it(
    made: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    with Ownership(Folders(folder, "ToyReach-v0", 0), "Mine", "import", overwrite=False):
        before, owner = snapshot(folder), f"process {os.getpid()}"
        for outcome in (
            imported(folder, "--overwrite"),
            run(CONTINUOUS, folder, *TOY, *GENERATE, *MINE, "--overwrite"),
            run(CONTINUOUS, folder, *TOY, *TRAIN, *MINE, "--overwrite"),
        ):
            refused(folder, outcome, f"batch_Mine_ToyReach-v0_0 is being made by {owner}")
        assert snapshot(folder) == before
    assert imported(folder).status == 0 and not (folder / "checkpoints").exists()


def test_a_stopped_stage_1_owns_its_batch(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "out"
    with monkeypatch.context() as patched:
        stopping(patched, 3)
        assert run(CONTINUOUS, folder, *TOY, *TRAIN, *MINE).status == 143
    shutil.copytree(made / "models", folder / "models", dirs_exist_ok=True)
    refused(folder, imported(folder), "behavioral_ToyReach-v0_0, an unfinished run")
    refused(folder, run(CONTINUOUS, folder, *TOY, *GENERATE, *MINE), "an unfinished run")
    done(run(CONTINUOUS, folder, *TOY, *TRAIN, *MINE))


def test_what_stage_2_said_of_a_batch_goes_with_it(tmp_path: Path) -> None:
    done(run(CONTINUOUS, tmp_path, *TOY, *TRAIN, "--buffer_name", "Other"))
    done(run(CONTINUOUS, tmp_path, *TOY, *GENERATE, *MINE))
    performance = tmp_path / "results" / "buffer_performance_Mine_ToyReach-v0_0.npy"
    assert performance.exists()
    done(run(CONTINUOUS, tmp_path, *TOY, *TRAIN, *MINE, "--overwrite"))
    assert not performance.exists() and not performance.with_suffix(".json").exists()


def test_the_owner_of_a_killed_import_is_forgotten(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        Ownership(Folders(tmp_path / "out", "ToyReach-v0", 0), "Mine", "import", False)
        os.kill(os.getpid(), signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    assert imported(tmp_path / "out").status == 0
    assert not (tmp_path / "out" / "checkpoints").exists()


# --- the lock, deleted


def test_a_deleted_lock_is_taken_again_unless_another_was_faster(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "a" / "lock")
    shutil.rmtree(tmp_path / "a")
    assert not lock.ours
    lock.keep()
    assert lock.ours and (tmp_path / "a" / "lock").exists()
    shutil.rmtree(tmp_path / "a")
    other = Lock(tmp_path / "a" / "lock")
    with pytest.raises(InputError, match="is being made by process"):
        lock.keep()
    lock.release()
    assert other.ours and (tmp_path / "a" / "lock").exists()


def test_where_the_folder_of_checkpoints_is_deleted_one_of_two_runs_ends(
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(made, tmp_path / "out")
    look, looks, second = Checkpoint.save_if_due, 0, []

    def hostile(self: Checkpoint, due: bool = False) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            shutil.rmtree(folder / "checkpoints")
            second.append(Lock(folder / "checkpoints" / NAME / "lock"))
        look(self, due)

    monkeypatch.setattr(Checkpoint, "save_if_due", hostile)
    before = snapshot(folder / "results")
    outcome = run(CONTINUOUS, folder, *ARGV)
    refused(folder, outcome, f"{NAME} is being made by process")
    assert snapshot(folder / "results") == before
    assert second[0].ours
