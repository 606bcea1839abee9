"""The flags that every variant has, and those of its learners."""

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.agent import Agent
from common.arguments import (
    Together,
    count,
    folder,
    keyword_arguments,
    name,
    nonnegative,
    probability,
    whole,
)
from common.precision import PRECISIONS


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        # A switch that is off, and a default the text explains itself, need no "(default: …)".
        return (
            action.help
            if action.default is None or action.default is False
            else super()._get_help_string(action)
        )


def add_environment_flags(parser: argparse.ArgumentParser) -> None:
    """What an environment is made with beside its id; all that is made with it is another one."""
    parser.add_argument(
        "--env_kwargs",
        type=keyword_arguments,
        nargs="+",
        action=Together,
        default=None,
        metavar="NAME=VALUE",
        help="the environment's keyword arguments, such as terminate_when_unhealthy=False",
    )
    parser.add_argument(
        "--max_episode_steps",
        type=count,
        default=None,
        help="steps after which an episode is cut (default: the environment's own limit)",
    )


def environment_options(args: argparse.Namespace) -> dict[str, Any]:
    """What --env_kwargs and --max_episode_steps add to gymnasium.make's arguments."""
    limit = args.max_episode_steps
    return (args.env_kwargs or {}) | ({} if limit is None else {"max_episode_steps": limit})


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
    _add_stages(parser)

    def add(flag: str, kind: Callable[[str], Any], text: str, **options: Any) -> None:
        text += shown(flag) if defaults[flag] is None else ""
        parser.add_argument(f"--{flag}", type=kind, default=defaults[flag], help=text, **options)

    add("algorithm", str, "stage 3: the offline learner", choices=algorithms)
    add("env", str, "gymnasium environment id")
    add_environment_flags(parser)
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
    _add_what_one_stage_reads(parser)
    _add_how_it_is_run(parser)
    return parser


def _add_stages(parser: argparse.ArgumentParser) -> None:
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
    stage.add_argument(
        "--estimate",
        action="store_true",
        help="judge what stage 3 saved, or --model, by the batch alone: fitted Q evaluation",
    )
    stage.add_argument(
        "--act",
        type=Path,
        default=None,
        metavar="FILE",
        help="write to --output what that policy does in the states of this .csv or .npz",
    )


def _add_what_one_stage_reads(parser: argparse.ArgumentParser) -> None:
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
        "--true_value",
        action="store_true",
        help="stage 3: at each evaluation measure the discounted return of the policy from 100 "
        "pairs of the batch, beside what the critic says of them",
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
        help="--evaluate, --estimate, --act and stage 2: any saved policy, such as "
        "models/…_best.pt (default: the one evaluated last by stage 3; in stage 2 by stage 1)",
    )
    parser.add_argument(
        "--save_policy",
        type=Path,
        default=None,
        metavar="FILE",
        help="--evaluate: write what playing needs to this .pt, a quarter of the model, and the "
        "run's record beside it, for --model",
    )
    add_flags_of_logs(parser)
    parser.add_argument(
        "--video", action="store_true", help="--evaluate: save the first episode as an mp4, too"
    )


def _add_how_it_is_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="torch device: auto, cpu, cuda, cuda:1, …")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="numbers in which the large matrix products are made; bf16 is faster, and needs a "
        "processor with instructions for it",
    )
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
        "--buffer_dir",
        type=folder,
        default=None,
        help="stage 3: the output folder whose buffers/ has the batch, so that runs of several "
        "folders learn from one (default: --output_dir)",
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


def add_flags_of_logs(parser: argparse.ArgumentParser) -> None:
    """The flags of learning and judging without a simulator; None is decided later."""
    add = parser.add_argument
    add(
        "--held_out",
        type=probability,
        default=None,
        help="without a simulator: share of the episodes to judge on, which are not learned from; "
        "0 judges on those learned from (default: 0.1, --estimate: the run's own)",
    )
    add(
        "--estimate_iterations",
        type=count,
        default=None,
        help="without a simulator: updates of an estimate's critics; a fifth at later evaluations "
        "(default: 10,000)",
    )
    add(
        "--estimate_rows",
        type=count,
        default=None,
        help="without a simulator: transitions at most that an estimate learns from, in whole "
        "episodes (default: 50,000)",
    )
    add(
        "--output",
        type=Path,
        default=None,
        metavar="FILE",
        help="--act: where the actions go, a .csv or .npz",
    )
    add(
        "--normalize_states",
        action="store_true",
        help="stage 3: learner and policy see (s - mean) / (std + 1e-3) of the batch's states",
    )


def add_learners_flags(parser: argparse.ArgumentParser, learners: dict[str, type[Agent]]) -> None:
    """The flags that the learners declare; one that several have is declared by the first."""
    owners: dict[str, list[str]] = {}
    for learner, kind in learners.items():
        for parameter in kind.FLAGS:
            owners.setdefault(parameter, []).append(learner)
    for parameter, names in owners.items():
        kind = learners[names[0]]
        flag = kind.FLAGS[parameter]
        options: dict[str, Any] = {"type": flag.type, "choices": flag.choices}
        if flag.type is bool:
            options = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(
            flag.spelled or f"--{parameter}",
            dest=parameter,
            default=inspect.signature(kind).parameters[parameter].default,
            help=f"{' and '.join(names)}: {flag.help}",
            **options,
        )


def hyper_parameters(algorithm: type[Agent], args: argparse.Namespace) -> dict[str, Any]:
    """The flags that are parameters of this algorithm's constructor."""
    return {k: vars(args)[k] for k in inspect.signature(algorithm).parameters if k in vars(args)}


def typed(parser: argparse.ArgumentParser, argv: list[str] | None = None) -> set[str]:
    """The arguments whose flags are on the command line, whatever their values."""
    unset: dict[str, Any] = {}  # argparse gives its default only to what a namespace lacks
    names = vars(parser.parse_args([]))
    given = parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(names, unset)))
    return {name for name, value in vars(given).items() if value is not unset}


def own_batch_sizes(learners: dict[str, type[Agent]]) -> str:
    """In words: the first learner's B, and those that differ from it, `100, TD3_BC 256`."""
    [first, *others] = learners.items()
    usual = first[1].batch_size
    named = [f"{name} {kind.batch_size}" for name, kind in others if kind.batch_size != usual]
    return ", ".join([str(usual), *named])
