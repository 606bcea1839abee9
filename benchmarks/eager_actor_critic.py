"""The yardstick of plain code: DDPG, TD3+BC and BC as their formulas read, nothing done for speed.

Default Adam, a backward pass into every network a loss touches, Polyak one parameter at a time,
each loss read off the device at once. Same sizes, draws and order as in `continuous_BCQ/`; actions
in [−1, 1].
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DISCOUNT, TAU, ALPHA, POLICY_NOISE, NOISE_CLIP = 0.99, 0.005, 2.5, 0.2, 0.5


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


class Eager:
    """What the three share: networks, an optimiser each, a step of one and of the targets."""

    def __init__(self, networks: dict[str, nn.Module], lr: float) -> None:
        self.networks = nn.ModuleDict(networks)
        self.targets = deepcopy(self.networks)
        self.optimizers = {
            name: torch.optim.Adam(network.parameters(), lr=lr)
            for name, network in networks.items()
        }

    def act(self, networks: nn.ModuleDict, state: Tensor) -> Tensor:
        """π(s)."""
        return torch.tanh(networks["actor"](state))

    def step(self, name: str, loss: Tensor) -> float:
        """One gradient step of the named network."""
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        return loss.item()

    def move_targets(self) -> None:
        """θ' <- τ θ + (1 − τ) θ'."""
        pairs = zip(self.networks.parameters(), self.targets.parameters(), strict=True)
        for weight, slow in pairs:
            slow.data.copy_(TAU * weight.data + (1 - TAU) * slow.data)


class EagerDDPG(Eager):
    """`update` is one iteration."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        actor = mlp(state_dim, [400, 300], action_dim)
        critic = mlp(state_dim + action_dim, [400, 300], 1)
        super().__init__({"actor": actor, "critic": critic}, 1e-3)

    def q(self, networks: nn.ModuleDict, state: Tensor, action: Tensor) -> Tensor:
        """Q(s, a)."""
        return networks["critic"](torch.cat([state, action], 1))

    def update(
        self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor, not_done: Tensor
    ) -> tuple[float, float]:
        """One step of critic, actor and targets; the two losses."""
        with torch.no_grad():
            next_q = self.q(self.targets, next_state, self.act(self.targets, next_state))
            target = reward + not_done * DISCOUNT * next_q
        critic = self.step("critic", F.mse_loss(self.q(self.networks, state, action), target))
        actor_loss = -self.q(self.networks, state, self.act(self.networks, state)).mean()
        actor = self.step("actor", actor_loss)
        self.move_targets()
        return critic, actor


class Twins(nn.Module):
    """Q1(s, a), Q2(s, a)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one, self.two = mlp(inputs, [256, 256], 1), mlp(inputs, [256, 256], 1)

    def forward(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S + A) -> (B, 1), (B, 1)."""
        return self.one(both), self.two(both)


class EagerTD3BC(Eager):
    """`update` is one iteration; states are normalised already."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        actor = mlp(state_dim, [256, 256], action_dim)
        critic = Twins(state_dim + action_dim)
        super().__init__({"actor": actor, "critic": critic}, 3e-4)
        self.updates = 0

    def update(
        self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor, not_done: Tensor
    ) -> tuple[float, ...]:
        """One step of the critics, at every second one of actor and targets; the losses."""
        self.updates += 1
        with torch.no_grad():
            noise = (torch.randn_like(action) * POLICY_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            next_action = (self.act(self.targets, next_state) + noise).clamp(-1, 1)
            both = torch.cat([next_state, next_action], 1)
            q1, q2 = self.targets["critic"](both)
            target = reward + not_done * DISCOUNT * torch.min(q1, q2)
        q1, q2 = self.networks["critic"](torch.cat([state, action], 1))
        losses = [self.step("critic", F.mse_loss(q1, target) + F.mse_loss(q2, target))]
        if self.updates % 2 == 0:
            moved = self.act(self.networks, state)
            q = self.networks["critic"].get_submodule("one")(torch.cat([state, moved], 1))
            lmbda = ALPHA / q.abs().mean().detach()
            losses.append(self.step("actor", -lmbda * q.mean() + F.mse_loss(moved, action)))
            self.move_targets()
        return tuple(losses)


class EagerBC(Eager):
    """`update` is one iteration."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__({"actor": mlp(state_dim, [400, 300], action_dim)}, 1e-3)

    def update(
        self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor, not_done: Tensor
    ) -> float:
        """One step of the actor; the loss."""
        del next_state, reward, not_done
        return self.step("actor", F.mse_loss(self.act(self.networks, state), action))
