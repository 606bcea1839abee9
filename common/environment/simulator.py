"""An environment's exact state: kept for some rows of a batch, and put back to play on from there.

An observation tells less. MuJoCo's Hopper and Walker2d clip their velocities to ±10, all leave out
x, and none has the forces from which the solver of contacts sets out; a frame of Atari hides the
emulator's memory. What is kept depends on the environment:

- MuJoCo: positions, velocities and the solver's starting point, all on which the next step depends.
- Atari: the emulator's state with its random generator, and the last actions, one of which a
  sticky action repeats; the frames before are the batch's own.
- any other: the random generator as the episode began and the steps since. The batch's actions are
  then played again, which leads to the row where all chance comes from gymnasium's `np_random`.
"""

import math
import zlib
from typing import Any, SupportsFloat

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding

KEPT = 1000  # rows of a batch whose exact state is kept
PREVIOUS = 3  # actions of Atari before the state: each of a step's 4 frames may repeat the former
PRIMING = 20  # frames after which the emulator's last action is the given one, but for 1 in 4²⁰
STATE = mujoco.mjtState.mjSTATE_INTEGRATION


def simulator_state(env: gym.Env) -> np.ndarray | None:
    """All that the next step depends on: of MuJoCo (n,) float64, of Atari (n,) int64; else None."""
    inner: Any = env.unwrapped
    if isinstance(env.unwrapped, MujocoEnv):
        state = np.empty(mujoco.mj_stateSize(inner.model, STATE))
        mujoco.mj_getState(inner.model, inner.data, state, STATE)
        return state
    if hasattr(inner, "ale"):
        content = inner.clone_state(include_rng=True).serialize()
        # With a checksum: what an emulator makes of damaged bytes is not known.
        return np.append([len(content), zlib.crc32(content)], _words(content))
    return None


def _words(content: bytes) -> np.ndarray:
    """Bytes as int64, filled up with zeros."""
    return np.frombuffer(content + bytes(-len(content) % 8), "<i8")


def restore(env: gym.Env, state: np.ndarray, row: int, replay_buffer: Any) -> np.ndarray:
    """Begin an episode at what was kept of this row of the batch. Returns: its observation.

    Raises: ValueError, or what the environment raises, where the state is damaged or another's.
    """
    inner: Any = env.unwrapped
    if isinstance(env.unwrapped, MujocoEnv):
        env.reset()
        mujoco.mj_setState(inner.model, inner.data, state, STATE)
        mujoco.mj_forward(inner.model, inner.data)
        return np.array(inner._get_obs())  # a copy: it may be one array that is overwritten
    if hasattr(inner, "ale"):
        return _restore_emulator(env, state, row, replay_buffer)
    return _play_again(env, state, row, replay_buffer)


def _restore_emulator(env: gym.Env, state: np.ndarray, row: int, replay_buffer: Any) -> np.ndarray:
    from ale_py import ALEState

    previous, (length, checksum) = state[:PREVIOUS], state[PREVIOUS : PREVIOUS + 2]
    content = state[PREVIOUS + 2 :].astype("<i8").tobytes()[: int(length)]
    if (len(content), zlib.crc32(content)) != (length, checksum):
        raise ValueError("a checksum differs")
    transition, inner, stack = replay_buffer.rows([row]), env.unwrapped, env
    frames = transition.state[0].cpu().numpy()
    while not isinstance(stack, gym.wrappers.FrameStackObservation):
        stack = stack.env  # type: ignore[attr-defined]

    def begin(action: int) -> None:
        env.reset()
        for _ in range(PRIMING):  # the only way to set what a sticky action repeats
            inner.step(action)
        inner.restore_state(ALEState(content))  # type: ignore[attr-defined]
        stack.obs_queue.extend(frames)  # its length is that of the stack: the former ones go

    # The action that the last frame before executed is not known, the row's successor is.
    for action in dict.fromkeys(previous.tolist()):
        begin(action)
        shown, _, terminated, *_ = env.step(int(transition.action))
        if terminated == (transition.not_done.item() == 0) and (
            terminated or np.array_equal(shown, transition.next_state[0].cpu().numpy())
        ):
            begin(action)
            return frames
    raise ValueError("the next step is not the batch's")


def _play_again(env: gym.Env, state: np.ndarray, row: int, replay_buffer: Any) -> np.ndarray:
    inner: Any = env.unwrapped
    steps, generator = int(state[0]), state[1:]
    inner.np_random, _ = seeding.np_random(0)
    inner.np_random.bit_generator.state = _generator_state(generator)
    observation, _ = env.reset()
    actions = replay_buffer.rows(np.arange(row - steps, row)).action.cpu().numpy()
    if isinstance(env.action_space, gym.spaces.Discrete):
        actions = actions[:, 0]
    for action in actions:
        observation, *_ = env.step(action)
    return observation


def _generator_words(generator: np.random.Generator) -> np.ndarray | None:
    """The state of gymnasium's own kind of generator as six words; None of another kind."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        return None
    large = [state["state"][name].to_bytes(16, "little") for name in ("state", "inc")]
    small = [state[name].to_bytes(8, "little") for name in ("has_uint32", "uinteger")]
    return _words(b"".join(large + small))


def _generator_state(words: np.ndarray) -> dict[str, Any]:
    content = words.astype("<i8").tobytes()
    numbers = [int.from_bytes(content[a:b], "little") for a, b in [(0, 16), (16, 32)]]
    return {
        "bit_generator": "PCG64",
        "state": {"state": numbers[0], "inc": numbers[1]},
        "has_uint32": int(words[4]),
        "uinteger": int(words[5]),
    }


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


class Snapshots(gym.Wrapper[Any, Any, Any, Any]):
    """The environment, whose exact state is kept at 500 to 1,000 of the given timesteps, or all.

    Each timestep draws a number, and those below a bound are chosen, which is halved as often as
    the timesteps double: so a longer run chooses among the steps of a shorter one what that kept.
    """

    def __init__(self, env: gym.Env, timesteps: range, seed: int) -> None:
        """`timesteps` are those whose transitions the batch will hold; the kept are drawn."""
        super().__init__(env)
        bound = 0.5 ** max(0, math.ceil(math.log2(max(1, len(timesteps)) / KEPT)))
        # A generator of its own: what is kept must not change what is played.
        drawn = np.random.default_rng(seed).random(timesteps.stop)[timesteps.start :]
        self.chosen = {timesteps[place] for place in np.flatnonzero(drawn < bound)}
        self.states: dict[int, np.ndarray] = {}
        # Of the episode: the generator as it began, the steps since, and the last actions.
        self.generator: np.ndarray | None = None
        self.steps, self.previous = 0, [0] * PREVIOUS

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The environment's own: it is made from that, not from this wrapper."""
        return self.env.spec

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As the environment's own."""
        generator = self.unwrapped.np_random if seed is None else seeding.np_random(seed)[0]
        self.generator = _generator_words(generator)
        self.steps, self.previous = 0, [0] * PREVIOUS  # action 0 of Atari is none, a reset's
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """As the environment's own."""
        self.steps, self.previous = self.steps + 1, [action, *self.previous[:-1]]
        return self.env.step(action)

    def keep(self, timestep: int) -> None:
        """Before the step of this timestep: keep the state if it was chosen."""
        if timestep not in self.chosen:
            return
        state = simulator_state(self.env)
        if state is None and self.generator is not None:
            state = np.append(self.steps, self.generator)
        elif state is not None and hasattr(self.unwrapped, "ale"):
            state = np.append(np.array(self.previous), state)
        if state is not None:
            self.states[timestep] = state

    def state_dict(self) -> dict[str, Any]:
        """The states kept so far, by timestep. The episode's are those of who plays it again."""
        return {str(step): torch.from_numpy(state) for step, state in self.states.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put such states back, of a shorter run those that are chosen here, too."""
        states = {int(step): one.numpy() for step, one in state.items()}
        self.states = {step: one for step, one in states.items() if step in self.chosen}

    def rows(self, replay_buffer: Any) -> np.ndarray | None:
        """(n, 1 + state): a row's position from the oldest held (0), and its state; None for none.

        float64 of MuJoCo, else int64; shorter states are filled up with zeros.
        """
        oldest = replay_buffer.added - replay_buffer.size
        plays_again = simulator_state(self.env) is None
        rows = []
        for timestep, state in self.states.items():
            needed = timestep - int(state[0]) if plays_again else timestep
            if oldest <= needed and timestep < replay_buffer.added:
                rows.append(np.append(timestep - oldest, state))
        if not rows:
            return None
        width = max(map(len, rows))
        return np.stack([np.pad(row, (0, width - len(row))) for row in rows])
