"""Three hundred corruptions of small valid files: a right import, or a line that names the file."""

import contextlib
import csv
import functools
import gzip
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from conftest import Harmful
from import_tools import BATCH, imported, refused
from minari.data_collector import EpisodeBuffer

import import_dataset
from common.data.frames import FrameBuffer
from common.data.replay import ReplayBuffer

CASES = 300
ROWS = 30
GAME = "PongNoFrameskip-v0"
NAMES = {
    "state": "observations", "action": "actions", "reward": "rewards", "terminated": "terminals",
    "truncated": "timeouts", "next_state": "next_observations",
}  # fmt: skip
Columns = dict[str, Any]
Draw = np.random.Generator


def valid(draw: Draw) -> Columns:
    """Columns of Pendulum that can be imported, with or without those that need not be there."""
    columns: Columns = {
        "state": draw.normal(size=(ROWS, 3)).astype(np.float32),
        "action": draw.uniform(-2, 2, (ROWS, 1)).astype(np.float32),
        "reward": draw.normal(size=ROWS).astype(np.float32),
        "terminated": draw.random(ROWS) < 0.1,
    }
    if draw.random() < 0.7:
        columns["truncated"] = draw.random(ROWS) < 0.1
    if draw.random() < 0.3:
        columns["next_state"] = draw.normal(size=(ROWS, 3)).astype(np.float32)
    return columns


def expected(columns: Columns) -> list[tuple[Any, ...]]:
    """The transitions, by a loop over the rows that knows nothing of blocks."""
    steps, found = 0, []
    flat = {name: np.asarray(column).reshape(ROWS, -1) for name, column in columns.items()}
    for row in range(ROWS):
        steps += 1
        terminated = "terminated" in flat and flat["terminated"][row, 0] == 1
        truncated = flat["truncated"][row, 0] == 1 if "truncated" in flat else steps == 200
        state = np.float32(flat["state"][row])
        if "next_state" in flat:
            successor = np.float32(flat["next_state"][row])
            if terminated and not np.isfinite(successor).all():
                successor = state
        elif terminated:
            successor = state
        elif truncated or row == ROWS - 1:
            steps = 0
            continue
        else:
            successor = np.float32(flat["state"][row + 1])
        steps = 0 if terminated or truncated else steps
        one = (state, np.float32(flat["action"][row]), successor, np.float32(flat["reward"][row]))
        found.append((*one, np.array([not terminated], np.float32)))
    return found


def damage_columns(columns: Columns, draw: Draw) -> str:
    """Change the shape, type or values of one column, or take it away; says how."""
    name = str(draw.choice(list(columns)))
    column = np.array(columns[name])
    kind = str(draw.choice(["shape", "dtype", "missing", "values"]))
    if kind == "missing":
        del columns[name]
    elif kind == "shape":
        shapes = [
            column[:-1], column[:0], column[None], np.stack([column, column], -1), column[0],
            column.reshape(ROWS, -1)[:, :1], column.reshape(-1), column.reshape(ROWS, -1, 1),
        ]  # fmt: skip
        columns[name] = shapes[draw.integers(len(shapes))]
    elif kind == "dtype":
        dtype = draw.choice(["f2", "f8", "i1", "u8", "c8", "S3", "?", ">f4", "i8"])
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns[name] = column.astype(dtype)
    else:
        value = draw.choice([np.nan, np.inf, 1e300, -1, 2, 0.5])
        changed = column.astype(np.float64)
        changed.reshape(-1)[draw.integers(changed.size)] = value
        columns[name] = changed
    return f"{kind} of {name}"


def damage_bytes(path: Path, draw: Draw) -> str:
    """Change, cut or insert some bytes of a file; says how."""
    content = bytearray(path.read_bytes())
    kind = str(draw.choice(["flip", "cut", "insert", "blank"]))
    place = int(draw.integers(len(content)))
    if kind == "flip":
        for where in draw.integers(len(content), size=draw.integers(1, 20)):
            content[where] = draw.integers(256)
    elif kind == "cut":
        del content[place:]
    elif kind == "insert":
        content[place:place] = draw.bytes(int(draw.integers(1, 50)))
    else:
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    path.write_bytes(bytes(content))
    return f"{kind} in {path.name}"


def write_table(path: Path, columns: Columns) -> None:
    """A .csv; what is no column of rows is written as it can be."""
    table = {}
    for name, column in columns.items():
        flat = np.atleast_1d(np.asarray(column))
        flat = flat.reshape(len(flat), flat[:1].size)
        numbered = flat.shape[1] > 1 or name == "state"
        for place in range(flat.shape[1]):
            table[f"{name}_{place}" if numbered else name] = flat[:, place].tolist()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=False))


def make(kind: str, folder: Path, draw: Draw) -> tuple[list[Any], str, Columns | None]:
    """A damaged data set: flags, what was done, and its columns where they are known."""
    columns, in_columns = valid(draw), draw.random() < 0.6
    what = damage_columns(columns, draw) if in_columns and kind != "dqn_replay" else ""
    if kind == "d4rl":
        path = folder / "data.hdf5"
        with h5py.File(path, "w") as file:
            for name, column in columns.items():
                file[NAMES[name]] = column
    elif kind == "npz":
        path = folder / "data.npz"
        np.savez_compressed(path, **columns)
    elif kind == "csv":
        path = folder / "data.csv"
        write_table(path, columns)
    elif kind == "minari":
        path = make_minari(folder, columns)
    else:
        path = make_shard(folder, draw)
    if what:
        known = columns if kind in ("d4rl", "npz") else None
        return [f"--{kind}", path, "--env", "Pendulum-v1"], what, known
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    what = damage_bytes(files[draw.integers(len(files))], draw)
    env = GAME if kind == "dqn_replay" else "Pendulum-v1"
    return [f"--{kind}", path, "--env", env], what, None


def make_minari(folder: Path, columns: Columns) -> Path:
    steps = {"action": "actions", "reward": "rewards", "terminated": "terminations",
             "truncated": "truncations"}  # fmt: skip
    state = np.array(columns.get("state", np.zeros((ROWS, 3))))
    last = state[-1:] if state.ndim else state
    parts = {keep: np.array(columns[name]) for name, keep in steps.items() if name in columns}
    parts.setdefault("truncations", np.zeros(ROWS))
    episode = EpisodeBuffer(observations=np.concatenate([state, last]) if state.ndim else state)
    episode = EpisodeBuffer(observations=episode.observations, **parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):  # what Minari left of it is still read
            minari.create_dataset_from_buffers("toy/set-v0", [episode], env="Pendulum-v1")
    return folder / "minari" / "toy" / "set-v0"


def make_shard(folder: Path, draw: Draw) -> Path:
    columns: Columns = {
        "observation": draw.integers(0, 255, (6, 84, 84)).astype(np.uint8),
        "action": draw.integers(0, 6, 6).astype(np.int32),
        "reward": draw.normal(size=6).astype(np.float32),
        "terminal": np.array([0, 0, 1, 0, 0, 0], np.uint8),
    }
    path = folder / "Pong"
    path.mkdir()
    for name, column in columns.items():
        with gzip.open(path / f"$store$_{name}_ckpt.0.gz", "wb", compresslevel=1) as file:
            np.save(file, column)
    return path


def check_import(folder: Path, argv: list[Any], columns: Columns | None) -> None:
    """The batch is whole, finite and, where the columns are known, what a loop makes of them."""
    prefix = folder / "buffers" / f"B_{argv[-1]}_0"
    if argv[-1] == GAME:
        frames = FrameBuffer((4, 84, 84), "cpu", 1)
        frames.load(prefix)
        assert 0 < frames.size <= 6
        return
    replay_buffer = ReplayBuffer(3, 1, "cpu", 1)
    replay_buffer.load(prefix)
    assert 0 < replay_buffer.size <= ROWS
    assert (replay_buffer.action.abs() <= 2 * (1 + 1e-6)).all()
    if columns is not None:
        rows = expected(columns)
        batch = replay_buffer.rows(np.arange(replay_buffer.size))
        for name, column, wanted in zip(BATCH, batch, zip(*rows, strict=True), strict=True):
            np.testing.assert_array_equal(column, np.array(wanted).reshape(len(rows), -1), name)


@pytest.mark.parametrize("kind", ["d4rl", "npz", "csv", "minari", "dqn_replay"])
def test_a_damaged_file_is_imported_rightly_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # Environments are made once, and nothing is forced to the disk.
    monkeypatch.setattr(import_dataset, "task_of", functools.cache(import_dataset.task_of))
    monkeypatch.setattr("os.fsync", lambda _: None)
    outcomes: Counter[str] = Counter()
    for case in range(CASES // 5):
        folder = tmp_path / str(case)
        folder.mkdir()
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
        draw = np.random.default_rng([case, len(kind)])
        argv, what, columns = make(kind, folder, draw)
        try:
            outcome = imported(folder, *argv)
            left = sorted(path.name for path in folder.glob("buffers/*"))
            if outcome.status == 0:
                check_import(folder, argv, columns)
                assert not [name for name in left if name.startswith(".")]
            else:
                assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
                assert argv[1].name in outcome.err or argv[0] == "--minari", outcome.err
                assert not left
        except Exception as error:
            raise AssertionError(f"case {case} of {kind}, {what}") from error
        outcomes["imported" if outcome.status == 0 else "refused"] += 1
    assert min(outcomes["imported"], outcomes["refused"]) >= 3, outcomes
    print(kind, dict(outcomes))


@pytest.mark.parametrize("kind", ["npz", "dqn_replay"])
@pytest.mark.parametrize("name", ["state", "action", "reward", "terminated"])
def test_no_code_is_run_from_a_data_set(tmp_path: Path, kind: str, name: str) -> None:
    draw, marker = np.random.default_rng(0), tmp_path / "marker"
    harmful = np.array([Harmful(marker)] * ROWS, dtype=object)
    if kind == "npz":
        path, env = tmp_path / "data.npz", "Pendulum-v1"
        np.savez(path, **valid(draw) | {name: harmful})
    else:
        path, env = make_shard(tmp_path, draw), GAME
        stored = {"state": "observation", "terminated": "terminal"}.get(name, name)
        with gzip.open(path / f"$store$_{stored}_ckpt.0.gz", "wb") as file:
            np.save(file, harmful)
    refused(tmp_path, imported(tmp_path, f"--{kind}", path, "--env", env), path.name)
    assert not marker.exists()
