"""The files of a batch, written and read as one: every one is of the same batch, or it is refused.

A batch is one .npy file a column and a json beside them, its record. The record's `files` has the
sha256 of each, and `digest` is one for all of them: it says which batch this is. Batches of older
code and those made by hand lack both, or the record altogether, and are read as they are.
"""

import hashlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common.errors import InputError
from common.files import column_files, mapped, read_json, replacing, write_json

ATTEMPTS, PAUSE = 3, 0.1  # to read a batch that is being replaced, and seconds between two


def column_path(prefix: str | Path, column: str) -> Path:
    """The file of one column: `buffers/Robust_Hopper-v4_0` -> `…/Robust_Hopper-v4_0_state.npy`."""
    return Path(f"{prefix}_{column}.npy")


def identity(digests: dict[str, str]) -> str:
    """One sha256 of those of a batch's files, by their names."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a file's content, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing_batch(
    prefix: str | Path,
    names: list[str],
    record: dict[str, Any],
    permit: Callable[[str], None] = lambda _: None,
) -> Iterator[list[Path]]:
    """Temporary names of these columns to write to; the batch is replaced when the block ends.

    By then `record` holds what is known of it, and is given its `digest` and `files`; `permit` is
    called with the digest before anything is moved, and may refuse. Files of an older batch of this
    name go. When the block fails everything stays as it was.

    Raises: InputError where a file cannot be written.
    """
    paths = [column_path(prefix, name) for name in names]
    with replacing(*paths, f"{prefix}.json") as [*temporaries, json_temporary]:
        yield temporaries
        digests = dict(zip(names, map(file_digest, temporaries), strict=True))
        record |= {"digest": identity(digests), "files": digests}
        write_json(json_temporary, record)
        permit(record["digest"])
    for name, path in column_files(prefix).items():
        if name not in names:
            path.unlink(missing_ok=True)


class SavedBatch:
    """The files of a saved batch, opened once; `record` is what its json says, and its `digest`.

    A context, since files are open. What is read through it is of one batch, also while that is
    being replaced by another.
    """

    def __init__(self, prefix: str | Path) -> None:
        """Raises: InputError where a file is damaged, missing or of another batch."""
        self.prefix = prefix
        self.record: dict[str, Any] = {}
        self._files: dict[str, io.BufferedReader] = {}
        self._stack = ExitStack()
        for attempt in range(ATTEMPTS):
            try:
                return self._open()
            except InputError:
                self.close()
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE)

    def _open(self) -> None:
        for name, path in column_files(self.prefix).items():
            try:
                self._files[name] = self._stack.enter_context(path.open("rb"))
            except FileNotFoundError:  # of an older batch, which has just been replaced
                continue
            except OSError as error:
                raise InputError(f"{path} cannot be read ({error.strerror})") from error
        # The json comes last, since it is moved into place first: of two batches it is the newer's.
        path = Path(f"{self.prefix}.json")
        self.record = read_json(path) if path.exists() else {}
        expected = self.record.get("files")
        if not isinstance(expected, dict):
            digests = {name: self._digest(name) for name in self._files}
            self.record["digest"] = identity(digests)
            return
        for name, digest in expected.items():
            column = column_path(self.prefix, name)
            if column.exists() if name not in self else self._digest(name) != digest:
                raise InputError(
                    f"{column} is damaged, or not of the batch that {path.name} describes: its "
                    "sha256 differs; make the batch again, or, where you changed it on purpose, "
                    "delete `files` from that record"
                )
        self._files = {name: file for name, file in self._files.items() if name in expected}

    def _digest(self, name: str) -> str:
        file = self._files[name]
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def array(self, name: str, mode: Literal["r", "c"] = "r") -> np.ndarray:
        """A column, as a memory map made anew at each call; `mode` c is copy on write.

        Raises: InputError where there is none, or it holds no numbers.
        """
        path = column_path(self.prefix, name)
        if name not in self:
            raise InputError(f"{path} does not exist: the batch lacks a column; make it again")
        return mapped(self._files[name], path, mode)

    def columns(self, widths: dict[str, int]) -> dict[str, np.ndarray]:
        """The named columns, (N, width); (N,) is read as (N, 1).

        Raises: InputError naming the file where one is missing, damaged, empty, of another width or
        length, or holds no numbers.
        """
        arrays = {name: self.array(name) for name in widths}
        for name, array in arrays.items():
            arrays[name] = array = array.reshape(-1, 1) if array.ndim == 1 else array
            if array.ndim != 2 or array.shape[1] != widths[name]:
                raise InputError(
                    f"{column_path(self.prefix, name)} has shape {array.shape}, this environment "
                    f"needs (N, {widths[name]}): was it made for another environment?"
                )
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            described = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(
                f"{self.prefix}_*.npy differ in length ({described}); make the batch again"
            )
        if 0 in lengths.values():
            raise InputError(
                f"{self.prefix}_*.npy are empty: a batch needs at least one transition"
            )
        return arrays

    def close(self) -> None:
        """Maps that were made stay readable."""
        self._files = {}
        self._stack.close()

    def __enter__(self) -> "SavedBatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
