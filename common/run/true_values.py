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
from common.data.replay import ReplayBuffer
from common.environment import rollout
from common.environment.simulator import restore, simulator_state, state_from_observation
from common.errors import InputError

PAIRS = 100


class ValueEstimates:
    """The mean estimate of 100 pairs and, with --true_value, their mean return; called to measure.

    The pairs are drawn once, so that what changes from call to call is the agent. `source` says
    where they come from:

    - "batch": random rows of the batch; no true value is measured.
    - "simulator": rows whose exact simulator state was kept beside the batch.
    - "observation": random rows, the simulator's state put together from the observation.
    - "episode starts": where the environment cannot be set to a row, the first states of episodes
      with the policy's own actions.
    """

    def __init__(
        self,
        agent: Any,
        args: argparse.Namespace,
        prefix: Path,
        replay_buffer: ReplayBuffer,
        make_env: Callable[[], gym.Env],
    ) -> None:
        """`make_env` gives an environment without a time limit: a critic's value knows of none.

        Raises: InputError where γ is 1, so that no sum would end, and where the exact states beside
        the batch are not its own.
        """
        self.agent, self.discount, self.seed = agent, args.discount, args.seed
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
                    state = torch.as_tensor(np.stack(first), dtype=torch.float32)
                    action = torch.as_tensor(self.agent.select_action(state.numpy()))
                    state, action = state.to(self.agent.device), action.to(self.agent.device)
                actions = action.cpu().numpy()
                policy = self.agent.select_action
                played = rollout.play(policy, self.envs, first, actions, self.discount)
            true = float(played.returns.mean())
        return {"estimate": float(self.agent.value(state, action).mean()), "true": true}

    def _begin(self) -> list[np.ndarray]:
        if self._starts is None:
            return [env.reset(seed=self.seed + 200 + i)[0] for i, env in enumerate(self.envs)]
        return [restore(env, start) for env, start in zip(self.envs, self._starts, strict=True)]


def starts(
    prefix: Path,
    replay_buffer: ReplayBuffer,
    rows: np.ndarray,
    env: gym.Env,
    generator: np.random.Generator,
) -> tuple[str, np.ndarray, list[np.ndarray] | None]:
    """The source of the true values, the rows, and the simulator's state of each.

    `rows` stay unless the batch has rows of known state; the states are None where the environment
    cannot be set to one. Raises: InputError as `exact_states` does.
    """
    kept = exact_states(prefix, replay_buffer, env)
    if len(kept):
        kept = kept[generator.permutation(len(kept))[:PAIRS]]
        return "simulator", kept[:, 0].astype(np.int64), list(kept[:, 1:])
    states = []
    for observation in replay_buffer.rows(rows).state.cpu().numpy():
        state = state_from_observation(env, observation)
        if state is None:
            return "episode starts", rows, None
        states.append(state)
    return "observation", rows, states


def exact_states(prefix: Path, replay_buffer: ReplayBuffer, env: gym.Env) -> np.ndarray:
    """The rows whose simulator state was kept, and it: (n, 1 + state), n = 0 where there are none.

    Raises: InputError where the file is damaged or of another batch.
    """
    path, own = column_path(prefix, "simulator"), simulator_state(env)
    if own is None:
        return np.empty((0, 1))
    with SavedBatch(prefix) as saved:
        if "simulator" not in saved:
            return np.empty((0, 1))
        kept = np.asarray(saved.array("simulator"))
        same = replay_buffer.record.get("digest", saved.record["digest"]) == saved.record["digest"]
    fits = kept.ndim == 2 and kept.shape[1] == 1 + len(own) and np.isfinite(kept).all()
    if same and fits and (kept[:, 0] >= 0).all():
        kept = kept[kept[:, 0] < replay_buffer.size]  # of the part that --buffer_size leaves
        rows = replay_buffer.rows(kept[:, 0].astype(np.int64)).state.cpu().numpy()
        restored = np.array([restore(env, state) for state in kept[:, 1:]]).reshape(rows.shape)
        if np.allclose(restored, rows, rtol=1e-4, atol=1e-4):
            return kept
    raise InputError(f"{path} is damaged or of another batch: delete it, or make the batch again")
