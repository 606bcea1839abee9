"""What the user did wrong, and how a script says so."""

import re
import sys
from collections.abc import Callable
from typing import NoReturn


class Stopped(KeyboardInterrupt):
    """A signal ended the run: Ctrl-C or SIGTERM, at a point from which it goes on."""

    def __init__(self, signum: int) -> None:
        self.status = 128 + signum  # as a shell counts it: 130 and 143
        super().__init__()


class InputError(ValueError):
    """Something the user gave is wrong: the message says what, where, and what to do about it."""


def run(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main` and exit: 0, 1 with a one-line error, 130 after Ctrl-C, 143 SIGTERM."""
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
    except (MemoryError, RuntimeError) as error:
        # torch's message where an allocation fails, on the CPU and on CUDA
        if not (isinstance(error, MemoryError) or re.search("alloc|out of memory", str(error))):
            raise
        sys.exit("error: out of memory: a smaller --batch_size, or fewer candidates, need less")
    except KeyboardInterrupt as stop:
        resumed = isinstance(stop, Stopped)
        left = "the same command goes on" if resumed else "the stage is not finished"
        print(f"stopped: what was saved so far is kept, {left}", file=sys.stderr)
        sys.exit(getattr(stop, "status", 130))
    sys.exit(0)
