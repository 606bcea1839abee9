"""MuJoCo's exact state: kept for some rows of a batch, and put back to play on from there.

An observation tells less: Hopper and Walker2d clip their velocities to ±10, all leave out x, and
none has the forces from which the solver of contacts sets out.
"""

from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.envs.mujoco import MujocoEnv

KEPT = 1000  # rows of a batch whose exact state is kept


# Positions, velocities and the solver's starting point: all on which the next step depends.
STATE = mujoco.mjtState.mjSTATE_INTEGRATION


def simulator_state(env: gym.Env) -> np.ndarray | None:
    """All that MuJoCo's next step depends on, (n,) float64; None of any other environment."""
    inner = env.unwrapped
    if not isinstance(inner, MujocoEnv):
        return None
    state = np.empty(mujoco.mj_stateSize(inner.model, STATE))
    mujoco.mj_getState(inner.model, inner.data, state, STATE)
    return state


def restore(env: gym.Env, state: np.ndarray) -> np.ndarray:
    """Begin an episode at what `simulator_state` gave. Returns: its observation (S,)."""
    env.reset()
    inner: Any = env.unwrapped
    mujoco.mj_setState(inner.model, inner.data, state, STATE)
    mujoco.mj_forward(inner.model, inner.data)
    return np.array(inner._get_obs())  # a copy: it may be one array that is overwritten


def state_from_observation(env: gym.Env, observation: np.ndarray) -> np.ndarray | None:
    """The simulator's state with this observation (S,), (n,) float64; the positions left out are 0.

    Exact where the observation holds all other positions and all velocities unclipped, but for the
    solver's starting point. None where the environment does not give the observation back.
    """
    if not isinstance(env.unwrapped, MujocoEnv):
        return None
    inner: Any = env.unwrapped
    positions, velocities = inner.model.nq, inner.model.nv
    hidden = positions + velocities - len(observation)
    if not 0 <= hidden < positions:
        return None
    env.reset(seed=0)  # the solver sets out from what a reset leaves: the same each time
    seen = np.asarray(observation, np.float64)
    inner.set_state(np.append(np.zeros(hidden), seen[:-velocities]), seen[-velocities:])
    same = np.allclose(inner._get_obs(), observation, rtol=1e-4, atol=1e-4)
    return simulator_state(env) if same else None


class Snapshots:
    """The exact simulator state at up to 1,000 of the given timesteps, drawn at random."""

    def __init__(self, env: gym.Env, timesteps: range, seed: int) -> None:
        self.env = env
        number = min(KEPT, len(timesteps)) if simulator_state(env) is not None else 0
        # A generator of its own: what is kept must not change what is played.
        drawn = np.random.default_rng(seed).choice(len(timesteps), number, replace=False)
        self._chosen = {timesteps[place] for place in drawn}
        self._states: dict[int, np.ndarray] = {}

    def keep(self, timestep: int) -> None:
        """Before the step of this timestep: keep the state if it was chosen."""
        if timestep in self._chosen:
            state = simulator_state(self.env)
            assert state is not None
            self._states[timestep] = state

    def state_dict(self) -> dict[str, Any]:
        """The states kept so far, by timestep."""
        return {str(step): torch.from_numpy(state) for step, state in self._states.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put such states back."""
        self._states = {int(step): one.numpy() for step, one in state.items()}

    def rows(self, replay_buffer: Any) -> np.ndarray | None:
        """(n, 1 + state) float64: a row's position from the oldest kept (0), and its state.

        None where the environment is not MuJoCo's.
        """
        oldest = replay_buffer.added - replay_buffer.size
        rows = [
            np.concatenate([[timestep - oldest], state])
            for timestep, state in self._states.items()
            if oldest <= timestep < replay_buffer.added
        ]
        return np.stack(rows) if rows else None
