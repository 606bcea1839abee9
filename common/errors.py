"""The one exception whose message is meant for the user."""


class InputError(ValueError):
    """Something the user gave is wrong: the message says what, where, and what to do about it.

    `common.cli.run` prints it as one line and exits with status 1; in a library it is a ValueError.
    """
