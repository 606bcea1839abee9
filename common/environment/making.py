"""Making an environment from its id: old ids under their present names, clear refusals."""

import importlib
import importlib.metadata
import importlib.util
import re
import warnings
from typing import Any

import ale_py
import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from common.environment.elsewhere import advice
from common.environment.isolated import Isolated
from common.environment.minatar import Reseeded, is_minatar
from common.environment.users_modules import make_way
from common.errors import InputError
from common.notes import note

# gym's -v1/-v2/-v3 tasks are gymnasium's -v4: its models and rewards on the maintained engine. -v5
# are other tasks. Not Pusher, whose -v4 needs an engine of before version 3.
MUJOCO = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|"
    "Reacher|Swimmer|Walker2d"
)
EPISODE_STEPS = 100_000  # of an environment without a limit: a policy may never end an episode
# Our wrappers skip frames and limit the episode, so the emulator must do neither: its own limit
# ends an episode within a step, before the frame that step should show.
ATARI_OPTIONS = {"frameskip": 1, "max_num_frames_per_episode": None, "obs_type": "grayscale"}
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
    """The environment of this id, isolated from its caller; Atari's games as bare as they come.

    `options` are gymnasium.make's. Raises: InputError where there is none, saying what there is.
    """
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each environment
    if mujoco.get_mju_user_warning() is None:  # without one MuJoCo writes a file where it is run
        mujoco.set_mju_user_warning(_note_warning)
    try:
        gym.register_envs(ale_py)
        if re.fullmatch(rf"({MUJOCO})-v[23]", env_id):
            import gymnasium_robotics

            gym.register_envs(gymnasium_robotics)
        spec = _spec(env_id)
        atari = spec is not None and _makes_atari(spec)
        if spec is not None and atari:
            options = _for_atari(env_id, spec, options)
        with warnings.catch_warnings():
            # v4 is asked for on purpose: it is the papers' task. An id without a version is an
            # error below. Every other warning is shown.
            warnings.filterwarnings("ignore", message=r".*The environment \S+ is out of date")
            warnings.filterwarnings("ignore", message=r".*Using the latest versioned environment")
            env = gym.make(env_id, **options)
            if isinstance(env.unwrapped, ale_py.AtariEnv):
                if spec is not None and not atari:  # registered as a function that makes it
                    env.close()
                    env = gym.make(env_id, **_for_atari(env_id, spec, options))
                _require_bare(env_id, env)
    except InputError:
        raise
    except Exception as error:  # an environment's own code may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        reason = advice(env_id) or reason
        raise InputError(f"--env {env_id} cannot be made: {reason}") from error
    if env.spec is not None and env.spec.id != env_id.split(":")[-1]:
        full = f"{env_id}-v4" if re.fullmatch(MUJOCO, env_id) else env.spec.id
        raise InputError(f"--env {env_id} names no version; give the full id, such as {full}")
    return Isolated(Reseeded(env) if is_minatar(env) else env)


def _spec(env_id: str) -> EnvSpec | None:
    """How the id is registered; a module before a colon is imported first. None where it is not.

    So is the installed package that declares the part before a slash to be its own (MinAtar).
    """
    module, _, name = env_id.rpartition(":")
    if module:
        make_way(module)
        importlib.import_module(module)
    elif (namespace := name.rpartition("/")[0]) and name not in gym.registry:
        for plugin in importlib.metadata.entry_points(group="gymnasium.envs", name=namespace):
            plugin.load()()
    return gym.registry.get(name)


def _makes_atari(spec: EnvSpec) -> bool:
    """Whether it is a game of the Arcade Learning Environment, whatever its id and module."""
    creator: Any = spec.entry_point
    creator = load_env_creator(creator) if isinstance(creator, str) else creator
    return isinstance(creator, type) and issubclass(creator, ale_py.AtariEnv)


def _for_atari(env_id: str, spec: EnvSpec, options: dict[str, Any]) -> dict[str, Any]:
    """What a game is made with: `options`, and that nothing but our wrappers cuts or skips.

    Raises: InputError where the game is to show its memory or sounds, not its screen.
    """
    asked = spec.kwargs | options
    if clash := ATARI_OPTIONS.keys() & options.keys():
        raise InputError(f"--env {env_id}: {', '.join(sorted(clash))} of Atari's games is fixed")
    if asked.get("obs_type") == "ram" or asked.get("sound_obs"):
        raise InputError(
            f"--env {env_id} shows the console's memory or its sounds: Atari's games are learned "
            f"from the screen here, as in ALE/Pong-v5"
        )
    if spec.kwargs.get("frameskip", 4) not in (1, 4):
        note(f"{env_id}: its frame skip, {spec.kwargs['frameskip']}, is replaced by 4")
    if spec.max_episode_steps is not None and "max_episode_steps" not in options:
        limit = f"{spec.max_episode_steps:,}"
        note(f"{env_id}: its limit of {limit} steps is not used; --max_episode_steps sets one")
    return options | ATARI_OPTIONS | {"max_episode_steps": -1}


def _require_bare(env_id: str, env: gym.Env) -> None:
    """Raises: InputError for a game whose own wrappers or frame skip would come beside ours."""
    inner = env
    while isinstance(inner, gym.wrappers.PassiveEnvChecker | gym.wrappers.OrderEnforcing):
        inner = inner.env
    if not isinstance(inner, ale_py.AtariEnv) or inner._frameskip != 1:
        raise InputError(
            f"--env {env_id} is a game of Atari with wrappers or a frame skip of its own: register "
            "ale_py:AtariEnv, or a function that hands its keyword arguments on to it"
        )


def _note_warning(text: str) -> None:
    """MuJoCo's own warning, once a kind: it says the time, too."""
    note(f"MuJoCo: {text.partition(' Time =')[0].strip()}")


def with_time_limit(env: gym.Env, asked: int | None) -> gym.Env:
    """The environment, its episodes cut at 100,000 steps where it has no limit of its own.

    A line says so, unless no limit is what was `asked` for, by −1.
    """
    if env.spec is None or env.spec.max_episode_steps is not None:
        return env
    if asked is None:
        note(
            f"{env.spec.id} has no step limit: an episode is cut after {EPISODE_STEPS:,} steps; "
            "--max_episode_steps sets another"
        )
    return gym.wrappers.TimeLimit(env, EPISODE_STEPS)


def needs_rescaling(actions: gym.spaces.Box) -> bool:
    """Whether bounds are not symmetric or not the same in every dimension: then actions are scaled.

    Agents of continuous_BCQ act in [−m, m]^A; what imports data must scale as its make_env does.
    """
    low, high = actions.low.astype(np.float64), actions.high.astype(np.float64)
    return bool(np.any(low != -high) or np.any(high != high[0]))


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
