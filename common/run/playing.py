"""A saved policy, evaluated: what it earns, in numbers and as a video."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from common.agent import acting_part
from common.environment import rollout
from common.environment.scores import normalized_score
from common.errors import InputError
from common.files import Folders, read_json, refuse_existing, replacing
from common.precision import has_bf16
from common.run.flags import hyper_parameters
from common.saving import write_state


def saved_policy(
    args: argparse.Namespace, folders: Folders, algorithms: dict[str, type], typed: set[str]
) -> Path:
    """The file of the policy to be judged or used: --model, or what stage 3 saved last.

    `args` take over the algorithm and the hyper-parameters of the run's record, but for those whose
    flags were `typed`. Without a record a line says so.

    Raises: InputError where there is no such file, where its record is damaged, or where it learned
    in another environment than that of no --env.
    """
    model = (args.model or folders.model(f"{args.algorithm}_{args.buffer_name}")).resolve()
    if not model.is_file():
        raise InputError(
            f"no policy: {model} does not exist; --algorithm, --buffer_name, --env and --seed name "
            "what stage 3 saved, --model any file"
        )
    record = record_of(model)
    if not record.exists():
        print(f"no record {record}: the algorithm and its settings are those of the flags")
        return model
    made_with = read_json(record).get("arguments")
    if not isinstance(made_with, dict):
        raise InputError(f"{record} is no record of a run: --model another, or repair it")
    env = made_with.get("env")
    if env and args.env and env != args.env and "env" not in typed:
        raise InputError(f"{model.name} learned in {env}: add --env {env}, or the one to play")
    if env and args.env and env != args.env:
        print(f"{model.name} learned in {env}, and plays in {args.env}")
    if "algorithm" not in typed and made_with.get("algorithm") in list(algorithms):
        args.algorithm = made_with["algorithm"]
    names = [*hyper_parameters(algorithms[args.algorithm], args), "eval_eps", "precision"]
    names += ["normalize_states", *([] if args.env else ["held_out"])]
    # A record of the other variant has settings that are none here: its file is refused in a line.
    for name in filter(vars(args).__contains__, names):
        if name in made_with and name not in typed:
            setattr(args, name, _as_the_flag(record, name, made_with[name], getattr(args, name)))
    if args.precision == "bf16" and "precision" not in typed and not has_bf16(args.device):
        args.precision = "float32"
        print(f"{model.name} learned with --precision bf16, and plays in float32, as it must here")
    for name, kind in [("env_kwargs", dict), ("max_episode_steps", int)]:
        value = made_with.get(name)
        if value is not None and name not in typed:
            if not isinstance(value, kind):
                raise InputError(f"{record}: {name} is {value!r}, no --{name}: repair it")
            setattr(args, name, value)
    return model


def record_of(model: Path) -> Path:
    """The record of the run that saved this policy: beside it, or where the run has left both."""
    model = model.resolve()
    if (beside := model.with_suffix(".json")).exists():
        return beside
    return model.parent.parent / "results" / f"{model.stem.removesuffix('_best')}.json"


def _as_the_flag(record: Path, name: str, value: Any, default: Any) -> Any:
    """A recorded value. Raises: InputError where it is not of the flag's type."""
    numbers = (int, float)
    alike = type(value) is type(default) or (
        type(value) in numbers and (default is None or type(default) in numbers)
    )
    if not alike:
        raise InputError(f"{record}: {name} is {value!r}, which no --{name} can be: repair it")
    return value


def save_policy(args: argparse.Namespace, agent: Any, model: Path) -> None:
    """With --save_policy write there what acting needs of the agent, and beside it its record.

    Raises: InputError where it is the agent's own file, where there is no record, where either file
    exists (unless --overwrite), or where they cannot be written.
    """
    if args.save_policy is None:
        return
    record, beside = record_of(model), args.save_policy.with_suffix(".json")
    if beside == args.save_policy:
        raise InputError(
            f"--save_policy {beside}: that is its record's name, a policy's ends in .pt"
        )
    if args.save_policy.resolve() == model:
        raise InputError(f"--save_policy {model}: the whole agent lies there, name another file")
    if not record.exists():
        raise InputError(f"--save_policy: {record}, which must go with it, does not exist")
    refuse_existing([args.save_policy, beside], args.overwrite)
    with replacing(args.save_policy, beside) as [policy, copy]:
        write_state(policy, acting_part(agent.state_dict()))
        copy.write_bytes(record.read_bytes())
    print(f"saved {args.save_policy} and {beside.name}")


def play(
    args: argparse.Namespace,
    folders: Folders,
    model: Path,
    act: Callable[[np.ndarray], Any],
    make_env: Callable[..., gym.Env],
) -> None:
    """Print what `eval_episodes` episodes of the policy `act` earned; with --video film the first.

    Raises: InputError where the video exists (unless --overwrite) or cannot be made.
    """
    video = folders.results(model.stem).with_name(f"{model.stem}.mp4")
    refuse_existing([video] if args.video else [], args.overwrite)
    envs = [make_env() for _ in range(args.eval_episodes)]
    print(report(rollout.play_episodes(act, envs, args.seed), args.env))
    if args.video:
        record_video(video, make_env, act, args.seed)
        print(f"saved {video}")


def report(played: rollout.Played, env_id: str) -> str:
    """The episodes in words: returns, D4RL's score where the environment has one, lengths."""
    returns, lengths = played
    score = normalized_score(env_id, float(returns.mean()))
    lines = {
        "episodes": f"{len(returns)}",
        "return": f"mean {returns.mean():.2f}  std {returns.std():.2f}  median "
        f"{np.median(returns):.2f}  min {returns.min():.2f}  max {returns.max():.2f}",
        "D4RL score": "n/a" if score is None else f"{score:.2f}",
        "steps": f"mean {lengths.mean():.1f}  min {lengths.min()}  max {lengths.max()}",
    }
    return "\n".join(f"  {name:<18} {text}" for name, text in lines.items())


def record_video(
    path: Path,
    make_env: Callable[..., gym.Env],
    act: Callable[[np.ndarray], Any],
    seed: int,
) -> None:
    """The first episode of the evaluation as an mp4, by gymnasium's RecordVideo.

    Raises: InputError where the environment cannot be drawn here, or moviepy is missing.
    """
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo draws without a screen only if told so
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # the same of pygame
    with replacing(path) as [temporary], tempfile.TemporaryDirectory() as folder:
        try:
            env = gym.wrappers.RecordVideo(
                make_env(render_mode="rgb_array"),
                f"{folder}/video",
                episode_trigger=lambda episode: episode == 0,
                disable_logger=True,
            )
            rollout.play_episodes(act, [env], seed)
            env.close()
            [made] = Path(folder, "video").glob("*.mp4")
        except Exception as error:  # a renderer may raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise InputError(
                f"--video: the environment cannot be drawn here ({reason}); MuJoCo draws by EGL or "
                "OSMesa (try MUJOCO_GL=egl, or osmesa with libosmesa6), the mp4 needs `pip install "
                "moviepy`"
            ) from error
        temporary.write_bytes(made.read_bytes())
