"""Names as a figure or a table can show them: recorded ones may hold any character."""

NAMELESS = "(no name)"
HIDDEN = "\u200b"  # a space without width: matplotlib leaves labels out that begin with a `_`


def printable(name: str) -> str:
    r"""The name with line ends, control characters and the like as Python writes them: `\n`."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name) or NAMELESS


def in_figure(name: str) -> str:
    """As matplotlib is to be given it: a `$` begins no formula, a first `_` hides no label."""
    text = printable(name).replace("$", r"\$")
    return HIDDEN + text if text.startswith("_") else text


def in_table(name: str) -> str:
    r"""As Markdown is to be given it: a `|` ends no cell."""
    return printable(name).replace("\\", r"\\").replace("|", r"\|")
