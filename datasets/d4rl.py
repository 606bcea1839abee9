"""D4RL's HDF5 files: observations, actions, rewards, terminals, one row a step.

`timeouts` and `next_observations` need not be there. Source: Fu et al., D4RL, 2020 (arXiv
2004.07219), appendix.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import h5py
import numpy as np

from common.errors import InputError
from datasets.batch import Source
from datasets.reading import reading, require_file, sha256
from datasets.rows import Columns, as_rows, logged
from datasets.task import Task

KEYS = {
    "state": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminals",
    "truncated": "timeouts",
    "next_state": "next_observations",
}
NEEDED = ("state", "action", "reward", "terminated")
BLOCK = 2**20  # bytes of a file read at a time


def read(path: Path, task: Task) -> Source:
    """A D4RL file as rows. Raises: InputError where it is damaged or lacks a column."""
    require_file(path)
    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        if odd := [name for name in file if isinstance(name, bytes)]:
            raise ValueError(f"the name {odd[0]!r} is no UTF-8")
        sets = {name: file[name] for name in file if isinstance(file[name], h5py.Dataset)}
        there = {name: column.shape for name, column in sets.items()}
        empty = {
            name: np.empty((0, *sets[key].shape[1:]), sets[key].dtype)
            for name, key in KEYS.items()
            if key in sets
        }
    for name in NEEDED:
        if KEYS[name] not in there:
            raise InputError(
                f"{path} has no {KEYS[name]}, only {', '.join(sorted(there)) or 'nothing'}: D4RL's "
                f"files have {', '.join(KEYS[name] for name in NEEDED)}"
            )
    names = {name: key for name, key in KEYS.items() if key in there}
    lengths = {key: there[key][0] if there[key] else 0 for key in names.values()}
    if len(set(lengths.values())) != 1:
        described = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise InputError(f"{path}: its columns differ in length ({described}): fetch it again")
    as_rows(empty | {"number": np.arange(0)}, str(path), names, task)
    row_bytes = sum(column.dtype.itemsize * prod(column.shape[1:]) for column in empty.values())
    notes: list[str] = []
    total = lengths["observations"]
    blocks = _blocks(path, names, total, max(1, BLOCK // row_bytes))
    rows = logged(blocks, str(path), "row", names, task, notes)
    origin = {"format": "d4rl", "file": path.name, "sha256": sha256(path)}
    return Source(str(path), rows, total, "row", names, notes, origin)


def _blocks(path: Path, names: dict[str, str], total: int, size: int) -> Iterator[Columns]:
    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        for first in range(0, total, size):
            last = min(first + size, total)
            block = {name: file[key][first:last] for name, key in names.items()}
            yield block | {"number": np.arange(first, last)}
