"""This folder's door to `common/`: continuous environments, and what agents are built from."""

import sys
from pathlib import Path

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium as gym
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
from common.environment.doors import make_continuous as make_env
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


def dimensions(env: gym.Env) -> tuple[int, int, float]:
    """state_dim, action_dim and max_action of an environment made by `make_env`."""
    assert isinstance(env.action_space, spaces.Box) and env.observation_space.shape is not None
    return (
        env.observation_space.shape[0],
        env.action_space.shape[0],
        float(env.action_space.high[0]),
    )
