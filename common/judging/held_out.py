"""A learner judged on held-out episodes, where there is no environment to play in."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from common.environment.rollout import preserved_generators
from common.judging.FQE import FQE, Policy
from common.judging.importance import (
    Weighted,
    log_ratios,
    weighted_importance_sampling,
)
from common.judging.logs import Log, split, starts_of
from common.judging.support import ContinuousSupport, DiscreteSupport

STATES = 1024  # that a policy is asked about at a time
LATER = 5  # an evaluation after the first goes on for a fifth of the critics' updates
# Below and above these an estimate has too little to stand on.
FEW_EPISODES, MUCH_OUTSIDE = 10, 0.2


class Judged(NamedTuple):
    """A batch in two parts: to learn from, and to judge on (the same where nothing is held out).

    rows: of the batch, those to learn from; scale: what continuous actions are divided by, None
    where they are one of K.
    """

    training: Log
    judged: Log
    rows: torch.Tensor
    scale: float | None


def read_log(replay_buffer: Any, num_actions: int | None, max_action: float | None) -> Log:
    """The transitions held, oldest first, with actions as critics take them."""
    batch = replay_buffer.rows(torch.arange(replay_buffer.size))
    action = (
        batch.action / max_action
        if num_actions is None
        else F.one_hot(batch.action[:, 0], num_actions).float()
    )
    starts = starts_of(torch.from_numpy(replay_buffer.ends())).to(action.device)
    reward, not_done = batch.reward[:, 0], batch.not_done[:, 0]
    return Log(batch.state, action, batch.next_state, reward, not_done, starts)


def in_two(log: Log, held_out: float, seed: int, scale: float | None) -> Judged:
    """The training and the held-out part. Raises: InputError as `split` does."""
    learned, held = (torch.from_numpy(part) for part in split(log.episodes, held_out, seed))
    place = torch.zeros(log.episodes, dtype=torch.bool)
    place[learned] = True
    lengths = log.lengths.cpu()
    rows = torch.repeat_interleave(place, lengths).nonzero()[:, 0]
    training = log.take(learned.to(log.state.device))
    judged = log.take(held.to(log.state.device)) if len(held) else training
    return Judged(training, judged, rows, scale)


def at_most(log: Log, rows: int, seed: int) -> Log:
    """Whole episodes drawn by `seed`, as many as fit into so many rows (one at least)."""
    if len(log.state) <= rows:
        return log
    drawn = torch.from_numpy(np.random.default_rng(seed).permutation(log.episodes))
    fit = int((log.lengths.cpu()[drawn].cumsum(0) <= rows).sum())
    return log.take(drawn[: max(1, fit)].sort().values.to(log.state.device))


def policy_of(
    select_action: Callable[[np.ndarray], Any],
    num_actions: int | None,
    scale: float | None,
    seed: int,
) -> Policy:
    """What an agent does, as critics take it: one action a state, drawn by `seed` if at random."""

    def policy(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with preserved_generators(seed):
            parts = [select_action(part.cpu().numpy()) for part in state.split(STATES)]
        action = torch.as_tensor(np.concatenate(parts)).to(state.device)
        if num_actions is not None:
            action = F.one_hot(action.long(), num_actions).float()
        elif scale is not None:
            action = action.float() / scale
        return action[:, None], action.new_ones(len(action), 1)

    return policy


class HeldOut:
    """What stage 3 records in place of returns; called at each evaluation.

    The critics go on from one evaluation to the next: the first has `iterations` updates, later
    ones a fifth, since the policy has changed but little.
    """

    def __init__(
        self,
        select_action: Callable[[np.ndarray], Any],
        parts: Judged,
        args: argparse.Namespace,
        num_actions: int | None,
    ) -> None:
        """Raises: InputError where γ is 1."""
        self.parts, self.iterations, self.calls = parts, args.estimate_iterations, 0
        self.policy = policy_of(select_action, num_actions, parts.scale, args.seed)
        learned = at_most(parts.training, args.estimate_rows, args.seed)
        starts = parts.judged.first_states
        self.fqe = FQE(learned, args.discount, args.seed, starts)
        kind: Any = ContinuousSupport if num_actions is None else DiscreteSupport
        self.support = kind(parts.training, parts.judged, args.seed)

    def __call__(self) -> dict[str, float]:
        """The estimate and its interval, the TD error, and what the policy does."""
        self.fqe.fit(self.policy, self.iterations if not self.calls else self.iterations // LATER)
        self.calls += 1
        estimate = self.fqe.estimate()
        return {
            "value": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "td_error": self.fqe.td_error(self.parts.judged, self.policy),
            **self.support(self.policy),
        }

    def importance(self, discount: float, seed: int) -> Weighted:
        """The estimate by weighted importance sampling, where actions are discrete."""
        judged, clone = self.parts.judged, self.support.clone
        action = self.policy(judged.state)[0][:, 0].argmax(1)
        ratios = log_ratios(judged, action, clone.log_probabilities(judged.state))
        return weighted_importance_sampling(judged, ratios, discount, seed)

    def state_dict(self) -> dict[str, Any]:
        """The critics, and how often they were asked."""
        return {"fqe": self.fqe.state_dict(), "calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.fqe.load_state_dict(state["fqe"])
        self.calls = state["calls"]


def too_thin(figures: dict[str, float], episodes: int) -> list[str]:
    """Why an estimate has too little to stand on; empty where it has enough."""
    reasons = []
    if figures["outside"] > MUCH_OUTSIDE:
        reasons.append(f"the policy acts outside the batch in {figures['outside']:.0%} of states")
    if episodes < FEW_EPISODES:
        reasons.append(f"{episodes} episode{'s' if episodes > 1 else ''} to judge on")
    return reasons
