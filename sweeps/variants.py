"""What the variants' own entries say: their learners, their defaults, and how a command is read."""

import argparse
import functools
import importlib
import sys
from types import ModuleType

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
def is_atari(env: str) -> bool:
    """Whether `--env` is a game of ale-py."""
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    return env in gym.registry and "ale_py" in str(gym.registry[env].entry_point)


@functools.cache
def shows_small_images(env: str) -> bool:
    """Whether `--env` is a game such as MinAtar's; gymnasium's own are none and are not made."""
    import gymnasium as gym

    from common.environment.doors import is_small_image
    from common.environment.making import make

    known = gym.registry.get(env)
    if known is not None and "gymnasium." in str(known.entry_point):
        return False
    try:
        return is_small_image(make(env, max_episode_steps=-1).observation_space)
    except InputError:  # of a package that is not installed here
        return False


def resolved(variant: str, words: tuple[str, ...]) -> argparse.Namespace:
    """The same, with what the environment's kind and the learner decide."""
    args, main = parsed(variant, words), entry(variant)
    by_kind = {}
    if variant == "discrete_BCQ":
        by_kind = main.VECTOR
        if is_atari(args.env):
            by_kind = main.ATARI
        elif shows_small_images(args.env):
            by_kind = main.IMAGE
    usual = {"batch_size": main.ALGORITHMS[args.algorithm].batch_size} | by_kind
    for flag, value in usual.items():
        if getattr(args, flag) is None:
            setattr(args, flag, value)
    return args


@functools.cache
def defaults(variant: str, env: str) -> argparse.Namespace:
    """Every flag's default for this environment."""
    return resolved(variant, ("--env", env))
