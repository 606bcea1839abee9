"""This folder's door to `common/`: continuous environments, and what agents are built from."""

import sys
from pathlib import Path
from typing import Any

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from common.agent import Agent, Figures
from common.arguments import (
    Flag,
    at_least_two,
    count,
    nonnegative,
    number_between,
    positive,
    probability,
    whole,
)
from common.data.replay import Batch, ReplayBuffer
from common.environment.making import make, needs_rescaling, require_choice, with_time_limit
from common.errors import InputError
from common.networks import SoftUpdate, mlp
from common.optimizer import FusedAdam

__all__ = [
    "Agent",
    "Batch",
    "Figures",
    "Flag",
    "FusedAdam",
    "ReplayBuffer",
    "SoftUpdate",
    "at_least_two",
    "count",
    "dimensions",
    "make_env",
    "mlp",
    "nonnegative",
    "number_between",
    "positive",
    "probability",
    "whole",
]


def make_env(env_id: str, **options: Any) -> gym.Env:
    """An environment with vector states and actions in [−m, m], the same m in every dimension.

    Actions whose bounds are not symmetric, or differ from one dimension to the next, are rescaled
    to [−1, 1] by gymnasium's wrapper; states and rewards are as the environment gives them.
    `options` are gymnasium.make's, such as max_episode_steps=-1 for no time limit.

    Raises: InputError for an unknown id, discrete or unbounded actions, images, structured states.
    """
    env = make(env_id, **options)
    actions, states = env.action_space, env.observation_space
    if isinstance(actions, spaces.Discrete):
        raise InputError(f"--env {env_id} has discrete actions: discrete_BCQ/main.py serves it")
    if not (isinstance(actions, spaces.Box) and len(actions.shape) == 1 and actions.is_bounded()):
        raise InputError(
            f"--env {env_id} has actions {actions}; this folder needs a bounded vector (Box), as "
            "in Hopper-v4 or Pendulum-v1"
        )
    require_choice(env_id, actions)
    if not (isinstance(states, spaces.Box) and len(states.shape) == 1 and states.shape[0]):
        raise InputError(
            f"--env {env_id} has states {states}; this folder needs a vector (Box), as in "
            "Hopper-v4 or Pendulum-v1"
        )
    if needs_rescaling(actions):
        # Rescaling rounds: what it makes of -1 or 1 may lie a float32 beyond the bounds.
        env = gym.wrappers.TransformAction(
            env, lambda a: a.clip(actions.low, actions.high), actions
        )
        env = gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    return with_time_limit(env)


def dimensions(env: gym.Env) -> tuple[int, int, float]:
    """state_dim, action_dim and max_action of an environment made by `make_env`."""
    assert isinstance(env.action_space, spaces.Box) and env.observation_space.shape is not None
    return (
        env.observation_space.shape[0],
        env.action_space.shape[0],
        float(env.action_space.high[0]),
    )
