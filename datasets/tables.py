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
and a note says so. A .csv may be written as spreadsheets write it: with ; or tabs between columns,
decimal commas, and in UTF-8, UTF-16 or a national encoding.
"""

import codecs
import csv
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from common.errors import InputError
from datasets.batch import Source
from datasets.reading import OWN, numbers, reading, require_file, sha256
from datasets.rows import SHOWN, Columns, logged
from datasets.task import Task

WIDE = ("state", "action", "next_state")  # columns that a .csv numbers: state_0, state_1, …
COLUMNS = ("state", "action", "reward", "terminated", "truncated", "episode", "next_state")
NEEDED = ("state", "action", "reward")
ENDS = {"done", "dones", "terminal", "terminals"}  # what else the ends are called, of either kind
NAMELESS = "(no name)"  # what a comma at the end of the header begins
BLOCK = 10_000  # rows at a time
WORDS = {"true": "1", "false": "0"}
DELIMITERS = (",", ";", "\t", "|")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")  # or a decimal comma and three digits


def read_npz(path: Path, task: Task) -> Source:
    """The arrays of a .npz as rows. Raises: InputError where one is damaged or missing."""
    require_file(path)
    with reading(path, ".npz archive", OWN), zipfile.ZipFile(path) as archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
    names = _names(path, there, ".npz")
    with reading(path, ".npz archive", OWN), np.load(path, allow_pickle=False) as arrays:
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
    """The columns of a .csv (a header, one line a row) as rows.

    Raises: InputError naming the line where a cell is no number.
    """
    require_file(path)
    form, header, places = _csv_header(path)
    used = {header[place]: name for name, columns in places.items() for place in columns}
    names = _names(path, [used.get(cell, cell) for cell in header], ".csv")
    blocks = _csv_blocks(path, form, len(header), places)
    return _source(
        path, "csv", blocks, None, names, [*names, *set(header) - used.keys()], "line", task
    )


def _csv_header(path: Path) -> "tuple[_Form, list[str], dict[str, list[int]]]":
    """How the file is written, the cells of its first line, and where each column has its cells.

    Raises: InputError where a name stands twice, or a number is missing in a row of them.
    """
    form = _form(path)
    with reading(path, ".csv file", OWN), form.opened(path) as file:
        header = [cell.strip() or NAMELESS for cell in next(form.reader(file), [])]
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
    return form, header, places


def read_states(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The states of a .csv or .npz alone, (n, S), for a policy that takes states of this shape.

    Raises: InputError where they are missing, no numbers, or of another width.
    """
    require_file(path)
    if path.suffix == ".npz":
        with reading(path, ".npz archive", OWN), np.load(path, allow_pickle=False) as arrays:
            found = np.asarray(arrays["state"]) if "state" in arrays else None
        blocks = [] if found is None or not found.ndim else [found]
    else:
        form, header, places = _csv_header(path)
        states = {name: where for name, where in places.items() if name == "state"}
        blocks = (
            [b["state"] for b in _csv_blocks(path, form, len(header), states)] if states else []
        )
    if not blocks:
        raise InputError(f"{path} has no states: a column state, or state_0, state_1, …")
    array = numbers(f"{path}: state", np.concatenate(blocks))
    if array.shape[1:] != shape:
        raise InputError(f"{path}: states are {array.shape[1]} wide, the policy takes {shape[0]}")
    if not len(array) or not np.isfinite(array).all():
        rows = np.flatnonzero(~np.isfinite(array).all(1))[:SHOWN].tolist()
        where = f"NaN or infinity in row {', '.join(map(str, rows))}" if rows else "no row"
        raise InputError(f"{path}: {where} (from 0): a policy needs every number of a state")
    return array


def _names(path: Path, there: list[str], kind: str) -> dict[str, str]:
    """The columns of `there` that are read. Raises: InputError where a needed one is missing."""
    names = {name: name for name in COLUMNS if name in there}
    for name in NEEDED:
        if name not in names:
            numbered = f" (or {name}_0, {name}_1, …)" if kind == ".csv" and name in WIDE else ""
            shown = ", ".join(dict.fromkeys(there)) or "none"
            raise InputError(f"{path} has no column {name}{numbered}, only: {shown[:200]}")
    alike = [name for name in there if name.lower() in ENDS]
    if alike and "terminated" not in names:
        raise InputError(
            f"{path} has a column {alike[0]} and none named terminated: name it terminated where 1 "
            "says that nothing follows, truncated where it says that time was up"
        )
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


class _Form(NamedTuple):
    """How a .csv is written: its encoding, what is between columns, the line `sep=;` above all."""

    encoding: str
    delimiter: str
    hint: bool

    def opened(self, path: Path) -> TextIO:
        """The file, at its header."""
        file = path.open(newline="", encoding=self.encoding)
        if self.hint:
            file.readline()
        return file

    def reader(self, file: TextIO) -> Any:
        """Its lines, as lists of cells."""
        return csv.reader(file, delimiter=self.delimiter)


def _form(path: Path) -> _Form:
    """What the first bytes and the header tell. Whatever the encoding, numbers are ASCII's."""
    with reading(path, ".csv file", OWN):
        encoding = _encoding(path)
        with path.open(newline="", encoding=encoding) as file:
            first = file.readline()
            hint = re.fullmatch(r"sep=(.)\s*", first)  # a spreadsheet's own, above the header
            header = file.readline() if hint else first
    if hint:
        return _Form(encoding, hint[1], hint=True)

    def known(delimiter: str) -> int:
        cells = next(csv.reader([header], delimiter=delimiter), [])
        names = (re.sub(r"_\d+$", "", cell.strip()) for cell in cells)
        return sum(name in COLUMNS for name in names)

    return _Form(encoding, max(DELIMITERS, key=known), hint=False)


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        begin = file.read(4)
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if 0 in begin[:2]:
        return "utf-16-be" if begin[0] == 0 else "utf-16-le"
    # Names of columns that nobody reads, and ids of episodes, may be in another: what they are made
    # of matters to nobody, and none of these has a byte of a delimiter within a letter.
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            with path.open(encoding=encoding) as text:
                while text.read(2**20):
                    pass
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def _csv_blocks(
    path: Path, form: _Form, width: int, places: dict[str, list[int]]
) -> Iterator[Columns]:
    decimal = _Decimal(path, form.delimiter)
    with reading(path, ".csv file", OWN), form.opened(path) as file:
        reader = form.reader(file)
        next(reader)
        lines: list[list[str]] = []
        numbers: list[int] = []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue  # an empty line, as at the end of many files
            if len(cells) != width:
                line = reader.line_num + form.hint
                raise InputError(f"{path}: line {line} has {len(cells)} cells, the header {width}")
            lines.append(cells)
            numbers.append(reader.line_num + form.hint)
            if len(lines) == BLOCK:
                yield _columns(path, lines, numbers, places, decimal)
                lines, numbers = [], []
        if lines:
            yield _columns(path, lines, numbers, places, decimal)
        decimal.require_sense()


class _Decimal:
    """Decimal commas: read where they can be nothing else, and refused where they can."""

    def __init__(self, path: Path, delimiter: str) -> None:
        self.path, self.delimiter = path, delimiter
        self.comma: int | None = None  # the first line with one, and with a point
        self.point: int | None = None
        self.certain = delimiter == ";"  # which is there because commas are decimal

    def __call__(self, cells: list[list[str]], numbers: list[int]) -> list[list[str]]:
        """The cells with points. Raises: InputError where both, or separated thousands, occur."""
        if not any("," in cell for line in cells for cell in line) and self.comma is None:
            if self.point is None:
                marked = (n for n, line in zip(numbers, cells, strict=True) if "." in "".join(line))
                self.point = next(marked, None)
            return cells
        for number, line in zip(numbers, cells, strict=True):
            for cell in line:
                if "." in cell and self.point is None:
                    self.point = number
                if "," in cell:
                    self.comma = number if self.comma is None else self.comma
                    self.certain |= not THOUSANDS.fullmatch(cell)
        if self.comma is not None and self.point is not None:
            raise InputError(
                f"{self.path}: line {self.comma} has a comma within a number and line {self.point} "
                "a point: write numbers with a decimal point alone"
            )
        return [[cell.replace(",", ".") for cell in line] for line in cells]

    def require_sense(self) -> None:
        """Raises: InputError where each comma could separate thousands."""
        if self.comma is not None and not self.certain:
            raise InputError(
                f"{self.path}: line {self.comma} has a comma within a number, which could be "
                "decimal or part thousands off: write numbers with a decimal point alone"
            )


def _columns(
    path: Path,
    lines: list[list[str]],
    numbers: list[int],
    places: dict[str, list[int]],
    decimal: _Decimal,
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
        cells = decimal(cells, numbers)
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
