"""Nothing that is printed decides what is saved: where it cannot be shown, the text alone is lost.

The reader of a pipe ends (`| head`, a `tee` that Ctrl-C took along), a terminal goes away, a disk
is full, a stream was closed (`2>&-`), a character has no code there: each would be an exception in
the middle of a run.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Unheeded:
    """A text stream that never fails: what cannot be written is dropped, and all after it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """As a text stream's."""
        with _dropped(self.stream):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As a text stream's."""
        with _dropped(self.stream):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def _dropped(stream: Any) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:  # its reader is slow, and may come back
        pass
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # so that what it still holds goes nowhere either
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def fill_closed() -> None:
    """Put nothing in place of closed streams.

    A closed one would be the number of the next file that opens, and packages that start a
    program as they are imported (glfw) fail without.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free


@contextmanager
def unheeded() -> Iterator[None]:
    """Within the block nothing that is printed raises."""
    fill_closed()
    before = sys.stdout, sys.stderr
    streams: tuple[Any, Any] = before
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        if stream is None:  # python's own sign of one that is closed
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the end
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, Unheeded(stream))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def tell(text: str) -> None:
    """A line on stderr from within a signal's handler, which must not enter a stream's buffer."""
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
