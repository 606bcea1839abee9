"""MinAtar's games, whose chance comes from a generator of their own: it follows gymnasium's.

Source: Young, Tian, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement
Learning Experiments", 2019 (arXiv 1903.03176).
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding

SCALE, FPS = 24, 10  # of a video: its pixels for one of the game, and frames a second


def is_minatar(env: gym.Env) -> bool:
    """Whether it is a game of the package."""
    return type(env.unwrapped).__module__ == "minatar.gym"


class Reseeded(gym.Wrapper[Any, Any, Any, Any]):
    """The game, seeded at every reset by a number that gymnasium's `np_random` draws.

    So that generator and the actions determine an episode, as everywhere else, and it can be played
    again: after a stop, for a true value, at the next evaluation.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        inner: Any = env.unwrapped
        inner.metadata = inner.metadata | {"render_fps": FPS}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As the game's own, and the first sticky action repeats action 0."""
        inner: Any = self.unwrapped
        if seed is not None:
            inner.np_random, _ = seeding.np_random(seed)
        # Differs from the package, where it is the last episode's action that may be repeated.
        inner.game.last_action = 0
        return self.env.reset(seed=int(inner.np_random.integers(2**31)), options=options)

    def render(self) -> Any:
        """Colours as bytes, 24 pixels for each of the game's, as a video needs them."""
        shown: Any = self.env.render()
        if not isinstance(shown, np.ndarray):
            return shown
        return (255 * shown).astype(np.uint8).repeat(SCALE, 0).repeat(SCALE, 1)

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The game's own: it is made from that, not from this wrapper."""
        return self.env.spec
