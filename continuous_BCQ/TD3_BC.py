"""TD3+BC: TD3 with a behavioural-cloning term in the actor's loss and normalised states.

The actor maximises λ·Q1(s, π(s)) − (π(s) − a)², λ = α / mean|Q1|, which weighs the two terms
whatever the scale of the rewards. All else is TD3: twin critics, a smoothed target action, an actor
step every second update.

Source: Fujimoto, Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021,
section 5 and table of hyper-parameters; TD3: Fujimoto, van Hoof, Meger, "Addressing Function
Approximation Error in Actor-Critic Methods", ICML 2018, Algorithm 1.
Shapes: B batch, S state_dim, A action_dim. m is max_action, N the transitions of the batch.
"""

from copy import deepcopy
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from utils import (
    Agent,
    Batch,
    Figures,
    Flag,
    FusedAdam,
    ReplayBuffer,
    SoftUpdate,
    mlp,
    nonnegative,
)

LEARNING_RATE = 3e-4
HIDDEN = [256, 256]
POLICY_NOISE = 0.2  # σ of the target action's noise, in units of max_action
NOISE_CLIP = 0.5  # largest such noise, in units of max_action
POLICY_FREQ = 2  # updates of the critics an update of the actor and the targets
STD_OFFSET = 1e-3  # added to the states' standard deviation, which may be 0


class Actor(nn.Module):
    """π(s) = m·tanh(MLP(s))."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float) -> None:
        super().__init__()
        self.network = mlp(state_dim, HIDDEN, action_dim)
        self.max_action = max_action

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) -> (B, A), in [−m, m]."""
        return self.max_action * torch.tanh(self.network(state))


class Critic(nn.Module):
    """Twin critics Q1, Q2."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        self.q1_network = mlp(state_dim + action_dim, HIDDEN, 1)
        self.q2_network = mlp(state_dim + action_dim, HIDDEN, 1)

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S), (B, A) -> (B, 1), (B, 1), discounted returns."""
        both = torch.cat([state, action], 1)
        return self.q1_network(both), self.q2_network(both)

    def q1(self, state: Tensor, action: Tensor) -> Tensor:
        """(B, S), (B, A) -> (B, 1), the first critic alone."""
        return self.q1_network(torch.cat([state, action], 1))


class Normalisation(nn.Module):
    """(s − mean) / std per dimension, s itself until `fit`; saved with the agent's networks."""

    mean: Tensor
    std: Tensor

    def __init__(self, state_dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(state_dim))
        self.register_buffer("std", torch.ones(state_dim))

    def fit(self, states: Tensor) -> None:
        """Take mean and standard deviation + 1e-3 of these states, (N, S)."""
        std, mean = torch.std_mean(states, 0, correction=0)
        self.mean.copy_(mean)
        self.std.copy_(std + STD_OFFSET)

    def forward(self, state: Tensor) -> Tensor:
        """(B, S) -> (B, S)."""
        return (state - self.mean) / self.std


class TD3_BC(Agent):
    """The agent. Hyper-parameters: γ discount, τ tau, α alpha, and whether states are normalised.

    The statistics of the states are those of the buffer that the first `train` is given, and stay:
    a buffer that grows later does not move what the networks see. Without `train`, or with
    normalize=False, states are taken as they are. `select_action`, `update` and `value` are given
    plain states; what they call (the losses, the networks) works on normalised ones.
    """

    batch_size = 256
    FLAGS: ClassVar[dict[str, Flag]] = {
        "alpha": Flag(nonnegative, "α, weight of Q, scaled to a mean of 1, against cloning"),
        "normalize": Flag(bool, "subtract the states' mean and divide by their std + 1e-3"),
    }

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        max_action: float,
        device: torch.device | str,
        discount: float = 0.99,
        tau: float = 0.005,
        alpha: float = 2.5,
        normalize: bool = True,
    ) -> None:
        # Created in this order so that one seed gives the same weights as the authors' code.
        self.actor = Actor(state_dim, action_dim, max_action).to(device)
        self.critic = Critic(state_dim, action_dim).to(device)
        self.actor_target = deepcopy(self.actor).requires_grad_(False)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        self.actor_soft_update = SoftUpdate(self.actor, self.actor_target)
        self.critic_soft_update = SoftUpdate(self.critic, self.critic_target)
        self.normalised = Normalisation(state_dim).to(device)

        self.actor_optimizer = FusedAdam(self.actor, LEARNING_RATE)
        self.critic_optimizer = FusedAdam(self.critic, LEARNING_RATE)
        self.updates = 0

        self.device, self.max_action = torch.device(device), max_action
        self.discount, self.tau, self.alpha = discount, tau, alpha
        self.normalize = normalize

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> np.ndarray:
        """π(s), without noise. Shapes: (S,) -> (A,), (B, S) -> (B, A)."""
        states = torch.as_tensor(state, dtype=torch.float32, device=self.device)
        return self.actor(self.normalised(states)).cpu().numpy()

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """Q1(s, a): (B, S), (B, A) -> (B, 1), a discounted return."""
        return self.critic.q1(self.normalised(state), action)

    @torch.no_grad()
    def target_value(self, next_state: Tensor, reward: Tensor, not_done: Tensor) -> Tensor:
        """y = r + nd·γ·min_j Q'_j(s', clip(π'(s') + ε, ±m)), (B, 1).

        Draws ε ~ N(0, (0.2m)²), clipped to ±0.5m.
        """
        next_action = self.actor_target(next_state)
        noise = torch.randn_like(next_action) * (POLICY_NOISE * self.max_action)
        noise = noise.clamp(-NOISE_CLIP * self.max_action, NOISE_CLIP * self.max_action)
        next_action = (next_action + noise).clamp(-self.max_action, self.max_action)
        q1, q2 = self.critic_target(next_state, next_action)
        return reward + not_done * self.discount * torch.min(q1, q2)

    def critic_loss(self, state: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """MSE(Q1(s, a), y) + MSE(Q2(s, a), y), and the mean Q1 of the batch."""
        q1, q2 = self.critic(state, action)
        return F.mse_loss(q1, target) + F.mse_loss(q2, target), q1.detach().mean()

    def actor_loss(self, state: Tensor, action: Tensor) -> Tensor:
        """−λ·mean Q1(s, π(s)) + MSE(π(s), a), λ = α / mean|Q1(s, π(s))| without gradient."""
        policy_action = self.actor(state)
        q = self.critic.q1(state, policy_action)
        lmbda = self.alpha / q.abs().mean().detach()
        return -lmbda * q.mean() + F.mse_loss(policy_action, action)

    def update(self, batch: Batch) -> Figures:
        """One step of the critics on this batch, at every second one of actor and targets too.

        Returns: the losses and the mean Q1, as tensors; `actor_loss` where the actor learned.
        """
        state, action, next_state, reward, not_done = batch
        state, next_state = self.normalised(state), self.normalised(next_state)
        self.updates += 1

        target = self.target_value(next_state, reward, not_done)
        critic_loss, q = self.critic_loss(state, action, target)
        self.critic_optimizer.minimize(critic_loss)
        figures = {"critic_loss": critic_loss.detach(), "q": q}

        if self.updates % POLICY_FREQ == 0:
            actor_loss = self.actor_loss(state, action)
            self.actor_optimizer.minimize(actor_loss)
            figures["actor_loss"] = actor_loss.detach()

            self.critic_soft_update(self.tau)
            self.actor_soft_update(self.tau)
        return figures

    def train(
        self, replay_buffer: ReplayBuffer, iterations: int, batch_size: int | None = None
    ) -> dict[str, float]:
        """As every agent; before the first update the statistics of the states are taken."""
        if self.normalize and self.updates == 0:
            self.normalised.fit(replay_buffer.state)
        return super().train(replay_buffer, iterations, batch_size)
