"""One process a run: a lock that the system itself gives back when its owner dies."""

import os
import socket
from contextlib import suppress
from pathlib import Path

from common.errors import InputError

try:
    import fcntl
except ImportError:  # Windows; there two processes are not told apart
    fcntl = None  # type: ignore[assignment]


LOCK = "lock"  # its name in a folder below checkpoints/


class Lock:
    """Held from its making to `release` or the end of the process, however that ends.

    The file names its owner, process and host, for whoever is refused. One that was left by a
    killed process is free: the system's own lock (flock) went with that process.
    """

    def __init__(self, path: Path) -> None:
        """Raises: InputError where another process holds it, or where it cannot be written."""
        self.path = path
        self._file = self._acquire()

    def _acquire(self) -> int:
        path = self.path
        try:
            return self._take()
        except BlockingIOError:
            owner = "another process"
            with suppress(OSError):  # it has just ended
                owner = path.read_text(encoding="utf-8", errors="replace").strip() or owner
            raise InputError(
                f"{path.parent.name} is being made by {owner}: wait for it, or stop it"
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"cannot write {path}: {reason}; choose another folder") from error

    def _take(self) -> int:
        while True:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # another run ended and took the folder along: make it again
                continue
            except FileExistsError:  # the same, between making it and looking what is there
                if os.path.lexists(self.path.parent) and not self.path.parent.is_dir():
                    raise  # a file of that name
                continue
            try:
                self._flock(file)
                if os.fstat(file).st_ino == self.path.stat().st_ino:
                    os.truncate(file, 0)
                    owner = f"process {os.getpid()} on {socket.gethostname()}\n"
                    os.write(file, owner.encode())
                    return file
            except FileNotFoundError:
                pass  # the same: this is the lock of a run that has ended
            except OSError:
                os.close(file)
                raise
            os.close(file)

    @staticmethod
    def _flock(file: int) -> None:
        if fcntl:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:
                pass  # a file system without locks: better to run unguarded than not at all

    @property
    def ours(self) -> bool:
        """Whether the file is still the one that is held, and not deleted or another's."""
        try:
            return os.fstat(self._file).st_ino == self.path.stat().st_ino
        except OSError:
            return False

    def keep(self) -> None:
        """Take it again where someone has deleted the file, with its folder.

        Raises: InputError where another process was faster.
        """
        if not self.ours:
            former, self._file = self._file, self._acquire()
            os.close(former)

    def release(self) -> None:
        """Give it back, and remove the file."""
        if self.ours:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._file)
