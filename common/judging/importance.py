"""Weighted importance sampling, per decision, with the behaviour's probabilities by cloning.

    V = Σ_t γ^t · Σ_i w_it r_it / Σ_i w_it,   w_it = Π_{u ≤ t} π(a_iu | s_iu) / β(a_iu | s_iu)

Source: Precup, Sutton, Singh, "Eligibility Traces for Off-Policy Policy Evaluation", ICML 2000,
section 3 (per decision); normalised by the weights of each step: Thomas, "Safe Reinforcement
Learning", 2015, section 3.
Shapes: N transitions, E episodes, S state_dim, K actions. For discrete actions alone.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from common.judging.logs import Log
from common.networks import mlp
from common.optimizer import FusedAdam

HIDDEN = [64, 64]
LEARNING_RATE = 1e-3
CLONING_UPDATES = 2000
CLONING_BATCH = 256
SOFT = 0.01  # ε: π(a|s) is 1 − ε + ε/K for the policy's action, ε/K for the others
RESAMPLES = 500  # of the interval
PERCENTILES = (2.5, 97.5)


class Weighted(NamedTuple):
    """A discounted value, its 95% interval, and the effective sample size in episodes.

    effective: (Σ w)² / Σ w² of the weights of whole episodes: how many episodes of the policy's own
    would say as much.
    """

    value: float
    low: float
    high: float
    effective: float


class Clone:
    """β(a | s), the behaviour's probabilities, by a softmax fitted to the log's actions.

    Draws from a generator of its own; its weights from torch's, seeded for them and put back.
    """

    def __init__(self, log: Log, seed: int, updates: int = CLONING_UPDATES) -> None:
        state, action = log.state, log.action.argmax(1)
        self.mean, self.std = state.mean(0), state.std(0, correction=0) + 1e-3
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = mlp(state.shape[1], HIDDEN, log.action.shape[1]).to(state.device)
        optimizer = FusedAdam(self.network, LEARNING_RATE)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(updates):
            rows = torch.randint(len(state), (CLONING_BATCH,), generator=generator)
            rows = rows.to(state.device)
            optimizer.minimize(F.cross_entropy(self.logits(state[rows]), action[rows]))

    def logits(self, state: Tensor) -> Tensor:
        """(n, S) -> (n, K)."""
        return self.network((state - self.mean) / self.std)

    @torch.no_grad()
    def log_probabilities(self, state: Tensor) -> Tensor:
        """log β(· | s), (n, S) -> (n, K)."""
        return F.log_softmax(self.logits(state), 1)


def log_ratios(log: Log, policy_action: Tensor, log_beta: Tensor, soft: float = SOFT) -> Tensor:
    """log π(a|s) − log β(a|s) of the logged actions, (N,) float64.

    policy_action (N,): what the policy does in each row's state; made soft by `soft`, since a
    policy that never does what was logged would leave no weight at all.
    """
    taken, actions = log.action.argmax(1), log.action.shape[1]
    follows = (taken == policy_action).double()
    pi = (1 - soft) * follows + soft / actions
    return pi.log() - log_beta.gather(1, taken[:, None])[:, 0].double()


def weighted_importance_sampling(
    log: Log, ratios: Tensor, discount: float, seed: int, resamples: int = RESAMPLES
) -> Weighted:
    """The estimate from log ratios (N,); its interval is by percentiles over resampled episodes.

    An episode that ended in a terminal state stays with its last weight and earns no more; one that
    was cut leaves the sums, for nobody knows what came after.
    """
    starts, lengths = log.starts.cpu().numpy(), log.lengths.cpu().numpy()
    reward, ratio = log.reward.double().cpu().numpy(), ratios.cpu().numpy()
    terminated, episodes = log.terminated.cpu().numpy(), log.episodes
    draws = np.random.default_rng(seed).integers(episodes, size=(resamples, episodes))
    # The first line of counts is the log itself, the others its resamples.
    counts = np.stack([np.bincount(draw, minlength=episodes) for draw in draws])
    counts = np.concatenate([np.ones((1, episodes)), counts])

    log_weight, values, weight = np.zeros(episodes), np.zeros(len(counts)), 1.0
    for step in range(int(lengths.max())):
        running = lengths > step
        rows = starts[:-1][running] + step
        log_weight[running] += ratio[rows]
        counted = running | terminated
        w = np.exp(log_weight - log_weight[counted].max()) * counted
        earned = np.zeros(episodes)
        earned[running] = w[running] * reward[rows]
        total = counts @ w
        # A resample without a weight at this step says nothing of it.
        values += weight * np.divide(
            counts @ earned, total, out=np.zeros_like(total), where=total > 0
        )
        weight *= discount
    w = np.exp(log_weight - log_weight.max())
    low, high = np.percentile(values[1:], PERCENTILES)
    return Weighted(float(values[0]), float(low), float(high), float(w.sum() ** 2 / (w**2).sum()))
