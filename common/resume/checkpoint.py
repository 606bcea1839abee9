"""Everything needed to go on exactly where a run stopped, and one process a run.

A run's folder below checkpoints/ holds the `lock`, `state.pt` and the files of its replay buffer
that this names. It is there from the run's first step to its end; what a killed run left is found
in it and goes on.
"""

import argparse
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from common.arguments import INCIDENTAL
from common.errors import InputError, Stopped
from common.files import Folders, refuse_existing
from common.printing import tell
from common.resume.lock import LOCK, Lock
from common.resume.longer import as_it_is, leave, take_up
from common.resume.ownership import STATE, Ownership
from common.resume.parts import Counting, Generators, Part, Rows, Writer
from common.saving import read_sealed, write_sealed

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows
PATIENCE = 5.0  # seconds that a checkpoint waits for the end of an episode
TWICE = 1.0  # seconds: `timeout` sends its signal twice, as does a shell whose terminal goes away


def stopping_signals() -> list[int]:
    """Ctrl-C, SIGTERM, and a lost terminal's SIGHUP unless nohup has it ignored."""
    heard: list[int] = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:
        heard.append(HANGUP)
    return heard


@contextmanager
def _remedied(path: Path) -> Iterator[None]:
    """Raises: InputError, with what to do, for any error in reading a checkpoint."""
    remedy = "--overwrite starts the run anew"
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from error
    except Exception as error:  # whole, as its checksum says, but not what this code wrote
        raise InputError(f"{path} does not fit this code ({error!r}); {remedy}") from error


class Checkpoint:
    """The parts of one run, saved together; a context, at whose end a finished run's state goes.

    A stage claims its name, holds its parts, and resumes; from then on Ctrl-C, SIGTERM and SIGHUP
    wait for the next `save_if_due`, which saves and ends the program. A second one ends it at once.
    Without arguments it saves nothing: for interaction outside a run.
    """

    def __init__(
        self, args: argparse.Namespace | None = None, folders: Folders | None = None
    ) -> None:
        self.args, self.folders = args, folders
        self.folder: Path | None = None
        self.parts: dict[str, Part] = {}
        self._lock: Lock | None = None
        self._batch: Ownership | None = None
        self._found: dict[str, Any] | None = None
        self._end: Path | None = None  # what a finished run has left, or will leave
        self._longer = False  # whether it is that which was found
        self._closed = False  # whether the last checkpoint has been written
        self._saved = 0.0
        self._patient, self._asked = False, 0  # whether signals wait, and the one that does
        self._heard = 0.0  # when it came
        self._handlers: dict[int, Any] = {}

    def claim(self, label: str, files: list[Path], batch: str | None = None) -> None:
        """Take the name of a run that makes `files`, and look for what an unfinished one left.

        Or what a finished one left, where this one is to be longer. `batch`: the name of the batch
        that it makes, which is taken with it.

        Raises: InputError where another process has it, where its checkpoint is damaged, and where
        one of `files` exists and there is none; --overwrite begins anew. As `Ownership` does.
        """
        assert self.args is not None and self.folders is not None
        folder = self.folders.checkpoint(label)
        self._lock, self.folder = Lock(folder / LOCK), folder
        makes_batch = self.args.generate_buffer or self.args.train_behavioral
        for path in self.folders.leftovers(label, self.args.buffer_name if makes_batch else None):
            path.unlink()
        self._end = self.folders.end(label)
        unfinished, finished = (folder / STATE).exists(), self._end.exists()
        if not self.args.overwrite and (unfinished or finished):
            source = folder / STATE if unfinished else self._end
            with _remedied(source):
                self._found = read_sealed(source)
                steps = self._found["arguments"]["max_timesteps"]
            self._longer = not unfinished and self.args.max_timesteps > steps
            if not (unfinished or self._longer):
                refuse_existing(files, False, f"; a larger --max_timesteps than {steps:,} goes on")
                self._found = None
        elif not unfinished:
            why = "; a longer run goes on only where --save_buffer kept what it learns from"
            refuse_existing(files, self.args.overwrite, why if self.args.train_behavioral else "")
        if batch is not None:
            found = self._found or {}
            made = found["parts"]["rows"]["digest"] if self._longer else None
            self._batch = Ownership(
                self.folders, batch, folder.name, self.args.overwrite, bool(found), made
            )

    def permit(self, digest: str) -> None:
        """As a batch is about to be replaced. Raises: InputError where it is not this run's."""
        if self._batch is not None:
            self._batch.permit(digest)

    def keep(self) -> None:
        """As files of the run are about to be replaced.

        Raises: InputError where someone has deleted the lock and another process has taken it.
        """
        if self._lock is not None:
            self._lock.keep()
        if self._batch is not None:
            self._batch.keep()

    def hold(self, **parts: Part) -> None:
        """Name what belongs to the run's state; what writes files of its own asks first."""
        self.parts |= parts
        for part in parts.values():
            if isinstance(part, Writer):
                part.permit = self.keep

    def resume(self) -> None:
        """Put every part back to where the run stopped, or save them where it begins.

        Raises: InputError where the checkpoint is of other arguments, another batch or other code.
        """
        if self.folder is None:
            return
        self.hold(generators=Generators())  # the last to be put back: nothing draws after it
        self._patient = True
        if self._found is None:
            return self.save()
        assert self.args is not None and self.folders is not None and self._end is not None
        source, done = self._end if self._longer else self.folder / STATE, set[str]()
        with _remedied(source):
            self._require_arguments(self._found["arguments"])
            if self._longer:
                batch = self.folders.buffer(self.args.buffer_name)
                done = take_up(self._found, self.parts, batch, self.args.eval_freq)
            for name in self.parts:
                if name not in done:
                    self.parts[name].load_state_dict(self._found["parts"][name])
        print(f"goes on where it {'ended' if self._longer else 'stopped'}, from {source}")
        steps = [part.done for part in self.parts.values() if isinstance(part, Counting)]
        for part in self.parts.values():
            if isinstance(part, Writer):
                part.went_on(max(steps, default=0))
        self._closed = not self._longer and "best" in self._found
        self._found, self._saved = None, time.monotonic()
        if self._longer:
            self.save()  # before the first file of the shorter run is replaced

    def _arguments(self) -> dict[str, Any]:
        plain = (str, int, float, bool, type(None))
        return {
            name: value if isinstance(value, plain) else str(value)
            for name, value in vars(self.args).items()
            if name not in INCIDENTAL
        }

    def _require_arguments(self, made_with: dict[str, Any]) -> None:
        given, kind = self._arguments(), "an unfinished"
        if self._longer:
            steps, kind = made_with["max_timesteps"], "a finished"
            if given["max_timesteps"] <= steps:
                raise InputError(f"the batch has no more than the {steps:,} iterations done")
            given["max_timesteps"] = steps
        differing = [
            f"{name} {made_with.get(name)}, not {given.get(name)}"
            for name in sorted(made_with.keys() | given.keys())
            if made_with.get(name) != given.get(name)
        ]
        if differing:
            source = self._end if self._longer else self.folder
            raise InputError(
                f"{source} is of {kind} run with other arguments "
                f"({'; '.join(differing)}): with the same ones it goes on"
            )

    def save(self, **more: Any) -> None:
        """Write every part. Raises: InputError where that fails; the former state then stays."""
        if self.folder is None or self._closed:
            return
        self.keep()
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        write_sealed(self.folder / STATE, {"arguments": self._arguments(), "parts": parts} | more)
        buffers = [part for part in self.parts.values() if isinstance(part, Rows)]
        self._clean({STATE, *(name for part in buffers for name, *_ in part.files)})
        self._saved = time.monotonic()

    def close(self, best: Path | None = None) -> None:
        """Save for the last time, at the last point that a longer run comes by, too.

        `best`: the best agent's file, where an evaluation follows that a longer run does not have.
        """
        if best is None or self._closed:
            self.save()
        else:
            self.save(best=as_it_is(best))
        self._closed = True

    def leave(self) -> None:
        """The run has finished: keep what a longer one needs, but no replay buffer beside a batch.

        Raises: InputError where it cannot be written.
        """
        assert self.args is not None and self.folders is not None
        assert self.folder is not None and self._end is not None
        if "rows" in self.parts and not self.args.save_buffer:
            self._end.unlink(missing_ok=True)
        else:
            self.keep()
            batch = self.folders.buffer(self.args.buffer_name)
            leave(self._end, read_sealed(self.folder / STATE), self.parts, batch)

    def _clean(self, keep: set[str]) -> None:
        """Remove all else: rows overwritten since, what a killed run was writing."""
        assert self.folder is not None
        with suppress(OSError):  # someone else has
            # The state goes before the rows that it names: a kill between leaves none without them.
            for path in sorted(self.folder.iterdir(), key=lambda path: path.name != STATE):
                if path.name not in {LOCK, *keep}:
                    path.unlink()

    def save_if_due(self, due: bool = False) -> None:
        """Called where the run could go on from: save if it is time, and end if that was asked.

        Raises: Stopped after a signal.
        """
        if self.args is None:
            return
        late = time.monotonic() - self._saved >= 60 * self.args.checkpoint_minutes
        if due or late or self._asked:
            self.save()
        if self._asked:
            raise Stopped(self._asked)

    @property
    def overdue(self) -> bool:
        """Whether a checkpoint has waited long enough for the end of an episode."""
        if self.args is None:
            return False
        due = self._heard if self._asked else self._saved + 60 * self.args.checkpoint_minutes
        return time.monotonic() > due + PATIENCE

    @contextmanager
    def interruptible(self, before: bool = True) -> Iterator[None]:
        """Nothing of the state changes in the block, so that a signal ends it at once.

        It is saved first; not `before`, only where a signal has come.
        """
        if before:
            self.save_if_due(due=True)
        self._patient = False
        try:
            if self._asked:  # since it was saved
                raise Stopped(self._asked)
            yield
        except Stopped:
            if not before:
                self.save()
            raise
        finally:
            self._patient = self.folder is not None

    def _hear(self, signum: int, _frame: FrameType | None) -> None:
        once_more = bool(self._asked)
        late = time.monotonic() - self._heard >= TWICE
        if once_more and not (late and signum != HANGUP):
            return
        self._asked, self._heard = self._asked or signum, time.monotonic()
        if once_more or not self._patient:
            raise Stopped(self._asked, begun=self._saved > 0 or self._found is not None)
        tell("stopping at the next checkpoint; once more stops at once")

    def __enter__(self) -> "Checkpoint":
        if threading.current_thread() is threading.main_thread():
            self._handlers = {one: signal.signal(one, self._hear) for one in stopping_signals()}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for one, handler in self._handlers.items():
            signal.signal(one, handler)
        if self.folder is None or self._lock is None:
            return
        if self._lock.ours and (kind is None or not (self.folder / STATE).exists()):
            self._clean(set())
        if self._batch is not None:
            self._batch.release(finished=not (self.folder / STATE).exists())
        self._lock.release()
        for folder in (self.folder, self.folder.parent):
            with suppress(OSError):  # it holds a state, or other runs
                folder.rmdir()
