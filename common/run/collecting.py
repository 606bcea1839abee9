"""Stage 2, the same for both variants: play a fixed policy and keep what happens."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

from common.environment.rollout import Episode, EpisodeUnderWay, Step, interact
from common.resume.checkpoint import Checkpoint
from common.resume.parts import Rows


def collect(
    env: gym.Env,
    act: Callable[[np.ndarray, int], Any],
    replay_buffer: Any,
    timesteps: int,
    seed: int,
    begin_episode: Callable[[], None] = lambda: None,
    checkpoint: Checkpoint | None = None,
) -> list[Episode]:
    """Add `timesteps` transitions of a fixed policy; gives the finished episodes."""
    checkpoint, played = checkpoint or Checkpoint(), Progress()
    episode, rows = EpisodeUnderWay(env), Rows(replay_buffer, checkpoint.folder)
    checkpoint.hold(played=played, environment=episode, rows=rows)
    checkpoint.resume()
    first = played.timesteps
    steps = interact(env, act, timesteps, seed, begin_episode, first, episode, rows.cut)
    for step in tqdm(steps, total=timesteps, initial=first, unit="step", disable=None):
        replay_buffer.add(*step.transition)
        played.add(step)
        if step.finished or checkpoint.overdue:
            checkpoint.save_if_due()
    return played.episodes


class Progress:
    """How far an interaction is: its steps, and the episodes that have ended."""

    def __init__(self) -> None:
        self.timesteps = 0
        self.episodes: list[Episode] = []

    @property
    def done(self) -> int:
        """As in every stage: steps so far."""
        return self.timesteps

    def add(self, step: Step) -> None:
        """Count one step."""
        self.timesteps = step.timestep + 1
        self.episodes += step.finished

    def state_dict(self) -> dict[str, Any]:
        """Tensors: of short episodes there are very many."""
        ends, returns = zip(*self.episodes, strict=True) if self.episodes else ((), ())
        return {
            "timesteps": self.timesteps,
            "ends": torch.tensor(ends, dtype=torch.int64),
            "returns": torch.tensor(returns, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put such a state back."""
        self.timesteps = state["timesteps"]
        pairs = zip(state["ends"].tolist(), state["returns"].tolist(), strict=True)
        self.episodes = [Episode(*pair) for pair in pairs]
