"""An environment that shares no memory with its caller, and is given actions of its own space."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from common.errors import InputError


class Isolated(gym.Wrapper):
    """The environment, with two promises, whatever it does with the arrays it gives and is given.

    What it returns is the caller's: an environment may return one array and overwrite it at every
    step. What it is given is a copy of the action, in its space and of its space's dtype: an
    environment may change it in place, and float32(0.1) lies beyond a float64 bound of 0.1. Actions
    of whole numbers are shown as a float32 Box with the same bounds, and rounded.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.taken = env.action_space  # what the environment itself takes
        self._as_taken: Callable[[Any], Any] = deepcopy
        if isinstance(self.taken, spaces.Box):
            self._as_taken = bounded(self.taken)
            if rounds(self.taken):
                low, high = self.taken.low.astype(np.float32), self.taken.high.astype(np.float32)
                self.action_space = spaces.Box(low, high, dtype=np.float32)
        elif isinstance(self.taken, spaces.Discrete):
            self._as_taken = self.taken.dtype.type

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As the environment's own; the state is the caller's to keep."""
        state, info = self.env.reset(seed=seed, options=options)
        return own(state), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """As the environment's own, on a copy of the action; the state is the caller's to keep.

        Raises: InputError for NaN where the environment takes whole numbers.
        """
        state, reward, terminated, truncated, info = self.env.step(self._as_taken(action))
        return own(state), reward, terminated, truncated, info

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The environment's own: it is made from that, not from this wrapper."""
        return self.env.spec


def own(state: Any) -> Any:
    """A copy of an observation that shares no memory with it."""
    return state.copy() if type(state) is np.ndarray else deepcopy(state)


def rounds(actions: gym.Space) -> bool:
    """Whether these are bounded vectors of whole numbers, chosen as floats and rounded."""
    if not isinstance(actions, spaces.Box) or np.issubdtype(actions.dtype, np.floating):
        return False
    return actions.is_bounded()


def bounded(actions: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    """The nearest action of the space, of its dtype, as a new array: (A,) -> (A,).

    Raises (the function): InputError for NaN where the space holds whole numbers.
    """
    low, high, dtype = actions.low, actions.high, actions.dtype

    def nearest(action: np.ndarray) -> np.ndarray:
        inside = np.minimum(np.maximum(action, low), high)
        return inside if inside.dtype == dtype else inside.astype(dtype)

    def nearest_whole(action: np.ndarray) -> np.ndarray:
        given = np.asarray(action, np.float64)
        if np.isnan(given).any():
            raise InputError(f"the policy chose the action {action}, which cannot be rounded")
        below, above = given <= low, given >= high
        inside = np.rint(np.where(below | above, 0, given)).astype(dtype)
        return np.where(below, low, np.where(above, high, inside))

    return nearest if np.issubdtype(dtype, np.floating) else nearest_whole
