"""What main.py's environment makes of states and actions, done to data of the same environment."""

import re
from typing import NamedTuple

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from common.environment.making import EPISODE_STEPS, make, needs_rescaling, require_choice
from common.errors import InputError
from datasets.reading import numbers

NO_LIMIT = 2**62  # steps of an episode of a task that nothing but the data describes


class Task(NamedTuple):
    """An environment's sizes, bounds and step limit.

    state_dim: S of the batch; parts: where states are whole numbers, (first, how many) of each,
    one-hot in the batch; num_actions: K, or None for continuous actions with the environment's own
    bounds low and high (A,); rescaled: whether the batch has them in [−1, 1] instead; limit: steps
    of an episode, NO_LIMIT where none is known; atari: whether states are stacks of frames; spec:
    what gymnasium makes it from.
    """

    env_id: str
    state_dim: int
    parts: list[tuple[int, int]]
    num_actions: int | None
    low: np.ndarray
    high: np.ndarray
    rescaled: bool
    limit: int
    atari: bool
    spec: EnvSpec | None

    @property
    def action_dim(self) -> int:
        """The width of the batch's action column: A, and 1 where actions are discrete."""
        return len(self.low)

    def states(self, what: str, logged: np.ndarray) -> np.ndarray:
        """States as logged, (n, S) or (n, parts) -> (n, S) float32.

        Raises: InputError for another width, or a number that is none of the environment's.
        """
        array = numbers(what, logged)
        if array.shape[1] == self.state_dim:
            return array
        if array.shape[1] != len(self.parts):
            raise InputError(
                f"{what} is {array.shape[1]} wide, the states of {self.env_id} have "
                f"{self.state_dim} numbers{_versions_of_width(self.env_id, array.shape[1])}"
            )
        columns = []
        for (first, size), column in zip(self.parts, array.T, strict=True):
            # NaN is refused with its row later; here it only must not be an index.
            index = np.where(np.isnan(column), first, column) - first
            outside = (index < 0) | (index >= size) | (index != np.floor(index))
            if outside.any():
                raise InputError(
                    f"{what} holds {column[outside][0]:g}; {self.env_id} has the states {first} "
                    f"to {first + size - 1}"
                )
            one_hot = np.eye(size, dtype=np.float32)[index.astype(np.int64)]
            one_hot[np.isnan(column)] = np.nan
            columns.append(one_hot)
        return np.concatenate(columns, 1)

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
        """The inverse of `to_batch`; float64 where it rescales."""
        if self.num_actions is not None or not self.rescaled:
            return action
        middle, half = self._scale()
        return (middle + half * action.astype(np.float64)).clip(self.low, self.high)

    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        return (low + high) / 2, (high - low) / 2


def task_of(env_id: str) -> Task:
    """Raises: InputError where there is no such environment, or neither variant serves it."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    env = make(env_id)
    actions, states = env.action_space, env.observation_space
    limit = (env.spec.max_episode_steps if env.spec else None) or EPISODE_STEPS
    atari = isinstance(env.unwrapped, ale_py.AtariEnv)
    spec = env.spec
    env.close()
    parts = _parts(states)
    vector = isinstance(states, spaces.Box) and len(states.shape) == 1
    state_dim = spaces.flatdim(states) if vector or parts else 0
    if isinstance(actions, spaces.Discrete) and actions.start == 0 and (state_dim or atari):
        low, high = np.zeros(1), np.full(1, actions.n - 1.0)
        return Task(env_id, state_dim, parts, int(actions.n), low, high, False, limit, atari, spec)
    if (
        isinstance(actions, spaces.Box)
        and len(actions.shape) == 1
        and actions.is_bounded()
        and vector
        and state_dim
    ):
        require_choice(env_id, actions)
        rescaled = needs_rescaling(actions)
        low, high = actions.low, actions.high
        return Task(env_id, state_dim, [], None, low, high, rescaled, limit, False, spec)
    raise InputError(
        f"--env {env_id} has states {states} and actions {actions}: continuous_BCQ learns vectors "
        "with bounded vectors of actions (Box), discrete_BCQ vectors and Atari with one of several "
        "(Discrete)"
    )


def _parts(states: gym.Space) -> list[tuple[int, int]]:
    """(first, how many) of each whole number a state is made of; empty where it is none of such."""
    if isinstance(states, spaces.Discrete):
        return [(int(states.start), int(states.n))]
    if isinstance(states, spaces.MultiDiscrete) and states.nvec.ndim == 1:
        return [
            (int(first), int(size)) for first, size in zip(states.start, states.nvec, strict=True)
        ]
    if isinstance(states, spaces.Tuple) and all(
        isinstance(part, spaces.Discrete) for part in states.spaces
    ):
        return [part for space in states.spaces for part in _parts(space)]
    return []


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
