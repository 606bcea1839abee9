"""Your own logged data: one row a step, as columns of a .csv or arrays of a .npz.

| .npz | .csv | |
|---|---|---|
| `state` (N, S) | `state_0` … or `state` | what was seen before the action |
| `action` (N, A) | `action_0` … or `action` | as the environment takes it (0 … K−1 if discrete) |
| `reward` (N,) | `reward` | |
| `terminated` (N,) | `terminated` | 1 where the step ended the episode in a terminal state |
| `truncated` (N,) | `truncated` | 1 where it was cut, by a time limit say |
| `episode` (N,) | `episode` | an id, the same for all rows of an episode, which are neighbours |
| `next_state` (N, S) | `next_state_0` … | what was seen after it; may be empty in terminal rows |

Of terminated, truncated and episode one is needed, next_state is not. Other columns are ignored,
and a note says so.
"""

import csv
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from common.errors import InputError
from datasets.batch import Source
from datasets.reading import reading, require_file, sha256
from datasets.rows import Columns, logged
from datasets.task import Task

WIDE = ("state", "action", "next_state")  # columns that a .csv numbers: state_0, state_1, …
COLUMNS = ("state", "action", "reward", "terminated", "truncated", "episode", "next_state")
NEEDED = ("state", "action", "reward")
NAMELESS = "(no name)"  # what a comma at the end of the header begins
BLOCK = 10_000  # rows at a time
WORDS = {"true": "1", "false": "0"}


def read_npz(path: Path, task: Task) -> Source:
    """The arrays of a .npz as rows. Raises: InputError where one is damaged or missing."""
    require_file(path)
    with reading(path, ".npz archive"), zipfile.ZipFile(path) as archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
    names = _names(path, there, ".npz")
    with reading(path, ".npz archive"), np.load(path, allow_pickle=False) as arrays:
        columns = {name: np.asarray(arrays[name]) for name in names}
    lengths = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
    total = lengths["state"]
    if len(set(lengths.values())) != 1:
        described = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"{path}: its columns differ in length ({described})")

    def blocks() -> Iterator[Columns]:
        for first in range(0, total, BLOCK):
            last = min(first + BLOCK, total)
            block = {name: column[first:last] for name, column in columns.items()}
            yield block | {"number": np.arange(first, last)}

    return _source(path, "npz", blocks(), total, names, there, "row", task)


def read_csv(path: Path, task: Task) -> Source:
    """The columns of a .csv (a header, commas, one line a row) as rows.

    Raises: InputError naming the line where a cell is no number.
    """
    require_file(path)
    with reading(path, ".csv file"), _opened(path) as file:
        header = [cell.strip() or NAMELESS for cell in next(csv.reader(file), [])]
    if twice := {name for name in header if header.count(name) > 1} - {NAMELESS}:
        raise InputError(f"{path} has several columns {', '.join(sorted(twice))}: name them apart")
    places: dict[str, list[int]] = {}
    for name in COLUMNS:
        numbered = [i for i, cell in enumerate(header) if re.fullmatch(rf"{name}_\d+", cell)]
        if name in header:
            places[name] = [header.index(name)]
        elif numbered and name in WIDE:
            expected = [f"{name}_{i}" for i in range(len(numbered))]
            if lost := [cell for cell in expected if cell not in header]:
                raise InputError(f"{path} has no {lost[0]}: number the columns from {name}_0 on")
            places[name] = [header.index(cell) for cell in expected]
    used = {header[place]: name for name, columns in places.items() for place in columns}
    names = _names(path, [used.get(cell, cell) for cell in header], ".csv")
    blocks = _csv_blocks(path, len(header), places)
    return _source(
        path, "csv", blocks, None, names, [*names, *set(header) - used.keys()], "line", task
    )


def _names(path: Path, there: list[str], kind: str) -> dict[str, str]:
    """The columns of `there` that are read. Raises: InputError where a needed one is missing."""
    names = {name: name for name in COLUMNS if name in there}
    for name in NEEDED:
        if name not in names:
            numbered = f" (or {name}_0, {name}_1, …)" if kind == ".csv" and name in WIDE else ""
            shown = ", ".join(dict.fromkeys(there)) or "none"
            raise InputError(f"{path} has no column {name}{numbered}, only: {shown[:200]}")
    if not {"terminated", "truncated", "episode"} & names.keys():
        raise InputError(
            f"{path} does not say where episodes end: add a column terminated (and truncated), or "
            "episode (an id)"
        )
    return names


def _source(
    path: Path,
    kind: str,
    blocks: Iterator[Columns],
    total: int | None,
    names: dict[str, str],
    there: list[str],
    unit: str,
    task: Task,
) -> Source:
    notes = []
    if ignored := sorted(set(there) - names.keys()):
        notes.append(f"ignored: the columns {', '.join(ignored)}")
    rows = logged(blocks, str(path), unit, names, task, notes)
    origin: dict[str, Any] = {"format": kind, "file": path.name, "sha256": sha256(path)}
    return Source(str(path), rows, total, unit, names, notes, origin)


def _opened(path: Path) -> TextIO:
    return path.open(newline="", encoding="utf-8-sig")  # with the mark that spreadsheets write


def _csv_blocks(path: Path, width: int, places: dict[str, list[int]]) -> Iterator[Columns]:
    with reading(path, ".csv file"), _opened(path) as file:
        reader = csv.reader(file)
        next(reader)
        lines: list[list[str]] = []
        numbers: list[int] = []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue  # an empty line, as at the end of many files
            if len(cells) != width:
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(cells)} cells, the header {width}"
                )
            lines.append(cells)
            numbers.append(reader.line_num)
            if len(lines) == BLOCK:
                yield _columns(path, lines, numbers, places)
                lines, numbers = [], []
        if lines:
            yield _columns(path, lines, numbers, places)


def _columns(
    path: Path, lines: list[list[str]], numbers: list[int], places: dict[str, list[int]]
) -> Columns:
    columns = {"number": np.array(numbers)}
    for name, where in places.items():
        cells = [[line[place].strip() for place in where] for line in lines]
        if name == "episode":
            columns[name] = np.array(cells)[:, 0]
            continue
        if name in ("terminated", "truncated"):
            cells = [[WORDS.get(cell.lower(), cell) for cell in line] for line in cells]
        if name == "next_state":
            cells = [[cell or "nan" for cell in line] for line in cells]
        try:
            columns[name] = np.array(cells, dtype=np.float64)
        except ValueError:
            number, cell = _first_without_number(numbers, cells)
            hint = (
                "write 1 or 0"
                if name in ("terminated", "truncated")
                else "give categories a column of 0 and 1 each, and gaps a number"
            )
            raise InputError(
                f"{path}: line {number}, {name} is {cell!r}, no number: {hint}"
            ) from None
    return columns


def _first_without_number(numbers: list[int], cells: list[list[str]]) -> tuple[int, str]:
    for number, line in zip(numbers, cells, strict=True):
        for cell in line:
            try:
                float(cell)
            except ValueError:
                return number, cell
    raise AssertionError("every cell is a number")
