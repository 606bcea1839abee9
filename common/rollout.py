"""Interact with an environment, and evaluate a policy on several episodes at once."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, SupportsFloat

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

from common.errors import InputError

FLOAT32_MAX = float(np.finfo(np.float32).max)
SMALLEST_WEIGHT = 1e-3  # γ^t below which a discounted return counts no more rewards


class Step(NamedTuple):
    """One step of interaction; `episode_return` is the undiscounted return where it ended one."""

    timestep: int
    state: np.ndarray
    action: Any
    next_state: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    episode_return: float | None

    @property
    def transition(self) -> tuple[Any, ...]:
        """What a replay buffer's `add` takes."""
        return self[1:7]

    @property
    def finished(self) -> list["Episode"]:
        """The episode that this step ended, in a list; none where it goes on."""
        whole = self.episode_return
        return [] if whole is None else [Episode(self.timestep + 1, whole)]


class Episode(NamedTuple):
    """A finished episode: the steps of interaction until its end, its undiscounted return."""

    end: int
    episode_return: float


def interact(
    env: gym.Env,
    act: Callable[[np.ndarray, int], Any],
    timesteps: int,
    seed: int,
    begin_episode: Callable[[], None] = lambda: None,
) -> Iterator[Step]:
    """`timesteps` steps of the policy `act(state, timestep)`, new episodes begun as old ones end.

    The environment is seeded once, before the first episode. A step's `next_state` is the true
    successor, also where a time limit cut the episode.
    """
    state, _ = env.reset(seed=seed)
    observed(env, state)
    begin_episode()
    episode_return = 0.0
    for timestep in range(timesteps):
        action = act(state, timestep)
        next_state, given, terminated, truncated, _ = env.step(action)
        reward = observed(env, next_state, given)
        ended = terminated or truncated
        episode_return += reward
        finished = episode_return if ended else None
        yield Step(timestep, state, action, next_state, reward, terminated, truncated, finished)
        state = next_state
        if ended:
            state, _ = env.reset()
            observed(env, state)
            begin_episode()
            episode_return = 0.0


def observed(env: gym.Env, state: np.ndarray, reward: SupportsFloat = 0.0) -> float:
    """The reward as a float; state and reward must be finite in float32.

    Raises: InputError where the environment gives NaN, infinity, or states of another shape than
    it declares.
    """
    name = env.spec.id if env.spec else "the environment"
    if np.shape(state) != env.observation_space.shape:
        raise InputError(
            f"{name} declares states of shape {env.observation_space.shape} and gave one of shape "
            f"{np.shape(state)}: mend the environment"
        )
    try:
        number = float(reward)
    except (TypeError, ValueError):
        number = float("nan")
    if not abs(number) <= FLOAT32_MAX:
        raise InputError(f"{name} gave the reward {reward}: mend the environment")
    if np.asarray(state).dtype.kind == "f" and not (np.abs(state) <= FLOAT32_MAX).all():
        raise InputError(f"{name} gave the state {state}: mend the environment, or its actions")
    return number


def collect(
    env: gym.Env,
    act: Callable[[np.ndarray, int], Any],
    replay_buffer: Any,
    timesteps: int,
    seed: int,
    begin_episode: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Add `timesteps` transitions of a fixed policy; gives the finished episodes."""
    episodes: list[Episode] = []
    steps = interact(env, act, timesteps, seed, begin_episode)
    for step in tqdm(steps, total=timesteps, unit="step", disable=None):
        replay_buffer.add(*step.transition)
        episodes += step.finished
    return episodes


@contextmanager
def preserved_generators(seed: int) -> Iterator[None]:
    """Seed python's, numpy's and torch's generators for the block, then put them back."""
    python, legacy, torch_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    seed_generators(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(torch_cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def seed_generators(seed: int) -> None:
    """Seed python's, numpy's and torch's global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def evaluate(
    select_action: Callable[[np.ndarray], np.ndarray], envs: list[gym.Env], seed: int
) -> list[float]:
    """The undiscounted returns of one episode in each of `envs`, side by side to their own ends.

    Episode i starts from seed `seed + 100 + i`, the same starts at every call. `select_action` is
    called once a step with the states (B, …) of the B episodes still running. Training's random
    generators are as before afterwards.

    Raises: InputError as `observed` does.
    """
    with preserved_generators(seed + 100):
        states = [env.reset(seed=seed + 100 + i)[0] for i, env in enumerate(envs)]
        actions = select_action(np.stack(states))
        return discounted_returns(select_action, envs, states, actions).tolist()


def discounted_returns(
    select_action: Callable[[np.ndarray], np.ndarray],
    envs: list[gym.Env],
    states: list[np.ndarray],
    actions: np.ndarray,
    discount: float = 1.0,
) -> np.ndarray:
    """Σ γ^t r_t of one episode in each environment, all side by side to their own ends, (B,).

    The environments stand at `states`; `actions` (B, A) come first, then the policy's own. Ends at
    γ^t < 0.001 too.

    Raises: InputError as `observed` does.
    """
    # Not gymnasium's SyncVectorEnv: that one restarts finished episodes and plays on, which here
    # would cost candidate actions and simulator steps that count for nothing.
    returns, weight, running = np.zeros(len(envs)), 1.0, list(range(len(envs)))
    states = list(states)
    while True:
        still = []
        for i, action in zip(running, actions, strict=True):
            states[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += weight * observed(envs[i], states[i], reward)
            if not (terminated or truncated):
                still.append(i)
        running, weight = still, weight * discount
        if not running or weight < SMALLEST_WEIGHT:
            return returns
        actions = select_action(np.stack([states[i] for i in running]))
