"""What the user did wrong, and how a script says so."""

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
    except KeyboardInterrupt:
        print("stopped: what was evaluated and saved so far is kept", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)
