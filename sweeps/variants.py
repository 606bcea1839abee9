"""What the variants' own entries say: their learners, their defaults, and how a command is read."""

import argparse
import functools
import importlib
import sys
from types import ModuleType
from typing import Any

from common.errors import InputError
from common.files import ROOT


@functools.cache
def entry(variant: str) -> ModuleType:
    """`main.py` of a variant, imported as its own folder sees it.

    Several folders hold modules of the same name: while one is loaded the others' are hidden.
    """
    names = {path.stem for folder in ROOT.glob("*_BCQ") for path in folder.glob("*.py")}
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    path = sys.path[:]
    sys.path.insert(0, str(ROOT / variant))
    try:
        return importlib.import_module("main")
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
        sys.path[:] = path


def algorithms(variant: str) -> list[str]:
    """The learners that `--algorithm` offers."""
    return list(entry(variant).ALGORITHMS)


@functools.cache
def _parser(variant: str) -> argparse.ArgumentParser:
    return entry(variant).make_parser()


def parsed(variant: str, words: tuple[str, ...]) -> argparse.Namespace:
    """A command's arguments by the variant's own parser; those that main.py decides are None."""
    return _parser(variant).parse_args(list(words))


@functools.cache
def by_kind(env: str) -> dict[str, Any]:
    """What discrete_BCQ sets for this kind of environment; for vectors where it cannot be made."""
    main = entry("discrete_BCQ")
    try:
        made = main.make_env(env, max_episode_steps=-1)
    except InputError:  # of a package that is not installed here: each run will say so
        return dict(main.VECTOR)
    made.close()
    return dict(main.defaults_by_kind(made))


def resolved(variant: str, words: tuple[str, ...]) -> argparse.Namespace:
    """The same, with what the environment's kind and the learner decide."""
    args, main = parsed(variant, words), entry(variant)
    usual = {"batch_size": main.ALGORITHMS[args.algorithm].batch_size}
    if variant == "discrete_BCQ":
        usual |= by_kind(args.env)
    for flag, value in usual.items():
        if getattr(args, flag) is None:
            setattr(args, flag, value)
    return args


@functools.cache
def defaults(variant: str, env: str) -> argparse.Namespace:
    """Every flag's default for this environment."""
    return resolved(variant, ("--env", env))
