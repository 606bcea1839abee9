"""What may stand behind a flag: argument types, and how a learner declares its own flags."""

import argparse
import ast
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

# Arguments that change nothing of what is learned (device and threads: but for rounding).
INCIDENTAL = {
    "output_dir", "buffer_dir", "overwrite", "tensorboard", "checkpoint_minutes", "device",
    "threads",
}  # fmt: skip


class Flag(NamedTuple):
    """One hyper-parameter on the command line; `bool` is a switch, with its `--no-` form.

    `spelled`: the flag where it is not `--` and the parameter's name.
    """

    type: Callable[[str], Any]
    help: str
    choices: list[str] | None = None
    spelled: str | None = None


def keyword_arguments(text: str) -> dict[str, Any]:
    """`name=value`, a value as in Python or json and else a text; or a json object of several."""
    if text.lstrip().startswith("{"):
        with suppress(ValueError):
            return _checked(text, json.loads(text))
        raise argparse.ArgumentTypeError(f"{text} is no json object")
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text} is not name=value, nor a json object")
    return _checked(text, {key: _literal(value)})


def _literal(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            return read(text)
    return text


def _checked(text: str, found: dict[str, Any]) -> dict[str, Any]:
    """What json makes of it, as the record has it."""
    if flags := {"max_episode_steps", "render_mode", "disable_env_checker"} & found.keys():
        raise argparse.ArgumentTypeError(
            f"{text}: {', '.join(sorted(flags))} is no keyword argument"
        )
    try:
        return json.loads(json.dumps(found, allow_nan=False))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text}: numbers, texts and lists of them alone"
        ) from None


class Together(argparse.Action):
    """Dictionaries, one a word, become one, in the order of their keys."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option_string: str | None = None,
    ) -> None:
        """Also where the flag is given several times."""
        found = dict(getattr(namespace, self.dest) or {})
        for one in values:
            found |= one
        setattr(namespace, self.dest, {key: found[key] for key in sorted(found)} or None)


def count(text: str) -> int:
    """A whole number of at least 1, `1e6` and `1000000` alike."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return number


def at_least_two(text: str) -> int:
    """A whole number of at least 2."""
    if count(text) < 2:
        raise argparse.ArgumentTypeError(f"{text} leaves no choice: 2 values at least")
    return count(text)


def folder(text: str) -> Path:
    """A path; the empty one is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a folder is empty")
    return Path(text)


def whole(text: str) -> int:
    """A whole number of at least 0, `25e3` and `25000` alike."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not (number.is_integer() and 0 <= number <= 2**53):
        raise argparse.ArgumentTypeError(
            f"{text} is not a whole number from 0 to 2^53, such as 1000000 or 1e6"
        )
    return int(number)


def number_between(low: float, high: float) -> Callable[[str], float]:
    """A type for numbers in [low, high]; infinity and NaN are refused."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high or abs(number) == float("inf"):
            described = f"in [{low:g}, {high:g}]" if high < float("inf") else f"of at least {low:g}"
            raise argparse.ArgumentTypeError(f"{text} is not a number {described}")
        return number

    return parse


probability = number_between(0, 1)
real = number_between(-1e30, 1e30)  # with room in float32 for what is made of it
nonnegative = number_between(0, float("inf"))


def positive(text: str) -> float:
    """A number above 0; infinity and NaN are refused."""
    try:
        number = nonnegative(text)
    except argparse.ArgumentTypeError:
        number = 0.0  # so that every refusal says the same
    if not number:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def name(text: str) -> str:
    """A part of a file name: letters, digits, `.`, `-` and `_`, not beginning with a dot."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} may hold letters, digits, '.', '-' and '_' alone"
        )
    return text
