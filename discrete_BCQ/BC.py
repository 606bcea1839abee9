"""Behavioural cloning (BC): the action that the batch's policy most likely took.

Source: Fujimoto et al., "Benchmarking Batch Deep Reinforcement Learning Algorithms", 2019,
appendix: BCQ's imitation head with its loss, alone.
Shapes: B batch, K num_actions, S state_shape: (S,) of a vector, (4, 84, 84) of Atari frames.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from utils import Agent, Batch, Figures, FusedAdam, features, head

LOGIT_PENALTY = 0.01  # weight of the squared imitation logits in the loss, as in BCQ


class Network(nn.Module):
    """The logits of G(· | s)."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.features = features(state_shape)
        self.imitation = head(state_shape, num_actions)

    def forward(self, state: Tensor) -> Tensor:
        """(B, *S) -> logits (B, K)."""
        return self.imitation(self.features(state))


class BC(Agent):
    """The agent; it has no values and so no target network. The defaults are Atari's."""

    batch_size = 32

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        device: torch.device | str,
        lr: float = 6.25e-5,
        adam_eps: float = 1.5e-4,
    ) -> None:
        self.network = Network(state_shape, num_actions).to(device)
        self.optimizer = FusedAdam(self.network, lr, eps=adam_eps)
        self.state_shape, self.device = tuple(state_shape), torch.device(device)

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> Any:
        """argmax G(· | s). Shapes: (*S) -> an int, (B, *S) -> (B,) int64."""
        states = torch.as_tensor(state, device=self.device)
        actions = self.network(states.reshape(-1, *self.state_shape)).argmax(1)
        return actions.cpu().numpy() if states.ndim > len(self.state_shape) else int(actions)

    def imitation_loss(self, logits: Tensor, action: Tensor) -> Tensor:
        """−log G(a | s) + 0.01·logits², means over batch and actions; (B, K), (B, 1) -> ()."""
        cloning = F.cross_entropy(logits, action.squeeze(1))
        return cloning + LOGIT_PENALTY * logits.square().mean()

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the loss, as a tensor."""
        loss = self.imitation_loss(self.network(batch.state), batch.action)
        self.optimizer.minimize(loss)
        return {"imitation_loss": loss.detach()}
