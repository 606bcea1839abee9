"""Files that tell whether they are whole: a line with format and sha256, then torch's content."""

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

import torch

from common.errors import InputError
from common.files import replacing

FORMAT = "BCQ checkpoint 1"  # the number goes up whenever older files can no longer be read


def write_sealed(path: Path, content: dict[str, Any]) -> str:
    """Write tensors, numbers, texts and nested dicts and lists of them; whole or not at all.

    Returns: the sha256 of what was written, in hexadecimal digits.
    Raises: InputError where it cannot be written.
    """
    payload = io.BytesIO()
    torch.save(content, payload)
    digest = hashlib.sha256(payload.getbuffer()).hexdigest()
    with replacing(path) as [temporary], temporary.open("wb") as file:
        file.write(f"{FORMAT} {digest}\n".encode())
        file.write(payload.getbuffer())
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything on what it did not write
        raise InputError(f"{path} is no checkpoint ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is no checkpoint")
    return content
