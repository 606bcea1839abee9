"""Foreign files, read so that whatever is wrong with one is a line that names it."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from common.errors import InputError

# What to do about a file that is damaged: another's, and one of the user's own making.
FETCH, OWN = "fetch it again", "repair it, or write it again"


@contextmanager
def reading(what: str | Path, kind: str, remedy: str = FETCH) -> Iterator[None]:
    """A block of calls into another library that read `what`.

    Raises: InputError instead of any error of the block: a reader of a damaged file raises anything
    from KeyError to OverflowError.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError(
            f"{what} claims more numbers than fit into memory: it is damaged; {remedy}"
        ) from None
    except Exception as error:
        reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[0].split())
        raise InputError(f"{what} is damaged or no {kind} ({reason[:160]}): {remedy}") from error


def require_file(path: Path) -> None:
    """Raises: InputError where there is no such file."""
    if not path.is_file():
        raise InputError(f"{path} is no file: give the path of the data")


def sha256(path: Path) -> str:
    """The file's SHA-256, hexadecimal. Raises: InputError where it cannot be read."""
    with reading(path, "file"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def numbers(what: str, array: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    """(n,) or (n, w) of any numbers -> (n, w) of `dtype`; (n,) is (n, 1).

    What is too large for it becomes infinite. Raises: InputError for anything but numbers.
    """
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} holds {array.dtype}, not numbers")
    if array.ndim not in (1, 2) or (array.ndim == 2 and not array.shape[1]):
        raise InputError(f"{what} has rows of shape {array.shape[1:]}, not numbers or vectors")
    with np.errstate(over="ignore", invalid="ignore"):
        return array.reshape(len(array), *array.shape[1:] or (1,)).astype(dtype)


def flags(what: str, array: np.ndarray) -> np.ndarray:
    """(n,) or (n, 1) of 0 and 1 -> (n,) bool. Raises: InputError naming another value."""
    column = numbers(what, array)
    if column.shape[1] != 1:
        raise InputError(f"{what} has shape {array.shape}, not one flag a row")
    other = (column != 0) & (column != 1)
    if other.any():
        raise InputError(f"{what} holds {column[other][0]:g}, not 0 and 1 alone")
    return column[:, 0] == 1
