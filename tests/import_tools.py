"""What the tests of import_dataset.py share: running it, small data sets, what a batch holds."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from conftest import Outcome, run_main

import import_dataset

Columns = dict[str, Any]
BATCH = ("state", "action", "next_state", "reward", "not_done")


def imported(folder: Path, *argv: str | Path, name: str = "B") -> Outcome:
    """Run import_dataset.py with an output folder."""
    words = ["--buffer_name", name, "--output_dir", folder, *argv]
    return run_main(import_dataset, *map(str, words))


def refused(folder: Path, outcome: Outcome, *words: str) -> None:
    """A one-line error with these words, and nothing of a batch in the folder."""
    assert outcome.status == 1, outcome
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    # Without the folder that pytest names after the test: its words are not the error's.
    said = re.sub(r"/test_\w+\d+(?=[/;:,' \n])", "/…", outcome.err)
    for word in words:
        assert word in said, outcome.err
    assert not list(folder.glob("buffers/*")) + list(folder.glob("buffers/.*"))


def batch(folder: Path, env: str = "Pendulum-v1", name: str = "B") -> dict[str, np.ndarray]:
    """The columns of an imported batch."""
    return {c: np.load(folder / "buffers" / f"{name}_{env}_0_{c}.npy") for c in BATCH}


def write_hdf5(path: Path, columns: Columns) -> Path:
    """A D4RL file of these columns; None leaves one out."""
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            if column is not None:
                file[name] = column
    return path


def pendulum_rows(states: list[float], **columns: Any) -> Columns:
    """D4RL columns for Pendulum: every state is (x, x, x), action and reward count the rows."""
    count = len(states)
    rows = np.arange(count, dtype=np.float32)
    return {
        "observations": np.array(states, np.float32)[:, None] * np.ones((1, 3), np.float32),
        "actions": rows[:, None] / count,
        "rewards": rows,
        "terminals": np.zeros(count, bool),
        "timeouts": np.zeros(count, bool),
    } | columns


@contextlib.contextmanager
def silence() -> Any:
    """What a library prints is not shown."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
