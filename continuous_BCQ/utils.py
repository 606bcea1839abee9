"""This folder's door to `common/`: continuous environments, and what agents are built from."""

import sys
from pathlib import Path

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from common.environments import make, with_time_limit
from common.errors import InputError
from common.networks import (
    Figures,
    load_agent,
    load_state,
    mean_figures,
    mlp,
    save_state,
    soft_update,
    state_of,
)
from common.optimizer import FusedAdam
from common.replay import Batch, ReplayBuffer

__all__ = [
    "Batch",
    "Figures",
    "FusedAdam",
    "ReplayBuffer",
    "dimensions",
    "load_agent",
    "load_state",
    "make_env",
    "mean_figures",
    "mlp",
    "save_state",
    "soft_update",
    "state_of",
]


def make_env(env_id: str, endless: bool = False) -> gym.Env:
    """An environment with vector states and actions in [−m, m], the same m in every dimension.

    Actions whose bounds are not symmetric, or differ from one dimension to the next, are rescaled
    to [−1, 1] by gymnasium's wrapper; states and rewards are as the environment gives them.
    `endless`: without the time limit, for values that know of none.

    Raises: InputError for an unknown id, discrete or unbounded actions, images, structured states.
    """
    env = make(env_id, max_episode_steps=-1 if endless else None)
    actions, states = env.action_space, env.observation_space
    if isinstance(actions, spaces.Discrete):
        raise InputError(f"--env {env_id} has discrete actions: discrete_BCQ/main.py serves it")
    if not (isinstance(actions, spaces.Box) and len(actions.shape) == 1 and actions.is_bounded()):
        raise InputError(
            f"--env {env_id} has actions {actions}; this folder needs a bounded vector (Box), as "
            "in Hopper-v4 or Pendulum-v1"
        )
    if np.any(actions.low >= actions.high):
        raise InputError(f"--env {env_id} has actions {actions}: a dimension leaves no choice")
    if not (isinstance(states, spaces.Box) and len(states.shape) == 1 and states.shape[0]):
        raise InputError(
            f"--env {env_id} has states {states}; this folder needs a vector (Box), as in "
            "Hopper-v4 or Pendulum-v1"
        )
    if np.any(actions.low != -actions.high) or np.any(actions.high != actions.high[0]):
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
