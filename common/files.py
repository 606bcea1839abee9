"""Where things lie, how they are named, and how they are written: whole or not at all."""

import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from common.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def file_part(env_id: str) -> str:
    """An environment id as part of a file name: `ALE/Pong-v5` -> `ALE-Pong-v5`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", env_id)


@contextmanager
def replacing(*paths: str | Path) -> Iterator[list[Path]]:
    """Temporary names beside `paths` to write to, moved into place together when the block ends.

    The last is moved first: a record, which comes last, is never older than what it describes.
    When the block fails, or one file cannot be written, every one of `paths` stays as it was.

    Raises: InputError instead of any OSError of the block (disk full, read-only folder).
    """
    targets = [Path(path) for path in paths]
    temporaries = [path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in targets]
    try:
        for folder in {path.parent for path in targets}:
            folder.mkdir(parents=True, exist_ok=True)
        yield temporaries
        for temporary in temporaries:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        for temporary, target in reversed(list(zip(temporaries, targets, strict=True))):
            temporary.replace(target)
    except OSError as error:
        reason = error.strerror or f"{error} (is the disk full?)"
        # They are written in order: the last that is there is the one it happened to.
        begun = [i for i, temporary in enumerate(temporaries) if os.path.lexists(temporary)]
        raise InputError(
            f"cannot write {targets[max(begun, default=0)]}: {reason}; free some space or choose "
            "another folder"
        ) from error
    finally:
        for temporary in temporaries:
            with suppress(OSError):  # not there any more, or its folder is none
                temporary.unlink()


def write_array(path: Path, array: np.ndarray) -> None:
    """np.save to exactly this name (np.save alone appends .npy)."""
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def write_rows(path: Path, pieces: Iterator[np.ndarray], rows: int) -> None:
    """An array of so many rows, at least one, to exactly this name, from pieces in order."""
    first = next(pieces)
    header = {
        "descr": np.lib.format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (rows, *first.shape[1:]),
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in itertools.chain([first], pieces):
            file.write(np.ascontiguousarray(piece).data)


def read_array(path: str | Path) -> np.ndarray:
    """Open one .npy file of numbers as a read-only memory map.

    Raises: InputError where the file is missing, damaged or holds anything but numbers.
    """
    try:
        with Path(path).open("rb") as file:
            return mapped(file, path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"{path} is no .npy array ({error.strerror}); make it again") from error


def mapped(file: BinaryIO, path: str | Path, mode: Literal["r", "c"] = "r") -> np.ndarray:
    """As `read_array`, of an open file: what `path` has become since is no matter.

    Raises: InputError naming `path` where the file is damaged or holds anything but numbers.
    """
    try:
        file.seek(0)
        if file.read(4) == b"PK\x03\x04":
            raise InputError(f"{path} is an archive of arrays (.npz), not one array (.npy)")
        file.seek(0)
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(file)
        if dtype.kind not in "biuf":
            raise InputError(f"{path} holds {dtype}, not numbers")
        order: Literal["F", "C"] = "F" if fortran else "C"
        return np.memmap(file, dtype, mode, file.tell(), shape, order)
    except InputError:
        raise
    except Exception as error:  # numpy raises nearly anything on a damaged header
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path} is damaged or no .npy array ({reason}); make it again") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a json file to exactly this name, in place."""
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a json object. Raises: InputError where the file is missing, damaged or no object."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); make it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no json object")
    return content


def _no_number(name: str) -> None:
    # Nothing here writes NaN or infinity, and what is read is written into other records.
    raise ValueError(f"{name} is no number of json's")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # 1e999
        raise ValueError(f"{text} is beyond all numbers")
    return number


def column_files(prefix: str | Path) -> dict[str, Path]:
    """The .npy files there are of a batch, by the names of their columns."""
    prefix = Path(prefix)
    # Another batch's name may begin with this one's: a column's is of small letters alone.
    column = re.compile(re.escape(prefix.name) + r"_([a-z_]+(?:_\d+)?)\.npy")
    found = ((column.fullmatch(path.name), path) for path in sorted(prefix.parent.glob("*.npy")))
    return {match[1]: path for match, path in found if match}


def best_path(model: Path) -> Path:
    """Where the agent of a run's best evaluation lies, beside `model`, the one evaluated last."""
    return model.with_stem(f"{model.stem}_best")


def values_path(results: Path) -> Path:
    """Where the value estimates of a run lie, beside its evaluations."""
    return results.with_stem(f"{results.stem}_value")


def _runs(process: int) -> bool:
    """Whether this machine has such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's; no number of a process
        return True
    return True


@dataclass(frozen=True)
class Folders:
    """The three output folders below `root`, and the names of a run's files in them."""

    root: Path
    env_id: str | None  # None: of a batch that no environment belongs to
    seed: int

    def _name(self, label: str) -> str:
        env = "" if self.env_id is None else f"_{file_part(self.env_id)}"
        return f"{label}{env}_{self.seed}"

    def results(self, label: str) -> Path:
        """The evaluations of a run; its json record has the same name with .json."""
        return self.root / "results" / f"{self._name(label)}.npy"

    def model(self, label: str) -> Path:
        """The trained agent of a run."""
        return self.root / "models" / f"{self._name(label)}.pt"

    def run_files(self, label: str) -> list[Path]:
        """Every file of a run that learns: what is recorded, the last and the best agent."""
        results, model = self.results(label), self.model(label)
        return [
            results,
            results.with_suffix(".json"),
            values_path(results),
            model,
            best_path(model),
        ]

    def end(self, label: str) -> Path:
        """What a finished run leaves for a longer one."""
        model = self.model(label)
        return model.with_stem(f"{model.stem}_end")

    def checkpoint(self, label: str) -> Path:
        """The folder of what an unfinished run needs to go on."""
        return self.root / "checkpoints" / self._name(label)

    def batch_claim(self, buffer_name: str) -> Path:
        """The folder that says which run makes a batch."""
        return self.checkpoint(f"batch_{buffer_name}")

    def leftovers(self, label: str, buffer_name: str | None) -> list[Path]:
        """Temporary files that killed processes left of a run, and of the batch that it makes."""
        name = re.escape(self._name(label))
        kinds = {"results": rf"{name}(_value)?\.(npy|json)", "models": rf"{name}(_best|_end)?\.pt"}
        if buffer_name is not None:
            kinds["buffers"] = rf"{re.escape(self._name(buffer_name))}(_\w+\.npy|\.json)"
        found = []
        for folder, kind in kinds.items():
            for path in (self.root / folder).glob(".*.tmp"):
                match = re.fullmatch(rf"\.{kind}\.(?P<process>\d+)\.tmp", path.name)
                if match and not _runs(int(match["process"])):
                    found.append(path)
        return found

    def buffer(self, buffer_name: str) -> Path:
        """The prefix of a batch's files: `_state.npy` and so on are appended to it."""
        return self.root / "buffers" / self._name(buffer_name)

    def batch_files(self, buffer_name: str) -> list[Path]:
        """Every file there is of a batch, and of the results that describe it."""
        prefix = self.buffer(buffer_name)
        columns = list(column_files(prefix).values())
        others = [Path(f"{prefix}.json"), *self._performance(buffer_name)]
        return columns + [path for path in others if path.exists()]

    def _performance(self, buffer_name: str) -> list[Path]:
        results = self.results(f"buffer_performance_{buffer_name}")
        return [results, results.with_suffix(".json")]

    def forget_performance(self, buffer_name: str) -> None:
        """Remove stage 2's results, which describe a batch that another one has replaced."""
        for path in self._performance(buffer_name):
            path.unlink(missing_ok=True)


def refuse_existing(paths: list[Path], overwrite: bool, otherwise: str = "") -> None:
    """Raises: InputError naming the first of `paths` that exists, unless `overwrite`.

    `otherwise`: what else can be done.
    """
    for path in paths:
        if (path.exists() or path.is_symlink()) and not overwrite:
            raise InputError(
                f"{path} exists: --overwrite replaces it, another --seed or --output_dir keeps both"
                f"{otherwise}"
            )
