"""D4RL's HDF5 files: observations, actions, rewards, terminals, one row a step.

`timeouts` and `next_observations` need not be there; other libraries' names for time-outs, and
their marks of where episodes end, are read as well. What else there is, a note names.

Source: Fu et al., D4RL, 2020 (arXiv 2004.07219), appendix.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from common.errors import InputError
from datasets.batch import Source
from datasets.reading import flags, reading, require_file, sha256
from datasets.rows import Columns, as_rows, logged
from datasets.task import Task

KEYS = {
    "state": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminals",
    "next_state": "next_observations",
}
# Each says where episodes end beside `terminals`; where there are several, every one counts.
ENDS = ("timeouts", "episode_terminals", "truncations", "truncateds", "truncated")
NEEDED = ("state", "action", "reward", "terminated")
BLOCK = 2**20  # bytes of a file read at a time
SHOWN = 8  # names of a group in a message


def read(path: Path, task: Task) -> Source:
    """A D4RL file as rows. Raises: InputError where it is damaged or lacks a column."""
    require_file(path)
    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        if odd := [name for name in file if isinstance(name, bytes)]:
            raise ValueError(f"the name {odd[0]!r} is no UTF-8")
        sets = {name: file[name] for name in file if isinstance(file[name], h5py.Dataset)}
        there = {name: column.shape for name, column in sets.items()}
        within = [_named(name, file[name]) for name in file if name not in sets]
        empty = {
            name: np.empty((0, *sets[key].shape[1:]), sets[key].dtype)
            for name, key in KEYS.items()
            if key in sets
        }
        ends = {
            key: np.empty((0, *sets[key].shape[1:]), sets[key].dtype) for key in ENDS if key in sets
        }
    for name in NEEDED:
        if KEYS[name] not in there:
            raise InputError(
                f"{path} has no {KEYS[name]}, only {', '.join(sorted(there)) or 'nothing'}: D4RL's "
                f"files have {', '.join(KEYS[name] for name in NEEDED)}"
            )
    names = {name: key for name, key in KEYS.items() if key in there}
    keys = {name: [key] for name, key in names.items()}
    if ends:
        names["truncated"], keys["truncated"] = " and ".join(ends), [*ends]
        for key, column in ends.items():
            flags(f"{path}: {key}", column)
            empty["truncated"] = column
    used = [key for several in keys.values() for key in several]
    lengths = {key: there[key][0] if there[key] else 0 for key in used}
    if len(set(lengths.values())) != 1:
        described = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise InputError(
            f"{path}: its columns differ in length ({described}): fetch it again, or repair it"
        )
    as_rows(empty | {"number": np.arange(0)}, str(path), names, task)
    row_bytes = sum(column.dtype.itemsize * prod(column.shape[1:]) for column in empty.values())
    notes: list[str] = []
    if ignored := sorted({*there, *within} - {*used}):
        notes.append(f"ignored: the data sets {', '.join(ignored)}")
    total = lengths["observations"]
    blocks = _blocks(path, keys, total, max(1, BLOCK // row_bytes))
    rows = logged(blocks, str(path), "row", names, task, notes)
    origin = {"format": "d4rl", "file": path.name, "sha256": sha256(path)}
    return Source(str(path), rows, total, "row", names, notes, origin)


def _named(name: str, group: Any) -> str:
    """A group by what is in it, `infos/qpos, infos/qvel`; by its name where that is much."""
    inner = sorted(f"{name}/{one}" for one in group) if isinstance(group, h5py.Group) else []
    return ", ".join(inner) if 0 < len(inner) <= SHOWN else f"{name}/"


def _blocks(path: Path, keys: dict[str, list[str]], total: int, size: int) -> Iterator[Columns]:
    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        for first in range(0, total, size):
            last = min(first + size, total)
            block = {
                name: file[several[0]][first:last]
                for name, several in keys.items()
                if len(several) == 1
            }
            if len(ends := keys.get("truncated", [])) > 1:
                marks = [file[key][first:last].reshape(last - first, -1) for key in ends]
                block["truncated"] = np.maximum.reduce(marks)
            yield block | {"number": np.arange(first, last)}
