"""Batch-Constrained deep Q-learning (BCQ) for continuous actions.

A state-conditioned VAE G(s) proposes actions like those of the batch, a perturbation network ξ
moves each by at most Φ·max_action, and twin critics value these n candidates and no other action.

Source: Fujimoto, Meger, Precup, "Off-Policy Deep Reinforcement Learning without Exploration",
ICML 2019, Algorithm 1 and supplementary; where the released code differs from the text, the
code's value stands here and FIDELITY.md has the row.
Shapes: B batch, S state_dim, A action_dim, L = 2A latent, n candidates a state.
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
    SoftUpdate,
    count,
    mlp,
    nonnegative,
    probability,
)

LEARNING_RATE = 1e-3  # all three networks, released code; the paper's table says the same
HIDDEN = [400, 300]
VAE_HIDDEN = [750, 750]
LATENT_CLIP = 0.5  # generated latents lie in [−0.5, 0.5]
LOG_STD_RANGE = (-4.0, 15.0)


class Actor(nn.Module):
    """ξ(s, a) = clip(a + Φ·m·tanh(MLP(s, a)), −m, m), the perturbation network; m is max_action."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, phi: float) -> None:
        super().__init__()
        self.network = mlp(state_dim + action_dim, HIDDEN, action_dim)
        self.max_action = max_action
        self.phi = phi

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """(B, S), (B, A) -> (B, A), actions in [−m, m] no further than Φ·m from those given."""
        perturbation = torch.tanh(self.network(torch.cat([state, action], 1)))
        moved = action + self.phi * self.max_action * perturbation
        return moved.clamp(-self.max_action, self.max_action)


class Critic(nn.Module):
    """Twin critics Q1, Q2. They choose among actions that differ little: never rounded."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        self.q1_network = mlp(state_dim + action_dim, HIDDEN, 1, always_float32=True)
        self.q2_network = mlp(state_dim + action_dim, HIDDEN, 1, always_float32=True)

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S), (B, A) -> (B, 1), (B, 1), discounted returns."""
        both = torch.cat([state, action], 1)
        return self.q1_network(both), self.q2_network(both)

    def q1(self, state: Tensor, action: Tensor) -> Tensor:
        """(B, S), (B, A) -> (B, 1), the first critic alone."""
        return self.q1_network(torch.cat([state, action], 1))


class VAE(nn.Module):
    """The state-conditioned VAE G(s): encoder q(z | s, a), decoder p(a | s, z)."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float) -> None:
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.max_action = max_action
        width_1, width_2 = VAE_HIDDEN
        self.encoder = nn.Sequential(
            mlp(state_dim + action_dim, [width_1], width_2, to_hidden=True), nn.ReLU(inplace=True)
        )
        self.mean = nn.Linear(width_2, self.latent_dim)
        self.log_std = nn.Linear(width_2, self.latent_dim)
        self.decoder = mlp(state_dim + self.latent_dim, VAE_HIDDEN, action_dim)

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S), (B, A) -> decoded (B, A), mean (B, L), std (B, L); draws ε ~ N(0, I)."""
        hidden = self.encoder(torch.cat([state, action], 1))
        mean = self.mean(hidden)
        std = self.log_std(hidden).clamp(*LOG_STD_RANGE).exp()
        return self.decode(state, mean + std * torch.randn_like(std)), mean, std

    def decode(self, state: Tensor, z: Tensor | None = None) -> Tensor:
        """(B, S), (B, L) -> (B, A), in [−m, m]; without z draws it from N(0, I) clipped to ±0.5."""
        return self.max_action * torch.tanh(self.before_tanh(state, z))

    def before_tanh(self, state: Tensor, z: Tensor | None = None) -> Tensor:
        """As `decode`, the actions before they are squashed into the bounds."""
        if z is None:
            z = torch.randn((len(state), self.latent_dim), device=state.device)
            z = z.clamp(-LATENT_CLIP, LATENT_CLIP)
        return self.decoder(torch.cat([state, z], 1))

    def loss(self, state: Tensor, action: Tensor) -> Tensor:
        """MSE(G(s, z), a) + ½·KL(q(z | s, a) ‖ N(0, I)), the KL a mean over batch and latent."""
        decoded, mean, std = self(state, action)
        kl = -0.5 * (1 + std.pow(2).log() - mean.pow(2) - std.pow(2)).mean()
        return F.mse_loss(decoded, action) + 0.5 * kl


class BCQ(Agent):
    """The agent. Hyper-parameters: γ discount, τ tau, λ lmbda, Φ phi, n target_candidates.

    target_candidates: actions valued at each s' (10). acting_candidates: actions among which the
    agent chooses when it acts (100). Differs from the paper: there both are n = 10; the released
    code acts with 100.
    """

    FLAGS: ClassVar[dict[str, Flag]] = {
        "lmbda": Flag(probability, "λ, weight of the smaller critic in the target"),
        "phi": Flag(nonnegative, "Φ, largest perturbation, in units of max_action"),
        "target_candidates": Flag(count, "n, candidate actions a state in the target"),
        "acting_candidates": Flag(count, "candidate actions among which it chooses when acting"),
    }

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        max_action: float,
        device: torch.device | str,
        discount: float = 0.99,
        tau: float = 0.005,
        lmbda: float = 0.75,
        phi: float = 0.05,
        target_candidates: int = 10,
        acting_candidates: int = 100,
    ) -> None:
        # Created in this order so that one seed gives the same weights as the authors' code.
        self.actor = Actor(state_dim, action_dim, max_action, phi).to(device)
        self.critic = Critic(state_dim, action_dim).to(device)
        self.vae = VAE(state_dim, action_dim, max_action).to(device)
        self.actor_target = deepcopy(self.actor).requires_grad_(False)
        self.critic_target = deepcopy(self.critic).requires_grad_(False)
        self.actor_soft_update = SoftUpdate(self.actor, self.actor_target)
        self.critic_soft_update = SoftUpdate(self.critic, self.critic_target)

        self.actor_optimizer = FusedAdam(self.actor, LEARNING_RATE)
        self.critic_optimizer = FusedAdam(self.critic, LEARNING_RATE)
        self.vae_optimizer = FusedAdam(self.vae, LEARNING_RATE)

        self.device = torch.device(device)
        self.discount, self.tau, self.lmbda = discount, tau, lmbda
        self.target_candidates, self.acting_candidates = target_candidates, acting_candidates

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> np.ndarray:
        """π(s): of `acting_candidates` perturbed samples of G(s), the one with the highest Q1.

        Shapes: (S,) -> (A,), (B, S) -> (B, A). Draws the latents.
        """
        states = torch.as_tensor(state, dtype=torch.float32, device=self.device)
        repeated = states.reshape(-1, states.shape[-1]).repeat_interleave(self.acting_candidates, 0)
        actions = self.actor(repeated, self.vae.decode(repeated))
        q1 = self.critic.q1(repeated, actions).reshape(-1, self.acting_candidates)  # (B, n)
        chosen = q1.argmax(1) + self.acting_candidates * torch.arange(len(q1), device=self.device)
        return actions[chosen].reshape(*states.shape[:-1], -1).cpu().numpy()

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """Q1(s, a), the value the agent chooses by; (B, S), (B, A) -> (B, 1)."""
        return self.critic.q1(state, action)

    @torch.no_grad()
    def target_value(self, next_state: Tensor, reward: Tensor, not_done: Tensor) -> Tensor:
        """y = r + nd·γ·max_i [λ·min_j Q'_j(s', a_i) + (1 − λ)·max_j Q'_j(s', a_i)], (B, 1)."""
        # The n copies of one s' stay together, so that a row of (B, n) is one state.
        repeated = next_state.repeat_interleave(self.target_candidates, 0)  # (n·B, S)
        actions = self.actor_target(repeated, self.vae.decode(repeated))
        q1, q2 = self.critic_target(repeated, actions)
        value = self.lmbda * torch.min(q1, q2) + (1 - self.lmbda) * torch.max(q1, q2)
        best = value.reshape(-1, self.target_candidates).max(1, keepdim=True).values
        return reward + not_done * self.discount * best

    def critic_loss(self, state: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """MSE(Q1(s, a), y) + MSE(Q2(s, a), y), and the mean Q1 of the batch."""
        q1, q2 = self.critic(state, action)
        return F.mse_loss(q1, target) + F.mse_loss(q2, target), q1.detach().mean()

    def actor_loss(self, state: Tensor) -> Tensor:
        """−mean Q1(s, ξ(s, a)) for one a = G(s) a state: the policy gradient of ξ."""
        with torch.no_grad():
            action = self.vae.decode(state)
        return -self.critic.q1(state, self.actor(state, action)).mean()

    def update(self, batch: Batch) -> Figures:
        """One iteration of Algorithm 1 on this batch; the losses and the mean Q1, as tensors."""
        state, action, next_state, reward, not_done = batch

        vae_loss = self.vae.loss(state, action)
        self.vae_optimizer.minimize(vae_loss)

        target = self.target_value(next_state, reward, not_done)
        critic_loss, q = self.critic_loss(state, action, target)
        self.critic_optimizer.minimize(critic_loss)

        actor_loss = self.actor_loss(state)
        self.actor_optimizer.minimize(actor_loss)

        self.critic_soft_update(self.tau)
        self.actor_soft_update(self.tau)
        return {
            "vae_loss": vae_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "q": q,
        }
