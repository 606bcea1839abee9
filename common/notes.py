"""What is worth a line on the screen, once a run: nothing that stops it, nothing to pass over."""

_said: set[str] = set()


def note(line: str) -> None:
    """Print the line unless this run has said it: ten environments would say it ten times."""
    if line not in _said:
        _said.add(line)
        print(line)


def begin() -> None:
    """A run begins: nothing was said yet."""
    _said.clear()
