"""Behavioural cloning (BC): the action that the batch's policy took, by regression.

Source: Fujimoto, Meger, Precup, ICML 2019, section 5 and supplementary: the sizes of its actor, and
the mean squared error.
Shapes: B batch, S state_dim, A action_dim.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from DDPG import Actor
from utils import (
    Batch,
    Figures,
    FusedAdam,
    ReplayBuffer,
    load_agent,
    load_state,
    mean_figures,
    save_state,
    state_of,
)

LEARNING_RATE = 1e-3


class BC:
    """The agent; it has no values, and so no critic and no targets."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, device: torch.device | str
    ) -> None:
        self.actor = Actor(state_dim, action_dim, max_action).to(device)
        self.actor_optimizer = FusedAdam(self.actor, LEARNING_RATE)
        self.device = torch.device(device)

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> np.ndarray:
        """π(s). Shapes: (S,) -> (A,), (B, S) -> (B, A)."""
        states = torch.as_tensor(state, dtype=torch.float32, device=self.device)
        return self.actor(states).cpu().numpy()

    def actor_loss(self, state: Tensor, action: Tensor) -> Tensor:
        """MSE(π(s), a)."""
        return F.mse_loss(self.actor(state), action)

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the loss, as a tensor."""
        actor_loss = self.actor_loss(batch.state, batch.action)
        self.actor_optimizer.minimize(actor_loss)
        return {"actor_loss": actor_loss.detach()}

    def train(
        self, replay_buffer: ReplayBuffer, iterations: int, batch_size: int = 100
    ) -> dict[str, float]:
        """`iterations` updates on sampled batches; the mean of each figure."""
        return mean_figures(
            self.update(replay_buffer.sample(batch_size)) for _ in range(iterations)
        )

    def state_dict(self) -> dict[str, Any]:
        """Network and optimiser: all that learning on needs."""
        return state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: InputError where `state` is of another algorithm or of other sizes."""
        load_state(self, state)

    def save(self, path: str | Path) -> None:
        """Write the agent as one file. Raises: InputError where it cannot be written."""
        save_state(path, self.state_dict())

    def load(self, path: str | Path) -> None:
        """Act and learn on as the saved agent would. Raises: InputError for a foreign file."""
        load_agent(self, path)
