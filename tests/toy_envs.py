"""Small environments with known dynamics, registered with gymnasium as this module is imported."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Info = dict[str, Any]


class Walk(gym.Env[np.ndarray, np.ndarray]):
    """State (start, steps taken), reward 1 a step, terminal after `length` steps (None: never).

    `length="drawn"` takes 3 to 8 steps, fixed by the reset's seed. `log` gathers what happens to
    all instances: ("reset", seed) and ("step", start, step).
    """

    log: ClassVar[list[tuple[Any, ...]]] = []
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length: int | str | None = None) -> None:
        self.option = length

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.log.append(("reset", seed))
        self.start, self.steps = float(self.np_random.random()), 0
        drawn = int(self.np_random.integers(3, 9))
        self.length = drawn if self.option == "drawn" else self.option
        return self.state, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        self.steps += 1
        self.log.append(("step", self.start, self.steps))
        return self.state, 1.0, self.steps == self.length, False, {}

    @property
    def state(self) -> np.ndarray:
        return np.array([self.start, self.steps], np.float32)


class Reach(gym.Env[np.ndarray, np.ndarray]):
    """State x in [-1, 1]², moved by a tenth of the action; reward -|x|²; never terminal."""

    observation_space: spaces.Space[np.ndarray] = spaces.Box(-1, 1, (2,), np.float32)
    action_space: spaces.Box = spaces.Box(-1, 1, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.x.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        self.x = (self.x + 0.1 * np.asarray(action, np.float32)).clip(-1, 1)
        return self.x.copy(), -float(self.x @ self.x), False, False, {}


class Asymmetric(Reach):
    """As Reach, with bounds [0, 4] and [-1, 5], whose middle (2, 2) moves nothing."""

    action_space = spaces.Box(np.array([0, -1], np.float32), np.array([4, 5], np.float32))
    actions: ClassVar[list[np.ndarray]] = []

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        assert self.action_space.contains(action), f"{action} lies outside {self.action_space}"
        self.actions.append(action)
        return super().step(action - np.array([2, 2], np.float32))


class Unbounded(Reach):
    """As Reach, without bounds on the action."""

    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Image(Reach):
    """An environment whose states are pictures."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


gym.register("ToyReach-v0", "toy_envs:Reach", max_episode_steps=10)
gym.register("ToyAsymmetric-v0", "toy_envs:Asymmetric", max_episode_steps=10)
gym.register("ToyUnbounded-v0", "toy_envs:Unbounded", max_episode_steps=10)
gym.register("ToyImage-v0", "toy_envs:Image", max_episode_steps=10)
