"""Fitted Q evaluation (FQE): what a fixed policy is worth, from logged transitions alone.

    minimise (Q(s, a) − r − nd·γ·E_{a' ~ π(s')} Q'(s', a'))²
    V = mean over initial states s_0 of E_{a ~ π(s_0)} Q(s_0, a)

Q' is a slowly moving copy of Q. Several critics stand side by side, each on its own resample of
the episodes; their spread is that of the estimate.

Source: Le, Voloshin, Yue, "Batch Policy Learning under Constraints", ICML 2019, Algorithm 3;
resampled episodes: Hao, Ji, Duan, Lu, Szepesvári, Wang, "Bootstrapping Fitted Q-Evaluation for
Off-Policy Inference", ICML 2021, section 3.
Shapes: C critics, B batch, N transitions, E episodes, S state_dim, A width of an action (one-hot
where it is one of A), M actions of the policy in one state.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from common.errors import InputError
from common.judging.logs import Log
from common.networks import SoftUpdate
from common.optimizer import FusedAdam

LEARNING_RATE = 1e-3
HIDDEN = [64, 64]
# Differs from the paper, which solves a regression to the end before it copies Q: that many small
# steps of both take a fraction of the time.
TAU = 0.1
BATCH_SIZE = 64  # transitions a critic and update
CRITICS = 10
STD_OFFSET = 1e-3  # added to the states' standard deviation, which may be 0
LEVEL = 0.95  # of the interval

# (n, S) -> M actions a state (n, M, A) and their probabilities (n, M)
Policy = Callable[[Tensor], tuple[Tensor, Tensor]]


class Estimate(NamedTuple):
    """A discounted value and its 95% interval; `each` (C,) is what every critic says."""

    value: float
    low: float
    high: float
    each: list[float]


class Critics(nn.Module):
    """C multi-layer perceptrons of one shape side by side, a product of matrices a layer."""

    def __init__(
        self, critics: int, inputs: int, hidden: list[int], generator: torch.Generator
    ) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        widths = [inputs, *hidden, 1]
        for width_in, width_out in pairwise(widths):
            bound = 1 / math.sqrt(width_in)  # torch's default for linear layers

            def uniform(*shape: int, bound: float = bound) -> nn.Parameter:
                return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * bound)

            self.weights.append(uniform(critics, width_in, width_out))
            self.biases.append(uniform(critics, 1, width_out))

    def forward(self, x: Tensor) -> Tensor:
        """(C, B, inputs) -> (C, B)."""
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x.relu_() if place < last else x
        return x.squeeze(2)


class FQE:
    """The critics on one log, to be fitted to one policy after the other.

    `starts` (n, S): the states that values are asked of, the first of the log's episodes unless
    given; each critic has its own resample of those too. Inputs and outputs of the networks are
    scaled by the log's mean and standard deviation (of its returns-to-go), which changes no fixed
    point. All randomness is from a generator of its own.

    Raises: InputError where γ is 1: there is no fixed point to go to.
    """

    def __init__(
        self,
        log: Log,
        discount: float,
        seed: int,
        starts: Tensor | None = None,
        critics: int = CRITICS,
        hidden: list[int] | None = None,
        tau: float = TAU,
    ) -> None:
        if not discount < 1:
            raise InputError("an estimate needs a --discount below 1")
        self.log, self.discount, self.tau = log, discount, tau
        self.device = log.state.device
        self.starts = log.first_states if starts is None else starts
        self.generator = torch.Generator().manual_seed(seed)
        inputs = log.state.shape[1] + log.action.shape[1]
        hidden = HIDDEN if hidden is None else hidden
        self.critics = Critics(critics, inputs, hidden, self.generator).to(self.device)
        self.target = deepcopy(self.critics).requires_grad_(False)
        self.soft_update = SoftUpdate(self.critics, self.target)
        self.optimizer = FusedAdam(self.critics, LEARNING_RATE)

        self.mean, self.std = log.state.mean(0), log.state.std(0, correction=0) + STD_OFFSET
        to_go = log.returns_to_go(discount)
        self.value_mean = float(to_go.mean())
        self.value_std = float(to_go.std(correction=0)) or 1.0
        low, high = float(log.reward.min()), float(log.reward.max())
        # One reward at least is earned, and never more than these for ever.
        self.lowest, self.highest = min(low, low / (1 - discount)), max(high, high / (1 - discount))
        self._resample(critics)

    def _resample(self, critics: int) -> None:
        """Draw each critic's episodes, and its initial states, as many as there are."""
        episodes, states = self.log.episodes, len(self.starts)
        shape = (critics, episodes)
        self.drawn = torch.randint(episodes, shape, generator=self.generator).to(self.device)
        self.drawn_starts = torch.randint(states, (critics, states), generator=self.generator)
        ends = self.log.lengths[self.drawn].cumsum(1)
        # Row n of a critic's resample lies in its last episode that begins at or before n.
        self.begins = torch.cat([ends.new_zeros(critics, 1), ends], 1)

    def rows(self, batch_size: int) -> Tensor:
        """Rows of the log drawn uniformly from each critic's resample, (C, B)."""
        uniform = torch.rand(
            (len(self.drawn), batch_size), generator=self.generator, dtype=torch.float64
        )
        number = (uniform.to(self.device) * self.begins[:, -1:]).long()
        place = torch.searchsorted(self.begins[:, 1:].contiguous(), number, right=True)
        first = self.log.starts[self.drawn.gather(1, place)]
        return first + number - self.begins.gather(1, place)

    def q(self, critics: Critics, state: Tensor, action: Tensor) -> Tensor:
        """Q of every critic, in units of the reward: (C, B, S), (C, B, A) -> (C, B)."""
        inputs = torch.cat([(state - self.mean) / self.std, action], 2)
        return self.value_mean + self.value_std * critics(inputs)

    def expected_q(self, critics: Critics, state: Tensor, action: Tensor, p: Tensor) -> Tensor:
        """Σ_m p_m Q(s, a_m): (C, B, S), (C, B, M, A), (C, B, M) -> (C, B)."""
        each, rows, number, width = action.shape
        states = state.repeat_interleave(number, 1)
        q = self.q(critics, states, action.reshape(each, rows * number, width))
        return (q.reshape(each, rows, number) * p).sum(2)

    @torch.no_grad()
    def target_value(self, rows: Tensor, action: Tensor, p: Tensor) -> Tensor:
        """y = r + nd·γ·Σ_m p_m Q'(s', a'_m) of these rows (C, B), (N, M, A), (N, M) -> (C, B).

        No y is beyond what the logged rewards can sum to: critics that know nothing of the actions
        of a policy far from the log would else feed on their own errors.
        """
        log = self.log
        value = self.expected_q(self.target, log.next_state[rows], action[rows], p[rows])
        target = log.reward[rows] + log.not_done[rows] * self.discount * value
        # Differs from the paper, which leaves the targets as they are.
        return target.clamp(self.lowest, self.highest)

    def loss(self, rows: Tensor, target: Tensor) -> Tensor:
        """Σ over critics of the mean (Q(s, a) − y)², in units of the returns' variance."""
        q = self.q(self.critics, self.log.state[rows], self.log.action[rows])
        return ((q - target) / self.value_std).square().mean(1).sum()

    def fit(self, policy: Policy, iterations: int) -> None:
        """`iterations` updates towards Q^π, going on from where the critics are.

        Raises: InputError where the critics diverge.
        """
        action, p = policy(self.log.next_state)
        self.first_action, self.first_p = policy(self.starts)
        for _ in range(iterations):
            rows = self.rows(BATCH_SIZE)
            loss = self.loss(rows, self.target_value(rows, action, p))
            self.optimizer.minimize(loss)
            self.soft_update(self.tau)
        if iterations and not torch.isfinite(loss):
            raise InputError(
                "the estimate diverged: look at the rewards, or take a smaller --discount"
            )

    @torch.no_grad()
    def estimate(self) -> Estimate:
        """The value of the policy of the last `fit`: the critics' mean, t times their std apart.

        A critic's value is the mean over its own resample of the initial states. The interval is
        that of a normal distribution whose std is the critics': C resamples are too few for
        percentiles. It knows of the chance in which episodes were logged, not of what the networks
        cannot express and the episodes do not show.
        """
        value = self.first_values()
        each = value.gather(1, self.drawn_starts.to(self.device)).mean(1).double().cpu().numpy()
        spread = each.std(ddof=1) * student.ppf((1 + LEVEL) / 2, len(each) - 1)
        mean = float(each.mean())
        return Estimate(mean, float(mean - spread), float(mean + spread), each.tolist())

    @torch.no_grad()
    def first_values(self) -> Tensor:
        """V(s_0) of every critic and initial state, (C, n)."""
        critics = len(self.drawn)
        state = self.starts.expand(critics, -1, -1)
        action = self.first_action.expand(critics, -1, -1, -1)
        return self.expected_q(self.critics, state, action, self.first_p.expand(critics, -1, -1))

    @torch.no_grad()
    def td_error(self, log: Log, policy: Policy) -> float:
        """Root mean square of Q(s, a) − r − nd·γ·E Q(s', π(s')) on `log`, Q the critics' mean."""
        critics = len(self.drawn)
        action, p = policy(log.next_state)
        squares = 0.0
        for rows in torch.arange(len(log.state), device=self.device).split(1000):
            pairs = (log.state[rows], log.action[rows])
            q = self.q(self.critics, *(part.expand(critics, -1, -1) for part in pairs)).mean(0)
            after = self.expected_q(
                self.critics,
                log.next_state[rows].expand(critics, -1, -1),
                action[rows].expand(critics, -1, -1, -1),
                p[rows].expand(critics, -1, -1),
            ).mean(0)
            target = log.reward[rows] + log.not_done[rows] * self.discount * after
            squares += float((q - target).double().square().sum())
        return float(np.sqrt(squares / len(log.state)))

    def state_dict(self) -> dict[str, Any]:
        """All that fitting on needs; the log and its resamples come from the same seed again."""
        return {
            "critics": self.critics.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fit on from there."""
        self.critics.load_state_dict(state["critics"])
        self.target.load_state_dict(state["target"])
        # A copy: it goes on with the tensors it is given.
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self.generator.set_state(state["generator"])
