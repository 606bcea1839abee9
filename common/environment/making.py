"""Making an environment from its id: old ids under their present names, clear refusals."""

import importlib.util
import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from common.errors import InputError

# gym's -v1/-v2/-v3 tasks are gymnasium's -v4: its models and rewards on the maintained engine. -v5
# are other tasks. Not Pusher, whose -v4 needs an engine of before version 3.
MUJOCO = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|"
    "Reacher|Swimmer|Walker2d"
)
EPISODE_STEPS = 100_000  # of an environment without a limit: a policy may never end an episode
SUCCESSORS = {"Pendulum-v0": "Pendulum-v1", "LunarLander-v2": "LunarLander-v3",
              "LunarLanderContinuous-v2": "LunarLanderContinuous-v3"}  # fmt: skip


def current_id(env_id: str) -> str:
    """The id an old one runs as; any other id as it is.

    The -v2/-v3 ids of MuJoCo stay as they are where gymnasium-robotics and mujoco-py (the original
    engine, requirements-legacy.txt) are installed.
    """
    match = re.fullmatch(rf"({MUJOCO})-v([123])", env_id)
    if match:
        legacy = all(importlib.util.find_spec(p) for p in ("mujoco_py", "gymnasium_robotics"))
        return env_id if legacy and match[2] != "1" else f"{match[1]}-v4"
    return SUCCESSORS.get(env_id, env_id)


def make(env_id: str, **options: Any) -> gym.Env:
    """The environment of this id. Raises: InputError where there is none, saying what there is."""
    try:
        if re.fullmatch(rf"({MUJOCO})-v[23]", env_id):
            import gymnasium_robotics

            gym.register_envs(gymnasium_robotics)
        if env_id not in gym.registry:  # so that a game of Atari is known for what it is
            import ale_py

            gym.register_envs(ale_py)
        with warnings.catch_warnings():
            # v4 is asked for on purpose: it is the papers' task. An id without a version is an
            # error below. Every other warning is shown.
            warnings.filterwarnings("ignore", message=r".*The environment \S+ is out of date")
            warnings.filterwarnings("ignore", message=r".*Using the latest versioned environment")
            env = gym.make(env_id, **options)
    except Exception as error:  # an environment's own code may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(f"--env {env_id} cannot be made: {reason}") from error
    if env.spec is not None and env.spec.id != env_id.split(":")[-1]:
        full = f"{env_id}-v4" if re.fullmatch(MUJOCO, env_id) else env.spec.id
        raise InputError(f"--env {env_id} names no version; give the full id, such as {full}")
    return env


def with_time_limit(env: gym.Env) -> gym.Env:
    """The environment, its episodes cut at 100,000 steps where it has no limit of its own."""
    if env.spec is not None and env.spec.max_episode_steps is None:
        return gym.wrappers.TimeLimit(env, EPISODE_STEPS)
    return env


def needs_rescaling(actions: gym.spaces.Box) -> bool:
    """Whether bounds are not symmetric or not the same in every dimension: then actions are scaled.

    Agents of continuous_BCQ act in [−m, m]^A; what imports data must scale as its make_env does.
    """
    return bool(np.any(actions.low != -actions.high) or np.any(actions.high != actions.high[0]))


def require_choice(env_id: str, actions: gym.spaces.Box) -> None:
    """Raises: InputError where the bounds of a dimension leave no choice: it cannot be scaled."""
    if np.any(actions.low >= actions.high):
        raise InputError(f"--env {env_id} has actions {actions}: a dimension leaves no choice")


def announce_current_id(env_id: str) -> str:
    """`current_id`, with a line on the screen where it differs from the id asked for."""
    current = current_id(env_id)
    if current != env_id:
        why = "its successor" if env_id in SUCCESSORS else "the same task on the maintained engine"
        if env_id.startswith("Ant-"):
            why += ", but without the contact forces in its states (27 numbers, not 111)"
        print(f"{env_id} runs as {current}, {why}")
    return current
