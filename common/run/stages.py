"""Running the stage that the flags name: what all stages check, print and refuse."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from common import notes
from common.agent import Agent
from common.environment.rollout import seed_generators
from common.errors import InputError
from common.files import ROOT, Folders, best_path, column_files
from common.resume.checkpoint import Checkpoint
from common.run import logs
from common.run.flags import hyper_parameters

ONLINE_BUFFER_SIZE = int(1e6)  # transitions that stage 1 keeps by default
SHOWN = 5  # names of batches in a message


def resolve(args: argparse.Namespace) -> None:
    """Fill in what depends on the machine: device, threads and the output folder.

    Raises: InputError for a device this machine does not have.
    """
    args.output_dir = (args.output_dir or ROOT).resolve()
    args.buffer_dir = args.buffer_dir.resolve() if args.buffer_dir else None
    usable = getattr(os, "sched_getaffinity", None)  # Linux alone tells what this process may use
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    args.threads = args.threads or cores
    if args.threads > 4 * cores:
        raise InputError(f"--threads {args.threads} is too many for the {cores} cores there are")
    torch.set_num_threads(args.threads)
    wanted = args.device
    if wanted == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=args.device).cpu().numpy()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(". ")[0][:100]
        raise InputError(
            f"--device {wanted} cannot be used here ({reason}); try --device cpu"
        ) from error


def command(args: argparse.Namespace, stage: str) -> str:
    """What to type to run another stage for the same environment, batch and seed."""
    generating = stage == "--generate_buffer"
    seed = args.seed if generating else args.behavioral_seed
    batch = f" --buffer_name {args.buffer_name}" if generating else ""
    folder = args.buffer_dir or args.output_dir
    other = f" --output_dir {shlex.quote(str(folder))}" if folder != ROOT else ""
    env = f"--env {args.env}"
    if args.env_kwargs:
        env += f" --env_kwargs {shlex.quote(json.dumps(args.env_kwargs))}"
    if args.max_episode_steps:
        env += f" --max_episode_steps {args.max_episode_steps}"
    return f"python main.py {stage} {env} --seed {seed}{batch}{other}"


def require_made(path: Path, what: str, args: argparse.Namespace, stage: str) -> None:
    """Raises: InputError where `path` is not there, with the command of the stage making it."""
    if not path.exists():
        raise InputError(f"no {what}: {path} does not exist; make it with: {command(args, stage)}")


def batch_prefix(args: argparse.Namespace) -> Path:
    """The prefix of the batch's files that stage 3 reads."""
    place = args.buffer_dir or args.output_dir
    return Folders(place, args.env, args.seed).buffer(args.buffer_name)


def behavioural_policy(args: argparse.Namespace) -> Path:
    """The file of the policy that stage 2 plays.

    Raises: InputError where stage 1 has not made it, with its command.
    """
    model = Folders(args.output_dir, args.env, args.behavioral_seed).model("behavioral")
    model = best_path(model) if args.behavioral_policy == "best" else model
    require_made(model, "behavioural policy", args, "--train_behavioral")
    return model


def policy_flags(args: argparse.Namespace) -> list[str]:
    """The flags that say which policy stage 2 plays."""
    return ["model"] if args.model else ["behavioral_seed", "behavioral_policy"]


def show_settings(title: str, algorithm: type[Agent], args: argparse.Namespace, *more: str) -> None:
    """Print the stage and the settings in force: the common ones, `more`, the algorithm's own."""
    common = ["env", "seed", "max_timesteps", "eval_freq", "eval_episodes"]
    common = ["env", "seed", "eval_episodes"] if args.evaluate else common
    if args.env is None:
        common = ["seed", "max_timesteps", "eval_freq", *logs.DEFAULTS]
    if args.estimate:
        common = ["seed", "discount", *logs.DEFAULTS]
    made_with = [one for one in ("env_kwargs", "max_episode_steps") if vars(args).get(one)]
    names = [*common, *made_with, *more, "precision", "threads", "output_dir"]
    settings = {"algorithm": algorithm.__name__} | {name: vars(args)[name] for name in names}
    settings |= hyper_parameters(algorithm, args)
    print(title)
    for key, value in settings.items():
        print(f"  {key:<18} {value}")
    sys.stdout.flush()


def require_a_batch(args: argparse.Namespace, typed: set[str]) -> None:
    """Raises: InputError where --buffer_name, typed without --env, is no batch at all.

    That may be a slip in the name of one that was imported without --env, or one to be made.
    """
    if "env" in typed or "buffer_name" not in typed:
        return
    folder = args.buffer_dir or args.output_dir
    prefixes = [
        Folders(folder, env, args.seed).buffer(args.buffer_name) for env in (None, args.env)
    ]
    if any(Path(f"{prefix}.json").exists() or column_files(prefix) for prefix in prefixes):
        return
    elsewhere = logs.of_other_envs(args)
    if elsewhere:
        raise InputError(
            f"no batch {args.buffer_name} of {args.env} with seed {args.seed}; there is one of "
            f"{', '.join(elsewhere[:SHOWN])}: add --env {elsewhere[0]}"
        )
    imported = logs.without_env(args)
    there = f": there are {', '.join(imported[:SHOWN])}" if imported else ""
    there += f" and {len(imported) - SHOWN} more" if len(imported) > SHOWN else ""
    raise InputError(
        f"no batch {args.buffer_name} with seed {args.seed} in {prefixes[0].parent}: none of this "
        f"name was imported without --env, by import_dataset.py{there}; and none is of {args.env}: "
        f"make it with: {command(args, '--generate_buffer')}"
    )


Stage = Callable[[argparse.Namespace, Folders, Checkpoint], None]


class Stages(NamedTuple):
    """A variant's stages, called with the arguments, the output folders and the checkpoint."""

    train_behavioral: Stage
    generate_buffer: Stage
    learn_offline: Stage
    # These have nothing to go on from.
    evaluate: Callable[[argparse.Namespace, Folders], None]
    estimate: Callable[[argparse.Namespace, Folders], None]
    act: Callable[[argparse.Namespace, Folders], None]


def run_stage(args: argparse.Namespace, behavioural: str, stages: Stages, typed: set[str]) -> None:
    """Seed every generator and run the stage that the flags name.

    `behavioural` is the algorithm of stages 1 and 2, whatever --algorithm says of stage 3; `typed`
    are the arguments whose flags are on the command line.
    """
    if args.model and not (args.generate_buffer or args.evaluate or args.estimate or args.act):
        raise InputError(
            "--model is a policy to play or to judge: add --generate_buffer, --evaluate, "
            "--estimate or --act; stages 1 and 3 learn one of their own"
        )
    if args.save_policy and not args.evaluate:
        raise InputError("--save_policy is for a finished run: add --evaluate")
    named = typed & {"behavioral_seed", "behavioral_policy"}
    if args.model and named:
        raise InputError(f"--model is the policy itself: leave --{min(named)} out")
    if args.behavioral_seed is None:
        args.behavioral_seed = args.seed
    elif args.train_behavioral:
        raise InputError("--behavioral_seed names the policy of stage 2; stage 1 takes its --seed")
    if args.buffer_dir and (args.train_behavioral or args.generate_buffer):
        raise InputError(
            "--buffer_dir is where stage 3 reads; stages 1 and 2 write to --output_dir"
        )
    notes.begin()
    resolve(args)
    if not (args.train_behavioral or args.generate_buffer or args.evaluate or args.act):
        require_a_batch(args, typed)
    logs.settle_env(args, typed)
    seed_generators(args.seed)
    folders = Folders(args.output_dir, args.env, args.seed)
    if args.train_behavioral or args.generate_buffer:
        args.algorithm = behavioural
    stage = stages.learn_offline
    if args.train_behavioral:
        stage = stages.train_behavioral
    elif args.generate_buffer:
        stage = stages.generate_buffer
    elif args.evaluate:
        return stages.evaluate(args, folders)
    elif args.estimate:
        return stages.estimate(args, folders)
    elif args.act:
        return stages.act(args, folders)
    with Checkpoint(args, folders) as checkpoint:
        stage(args, folders, checkpoint)
