"""Deep Q-learning (DQN): the behavioural policy and, unchanged, a baseline.

Online it makes the batches; given a fixed batch it is the off-policy learner BCQ is compared with.

Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015, with
the sizes and rates of Fujimoto et al., "Benchmarking Batch Deep Reinforcement Learning
Algorithms", 2019.
Shapes: B batch, K num_actions, S state_shape: (S,) of a vector, (4, 84, 84) of Atari frames.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from utils import Agent, Batch, Figures, FusedAdam, SoftUpdate, features, head


class Network(nn.Module):
    """Q(s, ·)."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.features = features(state_shape)
        self.value = head(state_shape, num_actions)

    def forward(self, state: Tensor) -> Tensor:
        """(B, *S) -> q (B, K), discounted returns."""
        return self.value(self.features(state))


class DQN(Agent):
    """The agent. Hyper-parameters: γ discount; the defaults are Atari's.

    Every `target_update_freq` updates the target network moves by the rate `tau` towards the
    network: 1 is a full copy (Atari), 0.005 at every update is Polyak averaging (vectors).
    """

    batch_size = 32

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        device: torch.device | str,
        discount: float = 0.99,
        lr: float = 6.25e-5,
        adam_eps: float = 1.5e-4,
        tau: float = 1.0,
        target_update_freq: int = 8000,
    ) -> None:
        self.network = Network(state_shape, num_actions).to(device)
        self.target_network = deepcopy(self.network).requires_grad_(False)
        self.soft_update = SoftUpdate(self.network, self.target_network)
        self.optimizer = FusedAdam(self.network, lr, eps=adam_eps)
        self.updates = 0

        self.state_shape, self.device = tuple(state_shape), torch.device(device)
        self.discount = discount
        self.tau, self.target_update_freq = tau, target_update_freq

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> Any:
        """argmax Q(s, ·), without noise. Shapes: (*S) -> an int, (B, *S) -> (B,) int64."""
        states = torch.as_tensor(state, device=self.device)
        actions = self.network(states.reshape(-1, *self.state_shape)).argmax(1)
        return actions.cpu().numpy() if states.ndim > len(self.state_shape) else int(actions)

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """Q(s, a); (B, *S), (B, 1) -> (B, 1)."""
        return self.network(state).gather(1, action)

    @torch.no_grad()
    def target_value(self, next_state: Tensor, reward: Tensor, not_done: Tensor) -> Tensor:
        """y = r + nd·γ·max_a Q_target(s', a), (B, 1)."""
        q = self.target_network(next_state).max(1, keepdim=True).values
        return reward + not_done * self.discount * q

    def value_loss(self, q: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Huber(Q(s, a), y), the mean over the batch; (B, K), (B, 1), (B, 1) -> ()."""
        return F.smooth_l1_loss(q.gather(1, action), target)

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the loss and the mean Q, as tensors."""
        state, action, next_state, reward, not_done = batch

        target = self.target_value(next_state, reward, not_done)
        q = self.network(state)
        value_loss = self.value_loss(q, action, target)
        self.optimizer.minimize(value_loss)

        self.updates += 1
        if self.updates % self.target_update_freq == 0:
            self.soft_update(self.tau)
        return {"value_loss": value_loss.detach(), "q": q.detach().mean()}
