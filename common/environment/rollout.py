"""Interact with an environment, and evaluate a policy on several episodes at once."""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, SupportsFloat

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

from common.data.replay import LARGE, large_states
from common.errors import InputError
from common.notes import note

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
    episode: "EpisodeUnderWay | None" = None,
    give_up: Callable[[], None] = lambda: None,
) -> Iterator[Step]:
    """Steps `first` … `timesteps` − 1 of the policy `act(state, timestep)`, episode after episode.

    The environment is seeded once, before the first episode; where `first` is not 0, `episode` is
    as that many steps have left it. Where it was within an episode that cannot be played again
    exactly, `give_up` is called, a line says so, and the episode is begun again. A step's
    `next_state` is the true successor, also where a time limit cut the episode.

    Raises: InputError where the environment fails, and as `observed` does.
    """
    episode = episode or EpisodeUnderWay(env)
    if first < timesteps and not episode.play_again(first):
        tqdm.write(
            f"{_name(env)} is no longer as it was at step {first:,}, within an episode: the same "
            "actions lead elsewhere. The episode is given up and begun again; the run goes on, but "
            "not as if it had never stopped"
        )
        give_up()
        begin_episode()
    for timestep in range(first, timesteps):
        if episode.ended:
            episode.begin(timestep, seed if timestep == 0 else None)
            begin_episode()
        state = episode.state
        action = act(state, timestep)
        next_state, reward, terminated, truncated = episode.step(action, timestep)
        finished = episode.episode_return if episode.ended else None
        yield Step(timestep, state, action, next_state, reward, terminated, truncated, finished)


class EpisodeUnderWay:
    """An environment and the episode that it is in: a checkpoint's part, saved at any step.

    Between episodes an environment has little to remember, what `between_episodes` gives. Within
    one the rest is not saved but made again: that is put back, and the actions since are played
    once more. Whether that was exact, the last state and the return tell.
    """

    def __init__(self, env: gym.Env) -> None:
        self.env = env
        self.ended, self.state, self.episode_return = True, np.empty(0), 0.0
        self._before: dict[str, Any] = {}  # what the environment remembered when this one began
        self._seed: int | None = None
        self._actions: list[np.ndarray] = []
        self._saved: dict[str, Any] | None = None  # an episode that is to be played again

    def begin(self, timestep: int, seed: int | None = None) -> None:
        """The first state of an episode. Raises: as `reset` does."""
        # With a seed it begins alike, whatever was before.
        self._before = between_episodes(self.env) if seed is None else {}
        self._seed, self._actions = seed, []
        self.state, self.episode_return = reset(self.env, timestep, seed), 0.0
        self.ended = False

    def step(self, action: Any, timestep: int) -> tuple[np.ndarray, float, bool, bool]:
        """The next state, the reward, and whether it is terminal or was cut.

        Raises: InputError where the environment fails, and as `observed` does.
        """
        self._actions.append(np.array(action))
        with reporting_failures(self.env, timestep):
            self.state, given, terminated, truncated, _ = self.env.step(action)
        reward = observed(self.env, self.state, given)
        self.episode_return += reward
        self.ended = bool(terminated or truncated)
        return self.state, reward, terminated, truncated

    def play_again(self, timestep: int) -> bool:
        """Go on within the saved episode, if there is one; False where it had to begin anew."""
        if self._saved is None:
            return True
        saved, self._saved = self._saved, None
        self.begin(timestep, saved["seed"])
        for kind, action in zip(saved["types"], saved["actions"].numpy(), strict=True):
            if not self.ended:
                self.step(action.astype(kind) if action.ndim else action.item(), timestep)
        if not self.ended and self._digest() == saved["digest"]:
            return True
        remember(self.env, saved)
        self.begin(timestep, saved["seed"])
        return False

    def _digest(self) -> str:
        state = hashlib.sha256(np.asarray(self.state).tobytes()).hexdigest()
        return f"{state} {self.episode_return!r}"

    def state_dict(self) -> dict[str, Any]:
        """What the environment remembers; within an episode from its begin, and the actions."""
        if self._saved is not None:
            return self._saved
        if self.ended:
            return between_episodes(self.env)
        return self._before | {
            "seed": self._seed,
            "actions": torch.from_numpy(np.stack(self._actions)),
            "types": "".join(action.dtype.char for action in self._actions),
            "digest": self._digest(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`interact` then goes on from there."""
        remember(self.env, state)
        self.ended, self._saved = True, state if "actions" in state else None


def between_episodes(env: gym.Env) -> dict[str, Any]:
    """What an environment keeps from one episode to the next: its generator, Atari's emulator too.

    The emulator's state holds the generator of its sticky actions. An environment of a user's own
    that keeps more than gymnasium's `np_random` goes on from that alone, and not exactly.
    """
    inner: Any = env.unwrapped
    state = {"np_random": inner.np_random.bit_generator.state}
    if hasattr(inner, "ale"):
        state["ale"] = inner.clone_state(include_rng=True).serialize()
    return state


def remember(env: gym.Env, state: dict[str, Any]) -> None:
    """Put such a state back, if it is one. The environment is then to be reset without a seed."""
    if "np_random" not in state:
        return
    inner: Any = env.unwrapped
    inner.np_random.bit_generator.state = state["np_random"]
    if "ale" in state:
        from ale_py import ALEState

        inner.restore_state(ALEState(state["ale"]))


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
    array = np.asarray(state)
    if array.dtype.kind in "fiu" and array.dtype.itemsize > 1:
        largest = np.abs(array).max()
        if not largest <= FLOAT32_MAX:
            raise InputError(f"{name} gave the state {state}: mend the environment, or its actions")
        if largest >= LARGE:
            note(large_states(name))
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
