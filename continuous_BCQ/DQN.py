"""Deep Q-learning (DQN) on discretised actions: each dimension split into values of its own.

Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015, as
Fujimoto, Meger, Precup, ICML 2019, section 5 and supplementary, use it for continuous actions:
every dimension independently discretised into 10 values.
Shapes: B batch, S state_dim, A action_dim, K bins.
"""

from copy import deepcopy
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from utils import Agent, Batch, Figures, Flag, FusedAdam, SoftUpdate, at_least_two, mlp

LEARNING_RATE = 1e-3
HIDDEN = [400, 300]


class Network(nn.Module):
    """Q_d(s, ·) of every action dimension d: one trunk, a head of K values a dimension."""

    def __init__(self, state_dim: int, action_dim: int, bins: int) -> None:
        super().__init__()
        self.network = mlp(state_dim, HIDDEN, action_dim * bins)
        self.heads = (action_dim, bins)

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) -> (B, A, K), discounted returns."""
        return self.network(state).unflatten(1, self.heads)


class DQN(Agent):
    """The agent. Hyper-parameters: γ discount, τ tau, K bins (evenly spaced in [−m, m])."""

    FLAGS: ClassVar[dict[str, Flag]] = {
        "bins": Flag(at_least_two, "K, values that each action dimension is split into"),
    }

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        max_action: float,
        device: torch.device | str,
        discount: float = 0.99,
        tau: float = 0.005,
        bins: int = 10,
    ) -> None:
        self.network = Network(state_dim, action_dim, bins).to(device)
        self.network_target = deepcopy(self.network).requires_grad_(False)
        self.soft_update = SoftUpdate(self.network, self.network_target)
        self.network_optimizer = FusedAdam(self.network, LEARNING_RATE)
        self.values = torch.linspace(-max_action, max_action, bins, device=device)  # (K,)

        self.device = torch.device(device)
        self.discount, self.tau = discount, tau

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> np.ndarray:
        """In each dimension the value of the highest Q. Shapes: (S,) -> (A,), (B, S) -> (B, A)."""
        states = torch.as_tensor(state, dtype=torch.float32, device=self.device)
        best = self.network(states.reshape(-1, states.shape[-1])).argmax(2)
        return self.values[best].reshape(*states.shape[:-1], -1).cpu().numpy()

    def bin_of(self, action: Tensor) -> Tensor:
        """The place of the nearest value in each dimension, (B, A) -> (B, A) int64."""
        return (action.unsqueeze(2) - self.values).abs().argmin(2)

    def taken(self, q: Tensor, action: Tensor) -> Tensor:
        """Q_d(s, a_d) of the bins that the actions fall in; (B, A, K), (B, A) -> (B, A)."""
        return q.gather(2, self.bin_of(action).unsqueeze(2)).squeeze(2)

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """The mean of Q_d(s, a_d) over the dimensions; (B, S), (B, A) -> (B, 1)."""
        return self.taken(self.network(state), action).mean(1, keepdim=True)

    @torch.no_grad()
    def target_value(self, next_state: Tensor, reward: Tensor, not_done: Tensor) -> Tensor:
        """y_d = r + nd·γ·max Q'_d(s', ·) of every dimension, (B, A)."""
        return reward + not_done * self.discount * self.network_target(next_state).amax(2)

    def value_loss(self, q: Tensor, target: Tensor) -> Tensor:
        """MSE(Q_d(s, a_d), y_d) over batch and dimensions; (B, A), (B, A) -> ()."""
        return F.mse_loss(q, target)

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the loss and the mean Q, as tensors."""
        state, action, next_state, reward, not_done = batch

        target = self.target_value(next_state, reward, not_done)
        q = self.taken(self.network(state), action)
        value_loss = self.value_loss(q, target)
        self.network_optimizer.minimize(value_loss)

        self.soft_update(self.tau)
        return {"value_loss": value_loss.detach(), "q": q.detach().mean()}
