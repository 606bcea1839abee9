"""The command line every variant has: argument types, common flags, the header."""

import argparse
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from common.checkpoint import Checkpoint
from common.environments import announce_current_id
from common.errors import InputError
from common.files import ROOT, Folders, best
from common.rollout import seed_generators

ONLINE_BUFFER_SIZE = int(1e6)  # transitions that stage 1 keeps by default


def count(text: str) -> int:
    """A whole number of at least 1, `1e6` and `1000000` alike."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return number


def folder(text: str) -> Path:
    """A path; the empty one is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a folder is empty")
    return Path(text)


def whole(text: str) -> int:
    """A whole number of at least 0, `25e3` and `25000` alike."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not (number.is_integer() and 0 <= number <= 2**53):
        raise argparse.ArgumentTypeError(
            f"{text} is not a whole number from 0 to 2^53, such as 1000000 or 1e6"
        )
    return int(number)


def number_between(low: float, high: float) -> Callable[[str], float]:
    """A type for numbers in [low, high]; infinity and NaN are refused."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high or abs(number) == float("inf"):
            described = f"in [{low:g}, {high:g}]" if high < float("inf") else f"of at least {low:g}"
            raise argparse.ArgumentTypeError(f"{text} is not a number {described}")
        return number

    return parse


probability = number_between(0, 1)
nonnegative = number_between(0, float("inf"))


def positive(text: str) -> float:
    """A number above 0; infinity and NaN are refused."""
    number = nonnegative(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def name(text: str) -> str:
    """A part of a file name: letters, digits, `.`, `-` and `_`, not beginning with a dot."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} may hold letters, digits, '.', '-' and '_' alone"
        )
    return text


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        # A switch that is off, and a default the text explains itself, need no "(default: …)".
        return (
            action.help
            if action.default is None or action.default is False
            else super()._get_help_string(action)
        )


def parser_with_common_flags(
    description: str,
    algorithms: list[str],
    defaults: dict[str, Any],
    shown: Callable[[str], str] = lambda _: "",
) -> argparse.ArgumentParser:
    """A parser with the flags all variants share; `defaults` gives a value for each valued one.

    Where a default is None, decided later, `shown(flag)` is what the help says of it.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=_Help, allow_abbrev=False
    )
    stage = parser.add_mutually_exclusive_group()
    stage.add_argument(
        "--train_behavioral",
        action="store_true",
        help="stage 1: train the behavioural policy online",
    )
    stage.add_argument(
        "--generate_buffer",
        action="store_true",
        help="stage 2: save a batch of that policy; neither flag is stage 3: learn offline",
    )
    stage.add_argument(
        "--evaluate",
        action="store_true",
        help="play --eval_episodes episodes of what stage 3 saved, or of --model",
    )

    def add(flag: str, kind: Callable[[str], Any], text: str, **options: Any) -> None:
        text += shown(flag) if defaults[flag] is None else ""
        parser.add_argument(f"--{flag}", type=kind, default=defaults[flag], help=text, **options)

    add("algorithm", str, "stage 3: the offline learner", choices=algorithms)
    add("env", str, "gymnasium environment id")
    add("seed", whole, "seed of every random generator; part of all file names")
    add("buffer_name", name, "name of the batch; part of its file names")
    add(
        "max_timesteps",
        count,
        "stages 1 and 2: environment steps; stage 3: gradient steps (iterations)",
    )
    add("eval_freq", count, "steps of the stage between two evaluations")
    add("eval_episodes", count, "episodes an evaluation")
    add("batch_size", count, "B, transitions a gradient step")
    add("discount", probability, "γ, discount factor")
    add("tau", probability, "τ, target rate of the Polyak average")
    parser.add_argument(
        "--save_buffer", action="store_true", help="stage 1: save every transition as a batch"
    )
    parser.add_argument(
        "--buffer_size",
        type=count,
        default=None,
        help="stage 1: transitions kept, the newest (default: 1e6); stage 3: transitions of the "
        "batch used, the first (default: all)",
    )
    parser.add_argument(
        "--behavioral_seed",
        type=whole,
        default=None,
        help="stage 2: seed of the behavioural policy that makes the batch (default: --seed)",
    )
    parser.add_argument(
        "--behavioral_policy",
        choices=["last", "best"],
        default="last",
        help="stage 2: the policy at the end of stage 1, or that of its best evaluation",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=None,
        help="--evaluate: any saved policy, such as models/…_best.pt (default: the one evaluated "
        "last by stage 3)",
    )
    parser.add_argument(
        "--video", action="store_true", help="--evaluate: save the first episode as an mp4, too"
    )
    parser.add_argument("--device", default="auto", help="torch device: auto, cpu, cuda, cuda:1, …")
    parser.add_argument(
        "--threads", type=count, default=None, help="CPU threads of torch (default: all cores)"
    )
    parser.add_argument(
        "--output_dir",
        type=folder,
        default=None,
        help="folder of results/, models/ and buffers/ (default: the repository)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a run of the same name, finished or not, from its start",
    )
    parser.add_argument(
        "--checkpoint_minutes",
        type=nonnegative,
        default=5.0,
        help="minutes between two checkpoints, beside those at evaluations; the same command goes "
        "on from the last one",
    )
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="write returns, losses and mean Q for tensorboard below results/tensorboard/",
    )
    return parser


def resolve(args: argparse.Namespace) -> None:
    """Fill in what depends on the machine: device, threads and the output folder.

    Raises: InputError for a device this machine does not have.
    """
    args.output_dir = (args.output_dir or ROOT).resolve()
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


def default_batch_size(algorithm: type) -> int:
    """That of the algorithm's own paper: the default of its `train`."""
    return inspect.signature(algorithm.train).parameters["batch_size"].default  # type: ignore[attr-defined]


def hyper_parameters(algorithm: type, args: argparse.Namespace) -> dict[str, Any]:
    """The flags that are parameters of this algorithm's constructor."""
    return {k: vars(args)[k] for k in inspect.signature(algorithm).parameters if k in vars(args)}


def typed_flags() -> set[str]:
    """The arguments whose flags are on the command line, whatever their values."""
    words = (word.split("=")[0] for word in sys.argv[1:] if word.startswith("--"))
    return {word[2:].removeprefix("no-").removeprefix("BCQ_") for word in words}


def command(args: argparse.Namespace, stage: str) -> str:
    """What to type to run another stage for the same environment, batch and seed."""
    generating = stage == "--generate_buffer"
    seed = args.seed if generating else args.behavioral_seed
    batch = f" --buffer_name {args.buffer_name}" if generating else ""
    other = f" --output_dir {shlex.quote(str(args.output_dir))}" if args.output_dir != ROOT else ""
    return f"python main.py {stage} --env {args.env} --seed {seed}{batch}{other}"


def require_made(path: Path, what: str, args: argparse.Namespace, stage: str) -> None:
    """Raises: InputError where `path` is not there, with the command of the stage making it."""
    if not path.exists():
        raise InputError(f"no {what}: {path} does not exist; make it with: {command(args, stage)}")


def behavioural_policy(args: argparse.Namespace) -> Path:
    """The file of the policy that stage 2 plays.

    Raises: InputError where stage 1 has not made it, with its command.
    """
    model = Folders(args.output_dir, args.env, args.behavioral_seed).model("behavioral")
    model = best(model) if args.behavioral_policy == "best" else model
    require_made(model, "behavioural policy", args, "--train_behavioral")
    return model


def show_settings(title: str, algorithm: type, args: argparse.Namespace, *more: str) -> None:
    """Print the stage and the settings in force: the common ones, `more`, the algorithm's own."""
    common = ["env", "seed", "max_timesteps", "eval_freq", "eval_episodes"]
    common = ["env", "seed", "eval_episodes"] if args.evaluate else common
    names = [*common, *more, "threads", "output_dir"]
    settings = {"algorithm": algorithm.__name__} | {name: vars(args)[name] for name in names}
    settings |= hyper_parameters(algorithm, args)
    print(title)
    for key, value in settings.items():
        print(f"  {key:<18} {value}")
    sys.stdout.flush()


Stage = Callable[[argparse.Namespace, Folders, Checkpoint], None]


class Stages(NamedTuple):
    """A variant's stages, called with the arguments, the output folders and the checkpoint."""

    train_behavioral: Stage
    generate_buffer: Stage
    learn_offline: Stage
    evaluate: Callable[[argparse.Namespace, Folders], None]  # has nothing to go on from


def run_stage(args: argparse.Namespace, behavioural: str, stages: Stages) -> None:
    """Seed every generator and run the stage that the flags name.

    `behavioural` is the algorithm of stages 1 and 2, whatever --algorithm says of stage 3.
    """
    if args.behavioral_seed is None:
        args.behavioral_seed = args.seed
    elif args.train_behavioral:
        raise InputError("--behavioral_seed names the policy of stage 2; stage 1 takes its --seed")
    resolve(args)
    args.env = announce_current_id(args.env)
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
    with Checkpoint(args, folders) as checkpoint:
        stage(args, folders, checkpoint)
