"""Quantile-regression DQN (QR-DQN): deep Q-learning on the distribution of the return.

The return of every action is described by N equally likely values, the quantiles θ_1 … θ_N at the
midpoints τ̂_i = (2i − 1)/2N; their mean is Q.

Source: Dabney, Rowland, Bellemare, Munos, "Distributional Reinforcement Learning with Quantile
Regression", AAAI 2018, Algorithm 1, with the body, optimiser and schedule of DQN, as Fujimoto et
al., "Benchmarking Batch Deep Reinforcement Learning Algorithms", 2019, run all learners alike.
Shapes: B batch, K num_actions, N quantiles, S state_shape: (S,) of a vector, (4, 84, 84) of Atari
frames.
"""

from copy import deepcopy
from typing import Any, ClassVar

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
    features,
    head,
    positive,
)


class Network(nn.Module):
    """θ_1(s, ·) … θ_N(s, ·)."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, quantiles: int) -> None:
        super().__init__()
        self.features = features(state_shape)
        self.quantiles = head(state_shape, num_actions * quantiles)
        self.outputs = (num_actions, quantiles)

    def forward(self, state: Tensor) -> Tensor:
        """(B, *S) -> θ (B, K, N), discounted returns."""
        return self.quantiles(self.features(state)).unflatten(1, self.outputs)


class QRDQN(Agent):
    """The agent. Hyper-parameters: γ discount, N quantiles, κ kappa; the defaults are Atari's.

    Every `target_update_freq` updates the target network moves by the rate `tau` towards the
    network: 1 is a full copy (Atari), 0.005 at every update is Polyak averaging (vectors).
    """

    batch_size = 32
    FLAGS: ClassVar[dict[str, Flag]] = {
        "quantiles": Flag(count, "N, quantiles of the return of every action"),
        "kappa": Flag(positive, "κ, error up to which Huber's loss is quadratic"),
    }

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        device: torch.device | str,
        quantiles: int = 200,
        kappa: float = 1.0,
        discount: float = 0.99,
        lr: float = 6.25e-5,
        adam_eps: float = 1.5e-4,
        tau: float = 1.0,
        target_update_freq: int = 8000,
    ) -> None:
        self.network = Network(state_shape, num_actions, quantiles).to(device)
        self.target_network = deepcopy(self.network).requires_grad_(False)
        self.soft_update = SoftUpdate(self.network, self.target_network)
        self.optimizer = FusedAdam(self.network, lr, eps=adam_eps)
        self.updates = 0

        self.state_shape, self.device = tuple(state_shape), torch.device(device)
        self.midpoints = (2 * torch.arange(1, quantiles + 1, device=device) - 1) / (2 * quantiles)
        self.discount, self.kappa = discount, kappa
        self.tau, self.target_update_freq = tau, target_update_freq

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> Any:
        """argmax_a mean_i θ_i(s, a), no noise. Shapes: (*S) -> an int, (B, *S) -> (B,) int64."""
        states = torch.as_tensor(state, device=self.device)
        q = self.network(states.reshape(-1, *self.state_shape)).mean(2)
        actions = q.argmax(1)
        return actions.cpu().numpy() if states.ndim > len(self.state_shape) else int(actions)

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """Q(s, a) = mean_i θ_i(s, a); (B, *S), (B, 1) -> (B, 1)."""
        return self.network(state).mean(2).gather(1, action)

    @torch.no_grad()
    def target_value(self, next_state: Tensor, reward: Tensor, not_done: Tensor) -> Tensor:
        """Tθ_j = r + nd·γ·θ'_j(s', a*), a* the target network's own best action; (B, N)."""
        theta = self.target_network(next_state)
        best = theta.mean(2, keepdim=True).argmax(1, keepdim=True)
        return reward + not_done * self.discount * theta.take_along_dim(best, 1).squeeze(1)

    def value_loss(self, theta: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Σ_i mean_j |τ̂_i − 1{u_ij < 0}|·H_κ(u_ij)/κ, u_ij = Tθ_j − θ_i(s, a), H_κ Huber's loss.

        The mean over the batch; (B, K, N), (B, 1), (B, N) -> (). None of the N² errors of a row is
        computed: to each θ_i the sorted targets fall into four parts, u < −κ, < 0, < κ and beyond,
        and what a part adds follows from the number, sum and sum of squares of its targets.
        """
        kappa = self.kappa
        theta = theta.take_along_dim(action[:, :, None], 1).squeeze(1)
        # Errors are differences: both from the targets' middle, in doubles, since they are squared.
        middle = target.mean(1, keepdim=True)
        theta, target = (theta - middle).double(), (target - middle).double().sort(1).values
        powers = torch.stack([torch.ones_like(target), target, target.square()])
        of_first = F.pad(powers.cumsum(2), (1, 0))  # (3, B, N + 1), of the first 0 … N targets
        edges = torch.cat([theta - kappa, theta, theta + kappa], 1).detach()
        place = torch.searchsorted(target, edges).expand(3, -1, -1)
        low, zero, high = of_first.gather(2, place).chunk(3, 2)  # (3, B, N) each

        def quadratic(part: Tensor) -> Tensor:
            """Σ u²/2 over a part."""
            return (part[2] - 2 * theta * part[1] + theta.square() * part[0]) / 2

        def linear(part: Tensor, sign: int) -> Tensor:
            """Σ κ(|u| − κ/2) over a part."""
            return kappa * (sign * (part[1] - theta * part[0]) - kappa / 2 * part[0])

        over = quadratic(high - zero) + linear(of_first[..., -1:] - high, 1)
        under = quadratic(zero - low) + linear(low, -1)
        sums = self.midpoints * over + (1 - self.midpoints) * under
        return sums.sum(1).mean() / (kappa * target.shape[1])

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the loss and the mean Q, as tensors."""
        state, action, next_state, reward, not_done = batch

        target = self.target_value(next_state, reward, not_done)
        theta = self.network(state)
        value_loss = self.value_loss(theta, action, target)
        self.optimizer.minimize(value_loss)

        self.updates += 1
        if self.updates % self.target_update_freq == 0:
            self.soft_update(self.tau)
        return {"value_loss": value_loss.detach(), "q": theta.detach().mean()}
