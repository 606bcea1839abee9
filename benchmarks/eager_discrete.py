"""The yardstick of plain code: discrete BCQ and DQN as their formulas read, nothing done for speed.

Channels-first convolutions, default Adam, whole networks evaluated, Polyak one parameter at a time,
the loss read off the device at once. Same networks, sizes and order as in `discrete_BCQ/`.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DISCOUNT, THRESHOLD = 0.99, 0.3


def head(inputs: int, hidden: list[int], actions: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, actions))


class Network(nn.Module):
    """q, and with `imitates` the log-probabilities and logits of the imitation head."""

    def __init__(self, state_shape: tuple[int, ...], actions: int, imitates: bool) -> None:
        super().__init__()
        self.trunk: nn.Module = nn.Identity()
        inputs, hidden = state_shape[0], [256, 256]
        if len(state_shape) == 3:
            self.trunk = nn.Sequential(
                nn.Conv2d(4, 32, 8, stride=4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, stride=2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, stride=1),
                nn.ReLU(),
                nn.Flatten(),
            )
            inputs, hidden = 3136, [512]
        self.value = head(inputs, hidden, actions)
        self.imitation = head(inputs, hidden, actions) if imitates else None

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, *S) -> three of (B, K); of DQN the same thing thrice."""
        shared = self.trunk(state.float())
        q = self.value(shared)
        if self.imitation is None:
            return q, q, q
        logits = self.imitation(shared)
        return q, F.log_softmax(logits, 1), logits


class EagerDiscrete:
    """BCQ, or DQN where it does not imitate; `update` is one iteration."""

    def __init__(
        self, state_shape: tuple[int, ...], actions: int, imitates: bool, tau: float, freq: int
    ) -> None:
        self.network = Network(state_shape, actions, imitates)
        self.target_network = deepcopy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-4)
        self.imitates, self.tau, self.freq, self.updates = imitates, tau, freq, 0

    def update(
        self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor, not_done: Tensor
    ) -> float:
        """One gradient step on a batch; the loss."""
        with torch.no_grad():
            next_q = self.target_network(next_state)[0]
            if self.imitates:
                q, log_prob, _ = self.network(next_state)
                allowed = log_prob.exp() / log_prob.exp().max(1, keepdim=True)[0] > THRESHOLD
                best = q.masked_fill(~allowed, -torch.inf).argmax(1, keepdim=True)
            else:
                best = next_q.argmax(1, keepdim=True)
            target = reward + not_done * DISCOUNT * next_q.gather(1, best)
        q, log_prob, logits = self.network(state)
        loss = F.smooth_l1_loss(q.gather(1, action), target)
        if self.imitates:
            loss += F.nll_loss(log_prob, action.reshape(-1)) + 0.01 * logits.pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

        self.updates += 1
        if self.updates % self.freq == 0:
            pairs = zip(self.network.parameters(), self.target_network.parameters(), strict=True)
            for weight, slow in pairs:
                slow.data.copy_(self.tau * weight.data + (1 - self.tau) * slow.data)
        return loss.item()
