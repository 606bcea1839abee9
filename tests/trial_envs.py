"""Drawn environments that keep what they give, change what they are given, and look at it."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FLOATS, WHOLE = ["float32", "float64"], ["int8", "uint8", "int32", "int64"]


@dataclass(frozen=True)
class Traits:
    """What an environment is like; `seed` draws its bounds.

    shares: whether the state is one array, overwritten at every step, of the instance or of all
    instances. in_parts: whether a state is a dict of arrays and tuples, not a vector. changes: what
    it does with the action it is given. actions: a dtype, or discrete.
    """

    seed: int
    shares: str = "nothing"
    in_parts: bool = False
    changes: str = "nothing"
    actions: str = "float32"

    def tame(self) -> "Traits":
        """The same environment, which keeps and changes nothing."""
        return replace(self, shares="nothing", changes="nothing")


def drawn(seed: int, discrete: bool = False) -> Traits:
    """One of many; each of the kinds comes up in the first few."""
    draw = np.random.default_rng(seed)
    shares = ["an array", "an array of all", "nothing"][seed % 3]
    changes = str(draw.choice(["scales it", "clips it", "fills it"]))
    actions = "discrete" if discrete else (FLOATS + WHOLE)[seed % 6]
    in_parts = discrete and seed % 2 == 1
    return Traits(seed, shares, in_parts, changes, actions)


def action_space(traits: Traits) -> gym.Space:
    """Bounds of 1 to 3 dimensions: alike and symmetric, or not."""
    draw = np.random.default_rng(1000 + traits.seed)
    if traits.actions == "discrete":
        return spaces.Discrete(int(draw.integers(2, 6)))
    dtype, size = np.dtype(traits.actions), int(draw.integers(1, 4))
    if dtype.kind == "f":
        # Of these, float32 is above 0.1 and 0.7 (rounded up), below 0.3, and 1 is exact.
        high = np.full(size, float(draw.choice([0.1, 0.7, 0.3, 1.0])))
        low = -high if draw.random() < 0.5 else high - draw.uniform(0.1, 3, size)
    else:
        high = np.full(size, int(draw.integers(1, 100)))
        symmetric = dtype.kind == "i" and draw.random() < 0.5
        low = -high if symmetric else high - draw.integers(1, high + 1, size)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


PARTS = spaces.Dict(
    first=spaces.Box(-np.inf, np.inf, (2,), np.float64),
    more=spaces.Tuple([spaces.Box(-np.inf, np.inf, (1,), np.float64), spaces.Discrete(2)]),
)


class Trial(gym.Env[Any, Any]):
    """State (3,), moved by the action; episodes of 3 to 8 steps, terminal or cut.

    `given` gathers copies of the actions that any instance was given.
    """

    given: ClassVar[list[Any]] = []
    of_all: ClassVar[np.ndarray] = np.zeros(3)
    observation_space: gym.Space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def __init__(self, traits: Traits) -> None:
        self.traits, self.action_space = traits, action_space(traits)
        self.array = self.of_all if traits.shares == "an array of all" else np.zeros(3)
        if traits.in_parts:
            self.parts = {"first": self.array[:2], "more": (self.array[2:], 0)}
            self.observation_space = PARTS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.normal(size=3), 0
        self.length, self.terminal = (
            int(self.np_random.integers(3, 9)),
            self.np_random.random() < 0.5,
        )
        return self.shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        space = self.action_space
        assert space.contains(action) and action.dtype == space.dtype, f"{action!r} not in {space}"
        self.given.append(action.copy())
        move = float(np.sum(action, dtype=np.float64))
        if isinstance(action, np.ndarray):
            self.change(action)
        self.x = 0.9 * self.x + 0.1 * np.tanh(move) * np.array([1, -1, 2])
        self.steps += 1
        ended = self.steps == self.length
        return self.shown(), float(self.x.sum()), ended and self.terminal, ended, {}

    def change(self, action: np.ndarray) -> None:
        if self.traits.changes == "scales it":
            np.multiply(action, 0.5, out=action, casting="unsafe")
        elif self.traits.changes == "clips it":
            action.clip(0, 0, out=action)
        elif self.traits.changes == "fills it":
            action[:] = action.min()

    def shown(self) -> Any:
        if self.traits.shares == "nothing":
            x = self.x.copy()
            return {"first": x[:2], "more": (x[2:], 0)} if self.traits.in_parts else x
        self.array[:] = self.x
        return self.parts if self.traits.in_parts else self.array


gym.register("Trial-v0", "trial_envs:Trial")
