"""D4RL's HDF5 files: observations, actions, rewards, terminals, one row a step.

`timeouts` and `next_observations` need not be there. Source: Fu et al., D4RL, 2020 (arXiv
2004.07219), appendix.
"""

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from common.errors import InputError
from imports.batch import Source
from imports.reading import reading, require_file, sha256
from imports.rows import Columns, logged
from imports.task import Task

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
        sets = {name: file[name] for name in file if isinstance(file[name], h5py.Dataset)}
        there = {name: column.shape for name, column in sets.items()}
        row_bytes = sum(
            sets[key].dtype.itemsize * int(np.prod(sets[key].shape[1:]))
            for key in KEYS.values()
            if key in sets
        )
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
    notes: list[str] = []
    total = lengths["observations"]
    blocks = _blocks(path, names, total, max(1, BLOCK // max(row_bytes, 1)))
    rows = logged(blocks, str(path), names, task, notes)
    origin = {"format": "d4rl", "file": path.name, "sha256": sha256(path)}
    return Source(str(path), rows, total, "row", notes, origin)


def _blocks(path: Path, names: dict[str, str], total: int, size: int) -> Iterator[Columns]:
    with reading(path, "HDF5 file"), h5py.File(path, "r") as file:
        # A block of no rows first: what is too wide is refused before it is read.
        shapes = {name: (0, *file[key].shape[1:]) for name, key in names.items()}
        empty = {name: np.empty(shapes[name], file[key].dtype) for name, key in names.items()}
        yield empty | {"number": np.arange(0)}
        for first in range(0, total, size):
            last = min(first + size, total)
            block = {name: file[key][first:last] for name, key in names.items()}
            yield block | {"number": np.arange(first, last)}
