"""What the user did wrong, and how a script says so."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from common.printing import fill_closed, unheeded


class Stopped(KeyboardInterrupt):
    """A signal ended the run: Ctrl-C, SIGTERM or SIGHUP, at a point from which it goes on.

    `begun`: whether there is such a point; before the first checkpoint there is none.
    """

    def __init__(self, signum: int, begun: bool = True) -> None:
        self.status = 128 + signum  # as a shell counts it: 130, 143, 129
        self.begun = begun
        super().__init__()


class InputError(ValueError):
    """Something the user gave is wrong: the message says what, where, and what to do about it."""


def _end(_signum: int, _frame: FrameType | None) -> None:
    os._exit(130)


def end_quietly() -> None:
    """Until `run` listens, Ctrl-C ends the program at once and without a traceback.

    A script's first call: packages take a second or two to import. Some fail at a closed stream.
    """
    fill_closed()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it may be ignored
        signal.signal(signal.SIGINT, _end)


def require_renderer() -> None:
    """End with one line where MUJOCO_GL names a way to draw that cannot be loaded.

    MuJoCo loads it as it is imported, also where nothing is to be drawn.
    """
    wanted = os.environ.get("MUJOCO_GL")
    if not wanted:
        return
    try:
        import mujoco  # noqa: F401
    except Exception as error:  # of a library that is not there, anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        sys.exit(
            f"error: MUJOCO_GL={wanted} cannot be loaded here ({reason}): install its library "
            "(OSMesa: libosmesa6), choose egl, or unset it"
        )


def run(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main` and exit: 0, 1 with a one-line error, or 128 + the signal's number.

    Whether anybody reads what is printed changes nothing.
    """
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with unheeded():
        sys.exit(_status(main))


def _status(main: Callable[[], None]) -> int | str:
    """What to exit with; a text is an error's."""
    try:
        main()
    except InputError as error:
        return f"error: {error}"
    except (MemoryError, RuntimeError) as error:
        # torch's message where an allocation fails, on the CPU and on CUDA
        if not (isinstance(error, MemoryError) or re.search("alloc|out of memory", str(error))):
            raise
        return "error: out of memory: a smaller --batch_size, or fewer candidates, need less"
    except KeyboardInterrupt as stop:
        left = going_on(sys.argv) if isinstance(stop, Stopped) else "the stage is not finished"
        said = f"what was saved so far is kept, {left}"
        if not getattr(stop, "begun", True):
            said = "nothing had been done yet; give the same command again"
        print(f"stopped: {said}", file=sys.stderr)
        return getattr(stop, "status", 130)
    return 0


def going_on(words: list[str]) -> str:
    """How to go on with a command that was stopped: with --overwrite it would begin anew."""
    again = [word for word in words if word != "--overwrite"]
    return "the same command goes on" if again == words else f"python {shlex.join(again)} goes on"
