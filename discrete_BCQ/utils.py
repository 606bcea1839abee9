"""This folder's door to `common/`: environments with discrete actions, their batches, and what agents are built from."""

import sys
from pathlib import Path
from typing import Any

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ale_py
import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import (
    AtariPreprocessing,
    FlattenObservation,
    FrameStackObservation,
    TimeLimit,
)
from torch import Tensor, nn

from common import replay
from common.environments import make
from common.errors import InputError
from common.networks import (
    Figures,
    adam,
    load_state,
    mean_figures,
    minimize,
    mlp,
    read_state,
    save_state,
    soft_update,
    state_of,
)
from common.replay import Batch

__all__ = [
    "Batch",
    "Buffer",
    "Figures",
    "ReplayBuffer",
    "adam",
    "features",
    "head",
    "load_state",
    "mean_figures",
    "minimize",
    "mlp",
    "read_state",
    "save_state",
    "soft_update",
    "state_of",
]

HISTORY = 4  # frames a state of Atari
FRAME = 84  # pixels, both ways
ATARI_STEPS = 27_000  # an episode's limit: 30 minutes of play at 60 frames a second, 4 a step
VECTOR_HIDDEN = [256, 256]
ATARI_HIDDEN = [512]
ATARI_FEATURES = 64 * 7 * 7


class ReplayBuffer(replay.ReplayBuffer):
    """A ring of the last `max_size` transitions with vector states; `action` is (B, 1) int64."""

    def __init__(self, state_dim: int, device: torch.device | str, max_size: int = int(1e6)) -> None:
        super().__init__(state_dim, 1, device, max_size, action_dtype=torch.int64)


Buffer = ReplayBuffer


class Frames(nn.Module):
    """The convolutional trunk for Atari, 32 8x8/4, 64 4x4/2, 64 3x3/1, a ReLU after each."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(HISTORY, 32, kernel_size=8, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
            nn.ReLU(inplace=True),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, state: Tensor) -> Tensor:
        """(B, 4, 84, 84) uint8 or float32, 0..255 -> (B, 3136)."""
        # Differs from the paper: pixels are fed as 0..255, as the released code does, not as 0..1.
        pixels = state.to(torch.float32, memory_format=torch.channels_last)
        return self.network(pixels).flatten(1)


class Vectors(nn.Module):
    """What stands for the trunk where states are vectors: the state itself."""

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) of any type -> (B, S) float32."""
        return state.to(torch.float32)


def features(state_shape: tuple[int, ...]) -> nn.Module:
    """What the heads of one network share: the trunk for Atari, nothing for vectors."""
    return Frames() if len(state_shape) == 3 else Vectors()


def head(state_shape: tuple[int, ...], num_actions: int) -> nn.Sequential:
    """From features to one number an action: 3136 → 512 → K for Atari, S → 256 → 256 → K for vectors."""
    if len(state_shape) == 3:
        return mlp(ATARI_FEATURES, ATARI_HIDDEN, num_actions)
    return mlp(state_shape[0], VECTOR_HIDDEN, num_actions)
