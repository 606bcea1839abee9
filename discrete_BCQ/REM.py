"""Random ensemble mixture (REM): deep Q-learning on a random convex mixture of many heads.

Source: Agarwal, Schuurmans, Norouzi, "An Optimistic Perspective on Offline Reinforcement Learning",
ICML 2020, with the body, optimiser and schedule of DQN, as Fujimoto et al., "Benchmarking Batch
Deep Reinforcement Learning Algorithms", 2019, run all learners alike.
Shapes: B batch, K num_actions, H heads, S state_shape: (S,) of a vector, (4, 84, 84) of Atari
frames.
"""

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from utils import Agent, Batch, Figures, Flag, FusedAdam, SoftUpdate, count, features, head


class Network(nn.Module):
    """Q_1(s, ·) … Q_H(s, ·), which share all but their last layer."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, heads: int) -> None:
        super().__init__()
        self.features = features(state_shape)
        self.heads = head(state_shape, heads * num_actions)
        self.outputs = (heads, num_actions)

    def forward(self, state: Tensor) -> Tensor:
        """(B, *S) -> (B, H, K), discounted returns."""
        return self.heads(self.features(state)).unflatten(1, self.outputs)

    def mixture(self, state: Tensor, alpha: Tensor) -> Tensor:
        """Σ_k α_k Q_k(s, ·); (B, *S), (H,) -> (B, K).

        The last layer is linear: its weights are mixed, not its H outputs for every state.
        """
        weight, bias = self.heads.layers[-1]
        mixed = (
            torch.tensordot(alpha, weight.unflatten(0, self.outputs), 1),
            alpha @ bias.unflatten(0, self.outputs),
        )
        return F.linear(self.heads.hidden(self.features(state)), *mixed)


class REM(Agent):
    """The agent. Hyper-parameters: γ discount, H heads; the defaults are Atari's.

    Every `target_update_freq` updates the target network moves by the rate `tau` towards the
    network: 1 is a full copy (Atari), 0.005 at every update is Polyak averaging (vectors).
    """

    batch_size = 32
    FLAGS: ClassVar[dict[str, Flag]] = {
        "heads": Flag(count, "H, value heads that are mixed"),
    }

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        device: torch.device | str,
        heads: int = 200,
        discount: float = 0.99,
        lr: float = 6.25e-5,
        adam_eps: float = 1.5e-4,
        tau: float = 1.0,
        target_update_freq: int = 8000,
    ) -> None:
        self.network = Network(state_shape, num_actions, heads).to(device)
        self.target_network = deepcopy(self.network).requires_grad_(False)
        self.soft_update = SoftUpdate(self.network, self.target_network)
        self.optimizer = FusedAdam(self.network, lr, eps=adam_eps)
        self.updates = 0

        self.state_shape, self.device = tuple(state_shape), torch.device(device)
        self.mean = torch.full((heads,), 1 / heads, device=device)
        self.discount = discount
        self.tau, self.target_update_freq = tau, target_update_freq

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> Any:
        """argmax of the heads' mean, without noise. Shapes: (*S) -> an int, (B, *S) -> (B,) int64.

        Draws no random numbers.
        """
        states = torch.as_tensor(state, device=self.device)
        q = self.network.mixture(states.reshape(-1, *self.state_shape), self.mean)
        actions = q.argmax(1)
        return actions.cpu().numpy() if states.ndim > len(self.state_shape) else int(actions)

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """The heads' mean of (s, a); (B, *S), (B, 1) -> (B, 1)."""
        return self.network.mixture(state, self.mean).gather(1, action)

    def draw_mixture(self) -> Tensor:
        """α = u/Σu, u ~ U(0, 1) for every head; (H,), from torch's generator."""
        u = torch.rand(self.mean.shape, device=self.device)
        return u / u.sum()

    @torch.no_grad()
    def target_value(
        self, next_state: Tensor, reward: Tensor, not_done: Tensor, alpha: Tensor
    ) -> Tensor:
        """y = r + nd·γ·max_a Σ_k α_k Q'_k(s', a), Q' the target network's, (B, 1)."""
        q = self.target_network.mixture(next_state, alpha).max(1, keepdim=True).values
        return reward + not_done * self.discount * q

    def value_loss(self, q: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Huber(Σ_k α_k Q_k(s, a), y), the mean over the batch; (B, K), (B, 1), (B, 1) -> ()."""
        return F.smooth_l1_loss(q.gather(1, action), target)

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the loss and the mean of the mixture, as tensors.

        One mixture is drawn for the whole batch, and the target's is the same.
        """
        state, action, next_state, reward, not_done = batch

        alpha = self.draw_mixture()
        target = self.target_value(next_state, reward, not_done, alpha)
        q = self.network.mixture(state, alpha)
        value_loss = self.value_loss(q, action, target)
        self.optimizer.minimize(value_loss)

        self.updates += 1
        if self.updates % self.target_update_freq == 0:
            self.soft_update(self.tau)
        return {"value_loss": value_loss.detach(), "q": q.detach().mean()}
