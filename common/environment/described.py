"""A task that is known by its data alone: the spaces of its states and actions, no more."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from common.errors import InputError

KINDS = ("continuous", "discrete")


class Described(gym.Env):
    """The spaces of a batch without a simulator, as its agent meets them; it cannot be played.

    `task` is what import_dataset.py recorded. Continuous actions that the batch has rescaled lie in
    [−1, 1]; `from_batch` gives them back in the units that were logged.
    """

    def __init__(self, task: dict[str, Any], source: Any) -> None:
        """`source`: where the description is from. Raises: InputError where it is none."""
        try:
            self.kind, states = str(task["kind"]), _as(int, task["state_dim"])
            self.observation_space = spaces.Box(-np.inf, np.inf, (states,))
            self.rescaled = _as(bool, task["rescaled"])
            if self.kind not in KINDS or states < 1:
                raise ValueError
            if self.kind == "discrete":
                self.action_space: Any = spaces.Discrete(_as(int, task["num_actions"]))
                return
            self.low, self.high = (np.array(task[k], float) for k in ("action_low", "action_high"))
            if self.low.shape != self.high.shape or not np.isfinite([self.low, self.high]).all():
                raise ValueError
            if self.low.ndim != 1 or not (self.low < self.high).all():
                raise ValueError
            ones = np.ones(len(self.low))
            low, high = (-ones, ones) if self.rescaled else (self.low, self.high)
            self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise InputError(
                f"{source}: 'task' does not describe one ({error!r}): import the data again"
            ) from None

    @property
    def taken(self) -> gym.Space:
        """What an environment would take; the batch is scaled already."""
        space: gym.Space = self.action_space
        return space

    def from_batch(self, action: np.ndarray) -> np.ndarray:
        """Actions as the agent gives them -> as they were logged."""
        if not self.rescaled:
            return action
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return (middle + half * action.astype(np.float64)).clip(self.low, self.high)

    def require(self, kind: str, source: Any) -> None:
        """Raises: InputError where its actions are not of this kind."""
        if self.kind != kind:
            raise InputError(
                f"{source} has {self.kind} actions: {self.kind}_BCQ/main.py serves them"
            )


def _as(kind: type, value: Any) -> Any:
    """A value of exactly this type: 2.5 is no width, nor is True. Raises: ValueError otherwise."""
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value
