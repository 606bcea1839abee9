"""Behavioural cloning (BC): the action that the batch's policy took, by regression.

Source: Fujimoto, Meger, Precup, ICML 2019, section 5 and supplementary: the sizes of its actor, and
the mean squared error.
Shapes: B batch, S state_dim, A action_dim.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from DDPG import Actor
from utils import Agent, Batch, Figures, FusedAdam

LEARNING_RATE = 1e-3


class BC(Agent):
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
