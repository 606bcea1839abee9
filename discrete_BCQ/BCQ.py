"""Batch-Constrained deep Q-learning (BCQ) for discrete actions.

A generative model G(a | s), here an imitation head beside the value head, says which actions the
batch has; double DQN then chooses and values these actions alone.

Source: Fujimoto, Conti, Ghavamzadeh, Pineau, "Benchmarking Batch Deep Reinforcement Learning
Algorithms", 2019 (arXiv 1910.01708), Algorithm 1 and appendix; where the released code differs from
the text, the code's value stands here and FIDELITY.md has the row.
Shapes: B batch, K num_actions, S state_shape: (S,) of a vector, (4, 84, 84) of Atari frames.
"""

import math
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
    as_input,
    features,
    head,
    probability,
)

LOGIT_PENALTY = 0.01  # weight of the squared imitation logits in the loss


class Network(nn.Module):
    """Q(s, ·) and the logits of G(· | s); on Atari both read one convolutional trunk."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.features = features(state_shape)
        self.value = head(state_shape, num_actions)
        # Differs from the paper's code, not its text: no ReLU on the logits, whose sign is free.
        self.imitation = head(state_shape, num_actions)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, *S) -> q (B, K), discounted returns, and the imitation logits (B, K)."""
        shared = self.features(state)
        return self.value(shared), self.imitation(shared)

    def q(self, state: Tensor) -> Tensor:
        """(B, *S) -> (B, K), the value head alone."""
        return self.value(self.features(state))


class BCQ(Agent):
    """The agent. Hyper-parameters: γ discount, τ of the paper threshold; the defaults are Atari's.

    Every `target_update_freq` updates the target network moves by the rate `tau` towards the
    network: 1 is a full copy (Atari), 0.005 at every update is Polyak averaging (vectors).

    Raises: ValueError for a threshold outside [0, 1].
    """

    batch_size = 32
    FLAGS: ClassVar[dict[str, Flag]] = {
        "threshold": Flag(
            probability,
            "an action is allowed where G(a|s) / max G(.|s) is larger",
            spelled="--BCQ_threshold",
        ),
    }

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        device: torch.device | str,
        threshold: float = 0.3,
        discount: float = 0.99,
        lr: float = 6.25e-5,
        adam_eps: float = 1.5e-4,
        tau: float = 1.0,
        target_update_freq: int = 8000,
    ) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must lie in [0, 1], got {threshold}")
        self.network = Network(state_shape, num_actions).to(device)
        self.target_network = deepcopy(self.network).requires_grad_(False)
        self.soft_update = SoftUpdate(self.network, self.target_network)
        self.optimizer = FusedAdam(self.network, lr, eps=adam_eps)
        self.updates = 0

        self.state_shape, self.device = tuple(state_shape), torch.device(device)
        self.discount, self.threshold = discount, threshold
        self.tau, self.target_update_freq = tau, target_update_freq

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> Any:
        """The allowed action of highest value. Shapes: (*S) -> an int, (B, *S) -> (B,) int64."""
        states = torch.as_tensor(state, device=self.device)
        actions = self.best_allowed(states.reshape(-1, *self.state_shape)).squeeze(1)
        return actions.cpu().numpy() if states.ndim > len(self.state_shape) else int(actions)

    def allowed(self, logits: Tensor) -> Tensor:
        """Where G(a | s) / max G(· | s) > threshold, or a is the likeliest; (B, K), bool."""
        # The difference of two logits is that of the log-probabilities, whatever normalises them.
        below_best = logits - logits.max(1, keepdim=True).values
        log_threshold = math.log(self.threshold) if self.threshold > 0 else -math.inf
        return below_best > log_threshold if self.threshold < 1 else below_best == 0

    def best_allowed(self, state: Tensor) -> Tensor:
        """argmax Q(s, a) over the allowed a, by the online network. (B, *S) -> (B, 1) int64."""
        q, logits = self.network(state)
        return q.where(self.allowed(logits), -math.inf).argmax(1, keepdim=True)

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """Q(s, a); (B, *S), (B, 1) -> (B, 1)."""
        return self.network.q(state).gather(1, action)

    @torch.no_grad()
    def target_value(self, next_state: Tensor, reward: Tensor, not_done: Tensor) -> Tensor:
        """y = r + nd·γ·Q_target(s', a*), a* the online network's best allowed action; (B, 1)."""
        next_state = as_input(next_state)  # once for both networks
        best = self.best_allowed(next_state)
        return reward + not_done * self.discount * self.target_network.q(next_state).gather(1, best)

    def value_loss(self, q: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Huber(Q(s, a), y), the mean over the batch; (B, K), (B, 1), (B, 1) -> ()."""
        return F.smooth_l1_loss(q.gather(1, action), target)

    def imitation_loss(self, logits: Tensor, action: Tensor) -> Tensor:
        """−log G(a | s) + 0.01·logits², means over batch and actions; (B, K), (B, 1) -> ()."""
        cloning = F.cross_entropy(logits, action.squeeze(1))
        return cloning + LOGIT_PENALTY * logits.square().mean()

    def update(self, batch: Batch) -> Figures:
        """One iteration of Algorithm 1 on the given batch; the losses and mean Q, as tensors."""
        state, action, next_state, reward, not_done = batch

        target = self.target_value(next_state, reward, not_done)
        q, logits = self.network(state)
        value_loss = self.value_loss(q, action, target)
        imitation_loss = self.imitation_loss(logits, action)
        self.optimizer.minimize(value_loss + imitation_loss)

        self.updates += 1
        if self.updates % self.target_update_freq == 0:
            self.soft_update(self.tau)
        return {
            "value_loss": value_loss.detach(),
            "imitation_loss": imitation_loss.detach(),
            "q": q.detach().mean(),
        }
