"""This folder's door to `common/`: environments, batches, and what agents are built from."""

import sys
from pathlib import Path
from typing import Any

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from common.agent import Agent, Figures
from common.arguments import (
    Flag,
    count,
    nonnegative,
    number_between,
    positive,
    probability,
    whole,
)
from common.data import replay
from common.data.frames import FrameBuffer
from common.data.replay import Batch
from common.environment.doors import HISTORY, is_atari, shows_frames
from common.environment.doors import make_discrete as make_env
from common.errors import InputError
from common.networks import Layers, SoftUpdate
from common.optimizer import FusedAdam

__all__ = [
    "Agent",
    "Batch",
    "Buffer",
    "Figures",
    "Flag",
    "FrameBuffer",
    "FusedAdam",
    "ReplayBuffer",
    "SoftUpdate",
    "as_input",
    "count",
    "dimensions",
    "features",
    "head",
    "is_atari",
    "make_buffer",
    "make_env",
    "nonnegative",
    "number_between",
    "positive",
    "probability",
    "shows_frames",
    "whole",
]

VECTOR_HIDDEN = [256, 256]
ATARI_HIDDEN = [512]
ATARI_FEATURES = 64 * 7 * 7
IMAGE_HIDDEN = [128]
IMAGE_CHANNELS = 16


def dimensions(env: gym.Env) -> tuple[tuple[int, ...], int]:
    """state_shape, (S,), (4, 84, 84) or (1, H, W, C), and num_actions of what `make_env` made."""
    assert isinstance(env.action_space, spaces.Discrete) and env.observation_space.shape is not None
    return env.observation_space.shape, int(env.action_space.n)


class ReplayBuffer(replay.ReplayBuffer):
    """A ring of the last `max_size` transitions with vector states; `action` is (B, 1) int64."""

    def __init__(
        self, state_dim: int, device: torch.device | str, max_size: int = int(1e6)
    ) -> None:
        super().__init__(state_dim, 1, device, max_size, action_dtype=torch.int64)

    def load(self, prefix: str | Path, size: int | None = None) -> int:
        """As for all vectors. Raises: InputError for a batch of frames, too."""
        frames = replay.column_path(prefix, "replay_info")
        if frames.exists() and not replay.column_path(prefix, "state").exists():
            raise InputError(
                f"{frames} belongs to a batch of frames, and this environment shows vectors: "
                "choose another --env or --buffer_name"
            )
        return super().load(prefix, size)


Buffer = ReplayBuffer | FrameBuffer


def make_buffer(env: gym.Env, device: torch.device | str, max_size: int) -> Buffer:
    """An empty buffer of the kind this environment needs."""
    state_shape = dimensions(env)[0]
    if shows_frames(env):
        return FrameBuffer(state_shape, device, max_size, clip=is_atari(env))
    return ReplayBuffer(state_shape[0], device, max_size)


def as_input(state: Tensor) -> Tensor:
    """(B, *S) of any type -> float32, frames with channels last in memory; no copy if it is so.

    Small images (B, 1, H, W, C) -> (B, C, H, W), in memory as they were.
    """
    if state.ndim == 5:
        return state[:, 0].to(torch.float32, memory_format=torch.contiguous_format).movedim(3, 1)
    if state.ndim == 4 and state.dtype == torch.uint8:
        # Bytes put in order before they are converted: half the time of torch's own `to`.
        return torch.stack(state.unbind(1), -1).to(torch.float32).permute(0, 3, 1, 2)
    layout = torch.channels_last if state.ndim == 4 else torch.preserve_format
    return state.to(torch.float32, memory_format=layout)


class Frames(nn.Module):
    """The convolutional trunk for Atari, 32 8x8/4, 64 4x4/2, 64 3x3/1, a ReLU after each.

    `half_products`, set by --precision bf16: the convolutions are made in bfloat16.
    """

    half_products = False

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
        self.convolutions: list[Any] = list(self.network)[::2]

    def forward(self, state: Tensor) -> Tensor:
        """(B, 4, 84, 84) uint8 or float32, 0..255 -> (B, 3136)."""
        # Differs from the paper: pixels are fed as 0..255, as the released code does, not as 0..1.
        x = as_input(state)
        if not self.half_products:
            return self.network(x).flatten(1)
        x = x.bfloat16()  # exactly: 0..255 have eight bits
        for layer in self.convolutions:
            x = F.conv2d(x, layer.weight.bfloat16(), layer.bias.bfloat16(), layer.stride).relu_()
        return x.flatten(1).float()


class SmallImages(nn.Module):
    """The convolutional trunk for small images: 16 3x3/1, a ReLU.

    Source: Young, Tian, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible
    Reinforcement Learning Experiments", 2019 (arXiv 1903.03176).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        convolution = nn.Conv2d(channels, IMAGE_CHANNELS, kernel_size=3)
        self.convolution = convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, state: Tensor) -> Tensor:
        """(B, 1, H, W, C) as the environment shows them -> (B, 16·(H − 2)·(W − 2)) float32."""
        return self.convolution(as_input(state)).relu_().flatten(1)


class Vectors(nn.Module):
    """What stands for the trunk where states are vectors: the state itself."""

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) of any type -> (B, S) float32."""
        return as_input(state)


def features(state_shape: tuple[int, ...]) -> nn.Module:
    """What the heads of one network share: a trunk for frames, nothing for vectors."""
    if len(state_shape) == 4:
        return SmallImages(state_shape[-1])
    return Frames() if len(state_shape) == 3 else Vectors()


def head(state_shape: tuple[int, ...], num_actions: int) -> Layers:
    """From features to one number an action.

    3136-512-K for Atari, 16·(H − 2)·(W − 2)-128-K for small images, S-256-256-K for vectors.
    """
    if len(state_shape) == 4:
        _, height, width, _ = state_shape
        widths = [IMAGE_CHANNELS * (height - 2) * (width - 2), *IMAGE_HIDDEN]
    elif len(state_shape) == 3:
        widths = [ATARI_FEATURES, *ATARI_HIDDEN]
    else:
        widths = [state_shape[0], *VECTOR_HIDDEN]
    widths.append(num_actions)
    return Layers(*map(nn.Linear, widths, widths[1:]), from_hidden=len(state_shape) > 1)
