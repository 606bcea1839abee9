"""What main.py's environment makes of states and actions, done to data of the same environment."""

import re
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from common.environment.doors import (
    ATARI_STEPS,
    is_atari,
    make_continuous,
    make_discrete,
    shows_frames,
    taken,
)
from common.environment.isolated import rounds
from common.environment.making import EPISODE_STEPS, make, needs_rescaling
from common.errors import InputError
from datasets.reading import numbers

NO_LIMIT = 2**62  # steps of an episode of a task that nothing but the data describes


class Leaf(NamedTuple):
    """A part of a state: `width` numbers as they are, or one of the whole numbers from `first` on.

    There are `size` of the whole numbers, one-hot in the batch; `size` is 0 where it is no such.
    """

    width: int
    first: int = 0
    size: int = 0


class Task(NamedTuple):
    """An environment's sizes, bounds and step limit.

    state_dim: S of the batch; space: the states as the environment has them; num_actions: K, or
    None for continuous actions with the environment's own bounds low and high (A,); rescaled:
    whether the batch has them in [−1, 1] instead; whole: their dtype where they are whole numbers;
    limit: steps of an episode, NO_LIMIT where none is known; atari: whether it is a game of
    ale-py; frames: whether states are stacks of frames; spec: what gymnasium makes it from.
    """

    env_id: str
    state_dim: int
    space: gym.Space
    num_actions: int | None
    low: np.ndarray
    high: np.ndarray
    rescaled: bool
    whole: np.dtype[Any] | None = None
    limit: int = NO_LIMIT
    atari: bool = False
    frames: bool = False
    spec: EnvSpec | None = None

    @property
    def action_dim(self) -> int:
        """The width of the batch's action column: A, and 1 where actions are discrete."""
        return len(self.low)

    def states(self, what: str, logged: np.ndarray) -> np.ndarray:
        """States as logged, (n, S) or one number a whole number -> (n, S) float32.

        Raises: InputError for another width, or a number that is none of the environment's.
        """
        array = numbers(what, logged)
        if array.shape[1] == self.state_dim:
            return array
        leaves = leaves_of(self.space)
        edges = np.cumsum([0, *(leaf.width for leaf in leaves)])
        if array.shape[1] != edges[-1]:
            raise InputError(
                f"{what} is {array.shape[1]} wide, the states of {self.env_id} have "
                f"{self.state_dim} numbers{_versions_of_width(self.env_id, array.shape[1])}"
            )
        columns = []
        for leaf, begin in zip(leaves, edges[:-1], strict=True):
            part = array[:, begin : begin + leaf.width]
            columns.append(self._one_hot(what, part[:, 0], leaf) if leaf.size else part)
        return np.concatenate(columns, 1)

    def _one_hot(self, what: str, column: np.ndarray, leaf: Leaf) -> np.ndarray:
        # NaN is refused with its row later; here it only must not be an index.
        index = np.where(np.isnan(column), leaf.first, column) - leaf.first
        outside = (index < 0) | (index >= leaf.size) | (index != np.floor(index))
        if outside.any():
            raise InputError(
                f"{what} holds {column[outside][0]:g}; {self.env_id} has the states {leaf.first} "
                f"to {leaf.first + leaf.size - 1}"
            )
        one_hot = np.eye(leaf.size, dtype=np.float32)[index.astype(np.int64)]
        one_hot[np.isnan(column)] = np.nan
        return one_hot

    def actions(self, what: str, array: np.ndarray) -> np.ndarray:
        """Actions as logged -> (n, A) float64, as the environment takes them.

        Raises: InputError for another width.
        """
        # In float64: rescaling there and back again ends at the same float32.
        action = numbers(what, array, np.float64)
        if action.shape[1] != self.action_dim:
            plural = "s" if self.action_dim > 1 else ""
            raise InputError(
                f"{what} is {action.shape[1]} wide, the actions of {self.env_id} have "
                f"{self.action_dim} number{plural}"
            )
        return action

    def to_batch(self, action: np.ndarray) -> np.ndarray:
        """Actions as the environment takes them, (n, A) -> as the batch holds them."""
        if self.num_actions is not None:
            return action.astype(np.int64)
        if not self.rescaled:
            return action.astype(np.float32)
        middle, half = self._scale()
        return ((action - middle) / half).astype(np.float32).clip(-1, 1)

    def from_batch(self, action: np.ndarray) -> np.ndarray:
        """The inverse of `to_batch`; float64 where it rescales, rounded where they are whole."""
        if self.num_actions is not None:
            return action
        if self.rescaled:
            middle, half = self._scale()
            action = (middle + half * action.astype(np.float64)).clip(self.low, self.high)
        return action if self.whole is None else np.rint(action).astype(self.whole)

    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        return (low + high) / 2, (high - low) / 2


def task_of(env_id: str, **options: Any) -> Task:
    """What main.py's own environment of this id is like; `options` are gymnasium.make's.

    Raises: InputError where there is no such environment, or neither variant serves it.
    """
    bare = make(env_id, **options)
    discrete = isinstance(bare.action_space, spaces.Discrete)
    env = (make_discrete if discrete else make_continuous)(env_id, **options)
    atari, frames = is_atari(env), shows_frames(env)
    own_limit = bare.spec.max_episode_steps if bare.spec else None
    limit = options.get("max_episode_steps") or own_limit
    limit = limit or (ATARI_STEPS if atari else EPISODE_STEPS)
    actions, whole = taken(env), None
    if isinstance(actions, spaces.Box):
        assert isinstance(bare.action_space, spaces.Box)
        rescaled = needs_rescaling(bare.action_space)
        low, high, number = actions.low, actions.high, None
        if rounds(actions):
            whole, low, high = actions.dtype, low.astype(np.float64), high.astype(np.float64)
    else:
        assert isinstance(actions, spaces.Discrete)
        number, rescaled = int(actions.n), False
        low, high = np.zeros(1), np.full(1, number - 1.0)
    for one in (bare, env):
        one.close()
    return Task(
        env_id=env_id,
        state_dim=0 if frames else spaces.flatdim(env.observation_space),
        space=bare.observation_space,
        num_actions=number,
        low=low,
        high=high,
        rescaled=rescaled,
        whole=whole,
        limit=limit,
        atari=atari,
        frames=frames,
        spec=bare.spec,
    )


def leaves_of(states: gym.Space) -> list[Leaf]:
    """What a state is put together from, in the order in which gymnasium flattens it."""
    if isinstance(states, spaces.Discrete):
        return [Leaf(1, int(states.start), int(states.n))]
    if isinstance(states, spaces.MultiDiscrete):
        pairs = zip(states.start.flat, states.nvec.flat, strict=True)
        return [Leaf(1, int(first), int(size)) for first, size in pairs]
    if isinstance(states, spaces.Tuple):
        return [leaf for part in states.spaces for leaf in leaves_of(part)]
    if isinstance(states, spaces.Dict):
        return [leaf for part in states.spaces.values() for leaf in leaves_of(part)]
    return [Leaf(spaces.flatdim(states))]


def base_and_version(env_id: str) -> tuple[str, int | None]:
    """`Hopper-v4`, or `module:Hopper-v4` -> (`Hopper`, 4)."""
    match = re.fullmatch(r"(?:.*:)?(.*?)(?:-v(\d+))?", env_id)
    assert match
    return match[1], None if match[2] is None else int(match[2])


def _versions_of_width(env_id: str, width: int) -> str:
    """A hint at the versions of this environment whose states are that wide."""
    base, _ = base_and_version(env_id)
    module, colon, here = env_id.rpartition(":")
    found = []
    for other in gym.registry:
        if other == here or base_and_version(other)[0] != base:
            continue
        try:
            env = make(other)
        except InputError:  # of an engine that is not installed
            continue
        if env.observation_space.shape == (width,):
            found.append(module + colon + other)
        env.close()
    return f"; those of {' and '.join(found)} have {width}: --env {found[-1]}" if found else ""
