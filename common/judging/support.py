"""How far a policy acts from what was logged: by distance, or by the behaviour's probabilities.

Shapes: N transitions, n held-out rows, S state_dim, A action_dim, K actions.
"""

import numpy as np
import torch
from torch import Tensor

from common.judging.FQE import STD_OFFSET, Policy
from common.judging.importance import Clone
from common.judging.logs import Log

NEIGHBOURS = 10  # rows of the batch in the most similar states
LOGGED, JUDGED = 20_000, 1000  # rows at most, drawn by the seed
USUAL = 0.95  # of the logged actions are nearer to their neighbours' than what counts as outside
RARE = 0.05  # probability under the behaviour below which a discrete action counts as outside


def _some(log: Log, most: int, seed: int) -> Tensor:
    """At most so many rows."""
    rows = np.random.default_rng(seed).permutation(len(log.state))[:most]
    return torch.from_numpy(np.sort(rows)).to(log.state.device)


class ContinuousSupport:
    """Mean |a − π(s)|, and the share of states where π acts outside the batch's support.

    Of a held-out state, the 10 rows of the training part in the nearest states (each dimension in
    units of its standard deviation) say what was done there; the distance of an action from them is
    that from the nearest. π is outside where its distance exceeds that of 95 % of the held-out
    actions themselves, so that the behaviour itself is outside in 5 %.
    """

    def __init__(self, training: Log, judged: Log, seed: int) -> None:
        rows, known = _some(judged, JUDGED, seed), _some(training, LOGGED, seed)
        self.state, self.action = judged.state[rows], judged.action[rows]
        mean, std = training.state.mean(0), training.state.std(0, correction=0) + STD_OFFSET
        there, here = (training.state[known] - mean) / std, (self.state - mean) / std
        distance = torch.cdist(here, there)
        if judged is training:  # a row is no neighbour of its own
            distance[rows[:, None] == known[None]] = torch.inf
        count = min(NEIGHBOURS, distance.shape[1])
        nearest = distance.topk(count, largest=False).indices
        self.neighbours = training.action[known][nearest]  # (n, 10, A)
        self.usual = torch.quantile(self.distance(self.action), USUAL)

    def distance(self, action: Tensor) -> Tensor:
        """(n, A) -> (n,), in units of max_action."""
        return (self.neighbours - action[:, None]).norm(dim=2).min(1).values

    def __call__(self, policy: Policy) -> dict[str, float]:
        """The figures of a policy."""
        action = policy(self.state)[0][:, 0]
        outside = self.distance(action) > self.usual
        return {
            "action_distance": float((self.action - action).abs().mean()),
            "outside": float(outside.float().mean()),
        }


class DiscreteSupport:
    """Agreement with the held-out actions, mean log β(π(s) | s), and how often β < 0.05 there.

    β is the behaviour, cloned from the training part.
    """

    def __init__(self, training: Log, judged: Log, seed: int) -> None:
        rows = _some(judged, JUDGED, seed)
        self.state, self.action = judged.state[rows], judged.action[rows].argmax(1)
        self.clone = Clone(training, seed)
        self.log_beta = self.clone.log_probabilities(self.state)

    def __call__(self, policy: Policy) -> dict[str, float]:
        """The figures of a policy."""
        action = policy(self.state)[0][:, 0].argmax(1)
        log_beta = self.log_beta.gather(1, action[:, None])
        return {
            "agreement": float((action == self.action).float().mean()),
            "log_likelihood": float(log_beta.mean()),
            "outside": float((log_beta < np.log(RARE)).float().mean()),
        }
