"""Who makes a batch: one run at a time, from its first step to its end, also while it is stopped.

Stage 2, stage 1 with --save_buffer and the importer make batches. The one that does holds the lock
of the batch's folder below checkpoints/; `owner.json` beside it says which run that is, while it is
stopped too, and which batches of this name are its own or were given up for it by --overwrite.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from common.data.batch_files import file_digest, identity
from common.errors import InputError
from common.files import (
    Folders,
    column_files,
    read_json,
    refuse_existing,
    replacing,
    write_json,
)
from common.resume.lock import LOCK, Lock

OWNER, STATE = "owner.json", "state.pt"


def batch_there(prefix: Path) -> str | None:
    """The digest of the batch that lies at `prefix`; None where none does."""
    columns, path = column_files(prefix), Path(f"{prefix}.json")
    if not columns and not path.exists():
        return None
    with suppress(InputError):
        record = read_json(path)
        if isinstance(record.get("files"), dict):
            return str(record.get("digest"))
    return identity({name: file_digest(column) for name, column in columns.items()})


class Ownership:
    """That of a batch by the run of this name; a context for what cannot be stopped and go on."""

    def __init__(
        self,
        folders: Folders,
        buffer_name: str,
        run: str,
        overwrite: bool,
        goes_on: bool = False,
        made: str | None = None,
    ) -> None:
        """`goes_on`: the run has a checkpoint. `made`: or it has finished, with this batch.

        Raises: InputError where another run, also a stopped one, makes the batch, and where one
        lies there that this run may not replace; --overwrite takes it.
        """
        self.folders, self.buffer_name, self.run = folders, buffer_name, run
        self.prefix, self.folder = folders.buffer(buffer_name), folders.batch_claim(buffer_name)
        self._lock = Lock(self.folder / LOCK)
        try:
            for path in self.folder.glob(".*.tmp"):  # of a killed owner
                path.unlink()
            self._own = self._taken(overwrite, goes_on, made)
            self._note()
        except BaseException:
            self.release(finished=False)
            raise

    def _taken(self, overwrite: bool, goes_on: bool, made: str | None) -> list[str]:
        """The batches that this run may replace."""
        owner: dict[str, Any] = {}
        with suppress(InputError):
            owner = read_json(self.folder / OWNER)
        other = str(owner.get("run", self.run))
        stopped = other != self.run and (self.folder.parent / other / STATE).exists()
        if stopped and (goes_on or not overwrite):
            raise InputError(
                f"{self.prefix.name} is the batch of {other}, an unfinished run, whose command "
                "goes on: another --buffer_name keeps both, --overwrite takes the batch from it"
            )
        if goes_on:
            self._own = list(owner.get("own", [])) if other == self.run else []
            self._own += [made] if made else []
            self._require_own()
            return self._own
        refuse_existing(self.folders.batch_files(self.buffer_name), overwrite)
        there = batch_there(self.prefix)
        return [there] if there else []

    def _require_own(self) -> None:
        there = batch_there(self.prefix)
        if there is not None and there not in self._own:
            raise InputError(
                f"{self.prefix}_*.npy are a batch that another run has made since this one began: "
                "once it is moved away the same command goes on; with --overwrite it begins anew"
            )

    def _note(self) -> None:
        with replacing(self.folder / OWNER) as [temporary]:
            write_json(temporary, {"run": self.run, "own": self._own})

    def keep(self) -> None:
        """Make what is needed again where someone has deleted it.

        Raises: InputError where another process has taken the batch meanwhile.
        """
        self._lock.keep()
        if not (self.folder / OWNER).exists():
            self._note()

    def permit(self, digest: str) -> None:
        """Called as the batch of this digest is about to be moved into place.

        What stage 2 said of another one's performance goes.

        Raises: InputError where the one that lies there is another run's.
        """
        self._lock.keep()
        self._require_own()
        self._own = list(dict.fromkeys([*self._own, digest]))
        self._note()
        if self.run != self.folders.checkpoint(f"buffer_performance_{self.buffer_name}").name:
            self.folders.forget_performance(self.buffer_name)

    def release(self, finished: bool = True) -> None:
        """Give it back; one that is not finished stays the run's."""
        if finished and self._lock.ours:
            (self.folder / OWNER).unlink(missing_ok=True)
        self._lock.release()
        for folder in (self.folder, self.folder.parent):
            with suppress(OSError):  # it holds more
                folder.rmdir()

    def __enter__(self) -> "Ownership":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
