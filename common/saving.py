"""Files of tensors: saved agents, and sealed files, which tell whether they are whole."""

import hashlib
import io
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import InputError
from common.files import replacing

FORMAT = "BCQ checkpoint 1"  # the number goes up whenever older files can no longer be read


def _unpacked(content: bytes, device: torch.device | str) -> dict[str, Any] | None:
    """The state that torch.save wrote, onto the device, None where it wrote something else.

    Never runs code from the content. torch raises nearly anything on what it did not write.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a foreign file; the caller's error says it
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return state if isinstance(state, dict) and all(isinstance(k, str) for k in state) else None


def _packed(state: dict[str, Any]) -> memoryview:
    # Through memory: on a full disk torch's own writer ends in a RuntimeError.
    content = io.BytesIO()
    torch.save(state, content)
    return content.getbuffer()


def save_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write an agent's state as one file, whole or not at all.

    Raises: InputError where it cannot be written.
    """
    with replacing(path) as [temporary]:
        write_state(temporary, state)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """torch.save to this name, in place. Raises: OSError where it cannot be written."""
    path.write_bytes(_packed(state))


def read_state(path: str | Path, device: torch.device | str) -> dict[str, Any]:
    """Read what `save_state` wrote, onto the device; never runs code from the file.

    Raises: InputError where the file is missing or damaged.
    """
    try:
        content = Path(path).read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:  # checksums that torch passes over
            if archive.testzip():
                raise ValueError("a checksum differs")
        state = _unpacked(content, device)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except Exception as error:
        raise InputError(
            f"{path} is damaged or no saved agent ({type(error).__name__}); train it again"
        ) from error
    if state is None:
        raise InputError(f"{path} holds no saved agent; train it again")
    if not all(torch.isfinite(tensor).all() for tensor in _tensors(state)):
        raise InputError(f"{path} holds NaN or infinity: its training diverged; train it again")
    return state


def _tensors(state: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from _tensors(part)


def write_sealed(path: Path, content: dict[str, Any]) -> str:
    """Write tensors, numbers, texts and nested dicts and lists of them; whole or not at all.

    Returns: the sha256 of what was written, in hexadecimal digits.
    Raises: InputError where it cannot be written.
    """
    payload = _packed(content)
    digest = hashlib.sha256(payload).hexdigest()
    with replacing(path) as [temporary], temporary.open("wb") as file:
        file.write(f"{FORMAT} {digest}\n".encode())
        file.write(payload)
    return digest


def read_sealed(path: Path, digest: str | None = None) -> dict[str, Any]:
    """What `write_sealed` wrote, on the CPU; never runs code from the file.

    `digest`: that of the very file it must be.

    Raises: InputError where the file is missing, damaged, another one or of another format.
    """
    try:
        header, _, payload = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    version, _, written = header[:200].decode("ascii", "replace").rpartition(" ")
    if version != FORMAT:
        raise InputError(
            f"{path} is damaged or of another version of this code ({version[:30]!r}, not "
            f"{FORMAT!r})"
        )
    actual = hashlib.sha256(payload).hexdigest()
    if actual != written or (digest or actual) != actual:
        raise InputError(f"{path} is damaged: its checksum differs")
    try:
        content = _unpacked(payload, "cpu")
    except Exception as error:
        raise InputError(f"{path} is no checkpoint ({type(error).__name__})") from error
    if content is None:
        raise InputError(f"{path} is no checkpoint")
    return content
