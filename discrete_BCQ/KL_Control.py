"""KL-control: soft Q-learning that pays for leaving the batch's policy.

Maximises Σ γ^t (r/c − log π(a | s)/p(a | s)): the return, less the divergence KL(π‖p) from a prior
p, the batch's policy, which is cloned beside the values. Its values Ψ are learned towards
r/c + log p(a | s) + γ·log Σ_a' exp Ψ'(s', a'), and the policy is exp Ψ(s, ·), normalised. The
target's Ψ' is a lower bound: the smallest over some dropout masks of the target network.

Source: Jaques et al., "Way Off-Policy Batch Deep Reinforcement Learning of Implicit Human
Preferences in Dialog", 2019, with the body, optimiser and schedule of DQN. Fujimoto et al.,
"Benchmarking Batch Deep Reinforcement Learning Algorithms", 2019, compare with it too; the values
of c, of the masks' number and of the dropout rate they ran are not known here, so the defaults are
this project's own (FIDELITY.md) and nothing learned with them is that paper's result.
Shapes: B batch, K num_actions, M masks, S state_shape: (S,) of a vector, (4, 84, 84) of Atari
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
    number_between,
    positive,
)

LOGIT_PENALTY = 0.01  # weight of the squared prior logits in the loss, as in BCQ and BC


class Network(nn.Module):
    """Ψ(s, ·) and the logits of the prior p(· | s); on Atari both read one convolutional trunk."""

    def __init__(self, state_shape: tuple[int, ...], num_actions: int, dropout: float) -> None:
        super().__init__()
        self.features = features(state_shape)
        self.value = head(state_shape, num_actions)
        self.prior = head(state_shape, num_actions)
        self.dropout = dropout

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, *S) -> Ψ (B, K) and the logits (B, K), with all units; draws nothing."""
        shared = self.features(state)
        return self.value(shared), self.prior(shared)

    def masked(self, features: Tensor, masks: int) -> Tensor:
        """Ψ of a state's features with other units of the hidden layers left out each time.

        (B, features) -> (M, B, K). The masks, one a state, come from torch's generator.
        """
        first, *between, last = self.value.layers
        x = F.linear(features, *first).relu_().expand(masks, -1, -1)
        for layer in between:
            x = F.linear(F.dropout(x, self.dropout), *layer).relu_()
        return F.linear(F.dropout(x, self.dropout), *last)


class KL_Control(Agent):
    """The agent. Hyper-parameters: γ discount, M masks, c kl_weight; the defaults are Atari's.

    Rewards are divided by c: it is the weight of the divergence, in units of reward.

    Every `target_update_freq` updates the target network moves by the rate `tau` towards the
    network: 1 is a full copy (Atari), 0.005 at every update is Polyak averaging (vectors).

    Raises: ValueError for a `kl_weight` that is not above 0, or a dropout rate outside [0, 1).
    """

    batch_size = 32
    FLAGS: ClassVar[dict[str, Flag]] = {
        "kl_weight": Flag(positive, "c, weight of the divergence from the prior, in rewards"),
        "masks": Flag(count, "M, dropout masks over which the target is the smallest"),
        "dropout": Flag(number_between(0, 0.99), "share of the hidden units a mask leaves out"),
    }

    def __init__(
        self,
        state_shape: tuple[int, ...],
        num_actions: int,
        device: torch.device | str,
        kl_weight: float = 1.0,
        masks: int = 5,
        dropout: float = 0.1,
        discount: float = 0.99,
        lr: float = 6.25e-5,
        adam_eps: float = 1.5e-4,
        tau: float = 1.0,
        target_update_freq: int = 8000,
    ) -> None:
        if not kl_weight > 0:
            raise ValueError(f"kl_weight must be above 0, got {kl_weight}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.network = Network(state_shape, num_actions, dropout).to(device)
        self.target_network = deepcopy(self.network).requires_grad_(False)
        self.soft_update = SoftUpdate(self.network, self.target_network)
        self.optimizer = FusedAdam(self.network, lr, eps=adam_eps)
        self.updates = 0

        self.state_shape, self.device = tuple(state_shape), torch.device(device)
        self.discount, self.kl_weight, self.masks = discount, kl_weight, masks
        self.tau, self.target_update_freq = tau, target_update_freq

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> Any:
        """argmax Ψ(s, ·), the policy's mode. Shapes: (*S) -> an int, (B, *S) -> (B,) int64.

        No unit is left out; draws no random numbers.
        """
        states = torch.as_tensor(state, device=self.device)
        actions = self.network(states.reshape(-1, *self.state_shape))[0].argmax(1)
        return actions.cpu().numpy() if states.ndim > len(self.state_shape) else int(actions)

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """c·(Ψ(s, a) − log p(a | s)), (B, *S), (B, 1) -> (B, 1), in units of reward.

        The return from (s, a), less c times the divergences paid on the way after it.
        """
        psi, logits = self.network(state)
        return self.kl_weight * (psi - logits.log_softmax(1)).gather(1, action)

    @torch.no_grad()
    def target_value(
        self, log_prior: Tensor, next_state: Tensor, reward: Tensor, not_done: Tensor
    ) -> Tensor:
        """y = r/c + log p(a | s) + nd·γ·log Σ_a' exp min_m Ψ'_m(s', a'); `log_prior`, y (B, 1).

        Ψ'_m is the target network under its m-th dropout mask.
        """
        masked = self.target_network.masked(self.target_network.features(next_state), self.masks)
        soft_maximum = masked.amin(0).logsumexp(1, keepdim=True)
        return reward / self.kl_weight + log_prior + not_done * self.discount * soft_maximum

    def value_loss(self, psi: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Huber(Ψ(s, a), y), the mean over the batch; (B, K), (B, 1), (B, 1) -> ()."""
        return F.smooth_l1_loss(psi.gather(1, action), target)

    def prior_loss(self, logits: Tensor, action: Tensor) -> Tensor:
        """−log p(a | s) + 0.01·logits², means over batch and actions; (B, K), (B, 1) -> ()."""
        cloning = F.cross_entropy(logits, action.squeeze(1))
        return cloning + LOGIT_PENALTY * logits.square().mean()

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the losses and the mean Ψ, as tensors."""
        state, action, next_state, reward, not_done = batch

        shared = self.network.features(state)
        psi, logits = self.network.masked(shared, 1)[0], self.network.prior(shared)
        log_prior = logits.detach().log_softmax(1).gather(1, action)
        target = self.target_value(log_prior, next_state, reward, not_done)
        value_loss = self.value_loss(psi, action, target)
        prior_loss = self.prior_loss(logits, action)
        self.optimizer.minimize(value_loss + prior_loss)

        self.updates += 1
        if self.updates % self.target_update_freq == 0:
            self.soft_update(self.tau)
        return {
            "value_loss": value_loss.detach(),
            "prior_loss": prior_loss.detach(),
            "q": psi.detach().mean(),
        }
