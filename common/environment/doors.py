"""What each variant learns from: the one door to environments of main.py and import_dataset.py."""

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    AtariPreprocessing,
    FlattenObservation,
    FrameStackObservation,
    TimeLimit,
)

from common.environment.isolated import rounds
from common.environment.making import make, needs_rescaling, require_choice, with_time_limit
from common.errors import InputError
from common.notes import note

HISTORY = 4  # frames a state of Atari
FRAME = 84  # pixels, both ways
SMALL = 32  # the longest side of an image that is learned from as it is
ATARI_STEPS = 27_000  # an episode's limit: 30 minutes of play at 60 frames a second, 4 a step


def is_atari(env: gym.Env) -> bool:
    """Whether the environment is a game of the Arcade Learning Environment, whatever its id."""
    return isinstance(env.unwrapped, ale_py.AtariEnv)


def is_small_image(states: gym.Space) -> bool:
    """Whether states are images (H, W, C) of bytes or bools that need no preprocessing: MinAtar's.

    Sides of 3 to 32, as the trunk for them takes.
    """
    if not isinstance(states, spaces.Box) or len(states.shape) != 3:
        return False
    whole = states.dtype in (np.dtype(np.uint8), np.dtype(bool))
    return whole and all(3 <= side <= SMALL for side in states.shape[:2])


def shows_frames(env: gym.Env) -> bool:
    """Whether the states of an environment made here are stacks of frames: Atari, small images."""
    assert env.observation_space.shape is not None
    return len(env.observation_space.shape) > 1


def taken(env: gym.Env) -> gym.Space:
    """The actions that the environment itself takes, before any scaling or rounding of ours."""
    space: gym.Space = env.get_wrapper_attr("taken")
    return space


def is_rescaled(env: gym.Env) -> bool:
    """Whether a continuous environment takes other actions than those chosen, scaled."""
    space = taken(env)
    return isinstance(space, spaces.Box) and needs_rescaling(space)


def make_continuous(env_id: str, **options: Any) -> gym.Env:
    """An environment with vector states and actions in [−m, m], the same m in every dimension.

    Actions whose bounds are not symmetric, or differ from one dimension to the next, are rescaled
    to [−1, 1] by gymnasium's wrapper; where they are whole numbers, what is chosen is rounded.
    States and rewards are as the environment gives them. `options` are gymnasium.make's, such as
    max_episode_steps=-1 for no time limit.

    Raises: InputError for an unknown id, discrete or unbounded actions, images, structured states.
    """
    env = make(env_id, **options)
    actions, states = env.action_space, env.observation_space
    if isinstance(actions, spaces.Discrete):
        raise InputError(f"--env {env_id} has discrete actions: discrete_BCQ/main.py serves it")
    if not (isinstance(actions, spaces.Box) and len(actions.shape) == 1 and actions.is_bounded()):
        raise InputError(
            f"--env {env_id} has actions {actions}; continuous_BCQ needs a bounded vector (Box), "
            "as in Hopper-v4 or Pendulum-v1"
        )
    require_choice(env_id, actions)
    if not (isinstance(states, spaces.Box) and len(states.shape) == 1 and states.shape[0]):
        raise InputError(
            f"--env {env_id} has states {states}; continuous_BCQ needs a vector (Box), as in "
            "Hopper-v4 or Pendulum-v1"
        )
    if rounds(taken(env)):
        note(f"{env_id} takes whole numbers, {taken(env)}: the actions chosen are rounded to them")
    if needs_rescaling(actions):
        # Rescaling rounds: what it makes of -1 or 1 may lie a float32 beyond the bounds.
        env = gym.wrappers.TransformAction(
            env, lambda a: a.clip(actions.low, actions.high), actions
        )
        one = actions.dtype.type(1)
        env = gym.wrappers.RescaleAction(env, -one, one)
    return with_time_limit(env, options.get("max_episode_steps"))


def make_discrete(env_id: str, **options: Any) -> gym.Env:
    """An environment with actions 0 … K−1; states are vectors, Atari's last 4 frames or one image.

    Atari: each step is 4 frames of the emulator, shown as the maximum of the last two, 84×84, grey;
    4 such frames of history, the newest last, zeros before an episode's first; an episode ends with
    the game, whose last frame is not shown, or after 27,000 steps. Sticky actions are as the id has
    them. Small images are stacks of one frame, (1, H, W, C). Other states are put together to one
    vector, numbers of a finite set (FrozenLake, Taxi, Blackjack) one-hot. `options` are
    gymnasium.make's.

    Raises: InputError for an unknown id, continuous actions, or other images than these.
    """
    env = make(env_id, **options)
    actions, states = env.action_space, env.observation_space
    if isinstance(actions, spaces.Box):
        raise InputError(f"--env {env_id} has continuous actions: continuous_BCQ/main.py serves it")
    if not isinstance(actions, spaces.Discrete) or actions.start != 0:
        raise InputError(
            f"--env {env_id} has actions {actions}; discrete_BCQ needs one number from 0 up "
            "(Discrete), as in CartPole-v1"
        )
    if is_atari(env):
        env = AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=FRAME)
        env = TimeLimit(env, max(options.get("max_episode_steps") or 0, 0) or ATARI_STEPS)
        return FrameStackObservation(env, HISTORY, padding_type="zero")
    if is_small_image(states):
        return FrameStackObservation(with_time_limit(env, options.get("max_episode_steps")), 1)
    image = isinstance(states, spaces.Box) and len(states.shape) != 1
    if image or not states.is_np_flattenable or not spaces.flatdim(states):
        raise InputError(
            f"--env {env_id} has states {states}; discrete_BCQ needs vectors, as in CartPole-v1, "
            f"an Atari game, or images (H, W, C) of bytes or bools, 3 to {SMALL} both ways"
        )
    env = with_time_limit(env, options.get("max_episode_steps"))
    return env if isinstance(states, spaces.Box) else FlattenObservation(env)
