"""Deep deterministic policy gradient (DDPG): the behavioural policy and, unchanged, a baseline.

Online it makes the batches; given a fixed batch it is the off-policy learner that the BCQ paper
shows to fail there.

Source: Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016, with the
sizes and rates of the BCQ authors' released code (FIDELITY.md lists the differences).
Shapes: B batch, S state_dim, A action_dim.
"""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from utils import Agent, Batch, Figures, FusedAdam, SoftUpdate, mlp

# Differs from the paper: the BCQ paper's DDPG has actor lr 1e-4 and critic weight decay 1e-2; the
# released code trains both at 1e-3 without decay.
LEARNING_RATE = 1e-3
HIDDEN = [400, 300]


class Actor(nn.Module):
    """π(s) = m·tanh(MLP(s)), m being max_action."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float) -> None:
        super().__init__()
        self.network = mlp(state_dim, HIDDEN, action_dim)
        self.max_action = max_action

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) -> (B, A), in [−m, m]."""
        return self.max_action * torch.tanh(self.network(state))


class Critic(nn.Module):
    """Q(s, a) = MLP(s, a).

    Differs from the DDPG paper: the action enters at the first layer, not the second.
    """

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        self.network = mlp(state_dim + action_dim, HIDDEN, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """(B, S), (B, A) -> (B, 1), a discounted return."""
        return self.network(torch.cat([state, action], 1))


class DDPG(Agent):
    """The agent. Hyper-parameters: γ discount, τ tau."""

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        max_action: float,
        device: torch.device | str,
        discount: float = 0.99,
        tau: float = 0.005,
    ) -> None:
        # Created in this order so that one seed gives the same weights as the authors' code.
        self.actor = Actor(state_dim, action_dim, max_action).to(device)
        self.critic = Critic(state_dim, action_dim).to(device)
        self.actor_target = deepcopy(self.actor).requires_grad_(False)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        self.actor_soft_update = SoftUpdate(self.actor, self.actor_target)
        self.critic_soft_update = SoftUpdate(self.critic, self.critic_target)

        self.actor_optimizer = FusedAdam(self.actor, LEARNING_RATE)
        self.critic_optimizer = FusedAdam(self.critic, LEARNING_RATE)

        self.device = torch.device(device)
        self.discount, self.tau = discount, tau

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> np.ndarray:
        """π(s), without noise. Shapes: (S,) -> (A,), (B, S) -> (B, A)."""
        states = torch.as_tensor(state, dtype=torch.float32, device=self.device)
        return self.actor(states).cpu().numpy()

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """Q(s, a); (B, S), (B, A) -> (B, 1)."""
        return self.critic(state, action)

    @torch.no_grad()
    def target_value(self, next_state: Tensor, reward: Tensor, not_done: Tensor) -> Tensor:
        """y = r + nd·γ·Q'(s', π'(s')), (B, 1)."""
        q = self.critic_target(next_state, self.actor_target(next_state))
        return reward + not_done * self.discount * q

    def critic_loss(self, state: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """MSE(Q(s, a), y), and the mean Q of the batch."""
        q = self.critic(state, action)
        return F.mse_loss(q, target), q.detach().mean()

    def actor_loss(self, state: Tensor) -> Tensor:
        """−mean Q(s, π(s)), the deterministic policy gradient."""
        return -self.critic(state, self.actor(state)).mean()

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the losses and the mean Q, as tensors."""
        state, action, next_state, reward, not_done = batch

        target = self.target_value(next_state, reward, not_done)
        critic_loss, q = self.critic_loss(state, action, target)
        self.critic_optimizer.minimize(critic_loss)

        actor_loss = self.actor_loss(state)
        self.actor_optimizer.minimize(actor_loss)

        self.critic_soft_update(self.tau)
        self.actor_soft_update(self.tau)
        return {"critic_loss": critic_loss.detach(), "actor_loss": actor_loss.detach(), "q": q}
