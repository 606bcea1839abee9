"""The yardstick of plain code: one BCQ iteration as its formulas read, with nothing done for speed.

Default Adam, a backward pass into every network a loss touches, Polyak one parameter at a time,
each loss read off the device at once. Same sizes, draws and order as `continuous_BCQ/BCQ.py`.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DISCOUNT, TAU, LMBDA, PHI, CANDIDATES = 0.99, 0.005, 0.75, 0.05, 10


def mlp(inputs: int, hidden: list[int], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    first, second = hidden
    return nn.Sequential(
        nn.Linear(inputs, first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, outputs),
    )


class EagerBCQ:
    """BCQ with actions in [−1, 1]; `update` is one iteration."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        both, latent = state_dim + action_dim, 2 * action_dim
        self.latent_dim = latent
        self.actor = mlp(both, [400, 300], action_dim)
        self.critic = nn.ModuleList(mlp(both, [400, 300], 1) for _ in range(2))
        self.encoder = mlp(both, [750, 750], 2 * latent)  # mean and log_std in one layer
        self.decoder = mlp(state_dim + latent, [750, 750], action_dim)
        self.vae = nn.ModuleList([self.encoder, self.decoder])
        self.actor_target, self.critic_target = deepcopy(self.actor), deepcopy(self.critic)
        self.optimizers = {
            name: torch.optim.Adam(getattr(self, name).parameters(), lr=1e-3)
            for name in ("vae", "critic", "actor")
        }

    def decode(self, state: Tensor, z: Tensor) -> Tensor:
        """G(s, z)."""
        return torch.tanh(self.decoder(torch.cat([state, z], 1)))

    def generate(self, state: Tensor) -> Tensor:
        """One action a state, from a clipped latent."""
        z = torch.randn(len(state), self.latent_dim).clamp(-0.5, 0.5)
        return self.decode(state, z)

    def perturb(self, actor: nn.Module, state: Tensor, action: Tensor) -> Tensor:
        """ξ(s, a)."""
        return (action + PHI * torch.tanh(actor(torch.cat([state, action], 1)))).clamp(-1, 1)

    def step(self, name: str, loss: Tensor) -> float:
        """One gradient step of the named network."""
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        return loss.item()

    def update(
        self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor, not_done: Tensor
    ) -> tuple[float, float, float]:
        """One iteration of Algorithm 1; the losses of VAE, critics and actor."""
        mean, log_std = self.encoder(torch.cat([state, action], 1)).chunk(2, 1)
        std = log_std.clamp(-4, 15).exp()
        decoded = self.decode(state, mean + std * torch.randn_like(std))
        kl = -0.5 * (1 + torch.log(std.pow(2)) - mean.pow(2) - std.pow(2)).mean()
        vae_loss = self.step("vae", F.mse_loss(decoded, action) + 0.5 * kl)

        with torch.no_grad():
            states = next_state.repeat_interleave(CANDIDATES, 0)
            both = torch.cat(
                [states, self.perturb(self.actor_target, states, self.generate(states))], 1
            )
            q1, q2 = (critic(both) for critic in self.critic_target)
            value = LMBDA * torch.min(q1, q2) + (1 - LMBDA) * torch.max(q1, q2)
            target = reward + not_done * DISCOUNT * value.reshape(len(state), -1).max(1)[0].reshape(
                -1, 1
            )
        q1, q2 = (critic(torch.cat([state, action], 1)) for critic in self.critic)
        critic_loss = self.step("critic", F.mse_loss(q1, target) + F.mse_loss(q2, target))

        moved = self.perturb(self.actor, state, self.generate(state))
        actor_loss = self.step("actor", -self.critic[0](torch.cat([state, moved], 1)).mean())

        for network, copy in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
            for weight, slow in zip(network.parameters(), copy.parameters(), strict=True):
                slow.data.copy_(TAU * weight.data + (1 - TAU) * slow.data)
        return vae_loss, critic_loss, actor_loss
