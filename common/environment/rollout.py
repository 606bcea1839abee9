"""Interact with an environment, and evaluate a policy on several episodes at once."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, SupportsFloat

import gymnasium as gym
import numpy as np
import torch

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
    first: int = 0,
) -> Iterator[Step]:
    """Steps `first` … `timesteps` − 1 of the policy `act(state, timestep)`, episode after episode.

    The environment is seeded once, before the first episode; where `first` is not 0 it must be as
    that many steps, the last one an episode's, have left it. A step's `next_state` is the true
    successor, also where a time limit cut the episode.

    Raises: InputError where the environment fails, and as `observed` does.
    """
    state = reset(env, first, seed if first == 0 else None)
    begin_episode()
    episode_return = 0.0
    for timestep in range(first, timesteps):
        action = act(state, timestep)
        with reporting_failures(env, timestep):
            next_state, given, terminated, truncated, _ = env.step(action)
        reward = observed(env, next_state, given)
        ended = terminated or truncated
        episode_return += reward
        finished = episode_return if ended else None
        yield Step(timestep, state, action, next_state, reward, terminated, truncated, finished)
        state = next_state
        if ended:
            state = reset(env, timestep + 1)
            begin_episode()
            episode_return = 0.0


def reset(env: gym.Env, timestep: int, seed: int | None = None) -> np.ndarray:
    """The first state of an episode. Raises: as `reporting_failures` and `observed` do."""
    with reporting_failures(env, timestep):
        state, _ = env.reset(seed=seed)
    observed(env, state)
    return state


class reporting_failures:
    """Raises: InputError naming environment and step for any error of the environment's own.

    A class, since a generator's context would cost as much as some environments' steps.
    """

    def __init__(self, env: gym.Env, timestep: int | None = None) -> None:
        self.env, self.timestep = env, timestep

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError | MemoryError):
            where = "while evaluating" if self.timestep is None else f"at step {self.timestep:,}"
            text = " ".join(str(error).split())[:200]
            raise InputError(
                f"{_name(self.env)} failed {where} ({type(error).__name__}: {text}): mend the "
                "environment; what was saved so far is kept"
            ) from error


def _name(env: gym.Env) -> str:
    return env.spec.id if env.spec else "the environment"


def observed(env: gym.Env, state: np.ndarray, reward: SupportsFloat = 0.0) -> float:
    """The reward as a float; state and reward must be finite in float32.

    Raises: InputError where the environment gives NaN, infinity, or states of another shape than
    it declares.
    """
    name = _name(env)
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
    return play_episodes(select_action, envs, seed).returns.tolist()


class Played(NamedTuple):
    """Episodes played side by side: their returns and their lengths in steps, (B,) each."""

    returns: np.ndarray
    lengths: np.ndarray


def play_episodes(
    select_action: Callable[[np.ndarray], np.ndarray], envs: list[gym.Env], seed: int
) -> Played:
    """The episodes of an evaluation, with their lengths. Raises: InputError as `observed` does."""
    with preserved_generators(seed + 100):
        states = []
        for i, env in enumerate(envs):
            with reporting_failures(env):
                states.append(env.reset(seed=seed + 100 + i)[0])
        return play(select_action, envs, states, select_action(np.stack(states)))


def play(
    select_action: Callable[[np.ndarray], np.ndarray],
    envs: list[gym.Env],
    states: list[np.ndarray],
    actions: np.ndarray,
    discount: float = 1.0,
) -> Played:
    """One episode in each environment, all side by side to their own ends; returns are Σ γ^t r_t.

    The environments stand at `states`; `actions` (B, A) come first, then the policy's own. Ends at
    γ^t < 0.001 too.

    Raises: InputError as `observed` does.
    """
    # Not gymnasium's SyncVectorEnv: that one restarts finished episodes and plays on, which here
    # would cost candidate actions and simulator steps that count for nothing.
    returns, lengths = np.zeros(len(envs)), np.zeros(len(envs), int)
    weight, running, states = 1.0, list(range(len(envs))), list(states)
    while True:
        still = []
        for i, action in zip(running, actions, strict=True):
            with reporting_failures(envs[i]):
                states[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += weight * observed(envs[i], states[i], reward)
            lengths[i] += 1
            if not (terminated or truncated):
                still.append(i)
        running, weight = still, weight * discount
        if not running or weight < SMALLEST_WEIGHT:
            return Played(returns, lengths)
        actions = select_action(np.stack([states[i] for i in running]))
