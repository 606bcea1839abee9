"""What the user did wrong, and how a script says so."""

import re
import sys
from collections.abc import Callable
from typing import NoReturn


class InputError(ValueError):
    """Something the user gave is wrong: the message says what, where, and what to do about it."""


def run(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main` and exit: 0, 1 with a one-line error, or 130 after Ctrl-C."""
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
    except (MemoryError, RuntimeError) as error:
        # torch's message where an allocation fails, on the CPU and on CUDA
        if not (isinstance(error, MemoryError) or re.search("alloc|out of memory", str(error))):
            raise
        sys.exit("error: out of memory: a smaller --batch_size, or fewer candidates, need less")
    except KeyboardInterrupt:
        print("stopped: what was saved so far is kept, the stage is not finished", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)
