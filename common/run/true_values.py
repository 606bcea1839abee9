"""Value estimates: what a critic says of some pairs (s, a) of the batch, and what they truly bring.

Source: Fujimoto, Meger, Precup, ICML 2019, section 3.1 and figure 1: the mean estimate on a
mini-batch of the buffer, beside the Monte-Carlo return of the current policy from the same pairs.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from common.data.batch_files import SavedBatch, column_path
from common.environment import rollout
from common.environment.simulator import restore, state_from_observation
from common.errors import InputError

PAIRS = 100


class ValueEstimates:
    """The mean estimate of 100 pairs and, with --true_value, their mean return; called to measure.

    The pairs are drawn once, so that what changes from call to call is the agent. `source` says
    where they come from:

    - "batch": random rows of the batch; no true value is measured.
    - "simulator": rows whose exact state was kept beside the batch, or the way to it.
    - "observation": random rows, the simulator's state put together from the observation.
    - "episode starts": where the environment cannot be set to a row, the first states of episodes
      with the policy's own actions.
    """

    def __init__(
        self,
        agent: Any,
        args: argparse.Namespace,
        prefix: Path,
        replay_buffer: Any,
        make_env: Callable[[], gym.Env],
    ) -> None:
        """`make_env` gives the environment that a critic knows: learning's rewards, no time limit.

        Raises: InputError where γ is 1, so that no sum would end, and where the exact states beside
        the batch are not its own.
        """
        self.agent, self.discount, self.seed = agent, args.discount, args.seed
        self.replay_buffer = replay_buffer
        # A generator of its own: measuring must not change what is learned.
        generator = np.random.default_rng(args.seed)
        rows = generator.integers(replay_buffer.size, size=PAIRS)
        self.source, self._starts = "batch", None
        self.envs: list[gym.Env] = []
        if args.true_value:
            if args.discount == 1:
                raise InputError("--true_value needs a --discount below 1: it sums to γ^t < 0.001")
            env = make_env()
            self.source, rows, self._starts = starts(prefix, replay_buffer, rows, env, generator)
            self.envs = [env, *(make_env() for _ in rows[1:])]
        pairs = replay_buffer.rows(rows)
        self._state, self._action = pairs.state, pairs.action
        self.positions = rows
        self.record = {"number": len(rows), "source": self.source}

    def __call__(self) -> dict[str, float | None]:
        """The mean estimate, and the mean return where it is measured (else None)."""
        state, action, true = self._state, self._action, None
        if self.envs:
            with rollout.preserved_generators(self.seed + 200):
                first = self._begin()
                if self.source == "episode starts":
                    state = torch.as_tensor(np.stack(first)).to(self._state)
                    action = torch.as_tensor(self.agent.select_action(state.cpu().numpy()))
                    action = action.reshape(len(action), -1).to(self._action)
                actions = action.cpu().numpy()
                if isinstance(self.envs[0].action_space, gym.spaces.Discrete):
                    actions = actions[:, 0]
                policy = self.agent.select_action
                played = rollout.play(policy, self.envs, first, actions, self.discount)
            true = float(played.returns.mean())
        return {"estimate": float(self.agent.value(state, action).mean()), "true": true}

    def _begin(self) -> list[np.ndarray]:
        if self._starts is None:
            return [env.reset(seed=self.seed + 200 + i)[0] for i, env in enumerate(self.envs)]
        kept = zip(self.envs, self._starts, self.positions, strict=True)
        return [restore(env, start, int(row), self.replay_buffer) for env, start, row in kept]


def starts(
    prefix: Path, replay_buffer: Any, rows: np.ndarray, env: gym.Env, generator: np.random.Generator
) -> tuple[str, np.ndarray, list[np.ndarray] | None]:
    """The source of the true values, the rows, and the simulator's state of each.

    `rows` stay unless the batch has rows of known state; the states are None where the environment
    cannot be set to one. Raises: InputError as `exact_states` does.
    """
    kept = exact_states(prefix, replay_buffer, env, generator)
    if len(kept):
        return "simulator", kept[:, 0].astype(np.int64), list(kept[:, 1:])
    states = []
    for observation in replay_buffer.rows(rows).state.cpu().numpy():
        state = state_from_observation(env, observation)
        if state is None:
            return "episode starts", rows, None
        states.append(state)
    return "observation", rows, states


def exact_states(
    prefix: Path, replay_buffer: Any, env: gym.Env, generator: np.random.Generator
) -> np.ndarray:
    """100 of the rows whose state was kept, and it: (n, 1 + state); fewer where there are fewer.

    Raises: InputError where the file is damaged or of another batch, or the environment does not
    come to the row's state again.
    """
    with SavedBatch(prefix) as saved:
        if "simulator" not in saved:
            return np.empty((0, 1))
        kept = np.asarray(saved.array("simulator"))
        same = replay_buffer.record.get("digest", saved.record["digest"]) == saved.record["digest"]
    if same and kept.ndim == 2 and np.isfinite(kept).all() and (kept[:, 0] >= 0).all():
        kept = kept[kept[:, 0] < replay_buffer.size]  # of the part that --buffer_size leaves
        kept = kept[generator.permutation(len(kept))[:PAIRS]]
        if _all_fit(env, kept, replay_buffer):
            return kept
    path = column_path(prefix, "simulator")
    raise InputError(
        f"{path} is damaged or of another batch, or {env.spec.id if env.spec else 'this'} does not "
        "repeat itself: make the batch again, or delete the file to start from episode starts"
    )


def _all_fit(env: gym.Env, kept: np.ndarray, replay_buffer: Any) -> bool:
    """Whether restoring shows the rows' own observations."""
    try:
        for one in kept:
            row = int(one[0])
            shown = restore(env, one[1:], row, replay_buffer)
            expected = replay_buffer.rows([row]).state[0].cpu().numpy()
            if not np.allclose(shown, expected, rtol=1e-4, atol=1e-4):
                return False
    except Exception:  # an environment's own code may raise anything on another's state
        return False
    return True
