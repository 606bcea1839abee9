"""Using a saved policy: states from a file or an array, actions in the units that were logged."""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from common.environment.described import Described
from common.errors import InputError
from common.files import Folders, refuse_existing, replacing
from common.run.flags import environment_options

STATES = 1024  # that a policy is asked about at a time
SUFFIXES = (".csv", ".npz")


def require_output(args: argparse.Namespace) -> None:
    """Raises: InputError where --output is missing, of another kind, or exists already."""
    if args.output is None or args.output.suffix not in SUFFIXES:
        raise InputError("--act needs --output, a .csv or .npz for the actions")
    refuse_existing([args.output], args.overwrite)


def act(args: argparse.Namespace, select_action: Callable[[np.ndarray], Any], env: gym.Env) -> None:
    """Write the actions in the states of --act to --output, whole or not at all."""
    from datasets.tables import read_states  # formats are known to that folder alone

    assert env.observation_space.shape is not None
    states = read_states(args.act, env.observation_space.shape)
    actions = in_units(select_action, env, **environment_options(args))(states)
    with replacing(args.output) as [temporary]:
        if args.output.suffix == ".npz":
            with temporary.open("wb") as file:
                np.savez(file, action=actions)
        else:
            _write_csv(temporary, actions)
    print(f"saved {args.output}: {len(actions):,} actions")


def _write_csv(path: Path, actions: np.ndarray) -> None:
    columns = actions.reshape(len(actions), -1)
    width = columns.shape[1]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["action"] if width == 1 else [f"action_{i}" for i in range(width)])
        writer.writerows(columns.tolist())


def in_units(
    select_action: Callable[[np.ndarray], Any], env: gym.Env, **options: Any
) -> Callable[[np.ndarray], np.ndarray]:
    """π as a function of states, (n, S) -> (n, A) as they were logged, or (n,) of discrete ones.

    `options`: what `env` was made with, gymnasium.make's; they may say its bounds.
    """
    if isinstance(env, Described):
        from_batch = env.from_batch
    else:
        from datasets.task import task_of

        assert env.spec is not None
        from_batch = task_of(env.spec.id, **options).from_batch

    def policy(states: np.ndarray) -> np.ndarray:
        states = np.asarray(states)
        if states.shape[1:] != env.observation_space.shape or not len(states):
            raise InputError(
                f"states of shape {states.shape}; the policy takes (n, "
                f"{', '.join(map(str, env.observation_space.shape or ()))})"
            )
        parts = np.split(states, range(STATES, len(states), STATES))
        return from_batch(np.concatenate([select_action(part) for part in parts]))

    return policy


def prepare(args: argparse.Namespace, env: str | None) -> Folders:
    """Settings for a policy that is loaded by hand: on the CPU, from where its run lies."""
    args.env, args.device = env, "cpu"
    args.model = Path(args.model)
    args.output_dir = args.model.resolve().parent.parent
    return Folders(args.output_dir, env, args.seed)
