"""reproduce.py's flags, and what they set going."""

import argparse
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from common.arguments import count, folder, nonnegative, positive, whole
from common.environment.making import current_id
from common.errors import InputError, Stopped
from common.files import ROOT
from sweeps import on_ray, serial
from sweeps.cost import Speeds, seconds, told
from sweeps.finished import finished
from sweeps.graph import Choice, Graph
from sweeps.presets import PRESETS, Settings, choices, graph
from sweeps.progress import Board
from sweeps.stage import DONE, Stage


def seeds(text: str) -> list[int]:
    """`3` or `0-4`: whole numbers, both ends included."""
    first, dash, last = text.partition("-")
    if not first or (dash and not last):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a seed nor two of them, such as 0-4")
    low, high = whole(first), whole(last if dash else first)
    if high < low:
        raise argparse.ArgumentTypeError(f"{text} is empty: the smaller seed comes first")
    return list(range(low, high + 1))


def parse_args() -> argparse.Namespace:
    """The flags; what follows a `--` goes to every main.py command as it is."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    presets = "; ".join(f"{name}: {preset.title}" for name, preset in PRESETS.items())
    parser = argparse.ArgumentParser(
        description="Run a paper's experiments, or report on what has been run. Flags after a "
        "`--` go to every main.py command.",
        epilog=f"presets: {presets}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("preset", nargs="?", choices=list(PRESETS), help="the experiment; see below")
    add(
        "--report",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help="write figures, tables, claims and a page of the saved runs in these folders or files "
        "(default: results/ and sweep/*/results of --output_dir)",
    )
    add("--envs", nargs="+", help="gymnasium ids (default: the preset's)")
    add("--seeds", nargs="+", type=seeds, help="such as 0-4, or 0 2 5 (default: the preset's)")
    add("--algorithms", nargs="+", help="learners (default: all that the preset's variant has)")
    add(
        "--scale",
        type=positive,
        default=1.0,
        help="every step count times this: training, batches, iterations, warm-up, evaluations "
        "(default: 1)",
    )
    add(
        "--behavioral_seeds",
        type=count,
        metavar="K",
        help="train K behavioural policies and make batches of the best, one for each of --seeds",
    )
    add(
        "--behavioral_policy",
        choices=["last", "best"],
        default="last",
        help="the policy at the end of stage 1, or that of its best evaluation (default: last)",
    )
    add(
        "--true_value",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure true values beside the critics' (default: yes)",
    )
    add("--dry_run", action="store_true", help="list the commands, core-hours and disk; run none")
    add("--output_dir", type=folder, default=ROOT, help="as main.py's (default: the repository)")
    add("--workers", type=count, help="runs at once (default: one a core; 1 needs no Ray)")
    add("--threads", type=count, default=1, help="CPU threads a run (default: 1)")
    add("--num_gpus", type=nonnegative, default=0.0, help="GPUs a run, such as 0.25 (default: 0)")
    add(
        "--address",
        default="local",
        help="Ray: a private instance on this machine (local, the default), the cluster this node "
        "belongs to (auto), or one by its address",
    )
    add("--retries", type=whole, default=3, help="new starts after a lost worker (default: 3)")
    add("--dashboard", action="store_true", help="Ray's dashboard, on the private instance")
    args = parser.parse_args(words[:cut])
    args.more = tuple(words[cut + 1 :])
    if (args.preset is None) == (args.report is None):
        parser.error("name a preset, or --report")
    if args.address != "local" and args.workers:
        parser.error("--workers is of the private instance; a cluster has the CPUs that it has")
    return args


def settings(args: argparse.Namespace) -> Settings:
    """What the flags and the preset's own values make together.

    Raises: InputError for a learner that the variant does not have.
    """
    preset = PRESETS[args.preset]
    known = choices(preset)
    for name in args.algorithms or ():
        if name not in known:
            raise InputError(f"--algorithms {name}: {preset.variant} has {', '.join(known)}")
    envs = [current_id(env) for env in args.envs or preset.envs]
    wanted = [seed for some in args.seeds for seed in some] if args.seeds else preset.seeds
    if args.behavioral_seeds and args.behavioral_seeds < len(set(wanted)):
        raise InputError(
            f"--behavioral_seeds {args.behavioral_seeds}: fewer policies than the "
            f"{len(set(wanted))} seeds of batches to be made of them"
        )
    return Settings(
        envs=tuple(dict.fromkeys(envs)),
        seeds=tuple(dict.fromkeys(wanted)),
        algorithms=tuple(dict.fromkeys(args.algorithms or preset.algorithms or known)),
        output_dir=args.output_dir.resolve(),
        scale=args.scale,
        true_value=args.true_value,
        behavioral_seeds=args.behavioral_seeds,
        behavioral_policy=args.behavioral_policy,
        threads=args.threads,
        more=args.more,
    )


def cores() -> int:
    """CPUs that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


HEARD: list[int] = []


def ask_to_stop(signum: int, _frame: FrameType | None) -> None:
    """SIGTERM as Ctrl-C. Ray may hand it on as a plain KeyboardInterrupt, so it is noted."""
    HEARD.append(signum)
    raise Stopped(signum)


def sweep(args: argparse.Namespace) -> None:
    """Run what is not finished; exits with 1 where a run failed."""
    wanted = settings(args)
    stages = graph(PRESETS[args.preset], wanted)
    several = args.address != "local" or importlib.util.find_spec("ray")
    workers = args.workers or (max(1, cores() // args.threads) if several else 1)
    speeds = Speeds(wanted.output_dir / "logs" / "speeds.json")
    if args.dry_run:
        return dry_run(list(stages.whole().stages.values()), speeds, workers, stages.choices)
    signal.signal(signal.SIGTERM, ask_to_stop)
    weights: dict[str, float] = {}

    def weight(stage: Stage) -> float:
        return weights.setdefault(stage.name, seconds(stage, speeds))

    board = Board(weight, workers)
    board.expect(stages.stages.values())
    board.skip(filter(None, map(finished, stages.stages.values())))
    try:
        if args.address == "local" and workers == 1:
            print(f"one run after another; --workers N runs N at once on Ray ({on_ray.INSTALL})")
            serial.run(stages, board, args.threads)
        elif len(board.outcomes) < len(stages.stages) or stages.choices:
            on_a_cluster(args, stages, board, workers)
    except KeyboardInterrupt:
        board.close()
        raise Stopped(HEARD[0] if HEARD else signal.SIGINT) from None
    if board.close():
        sys.exit(1)


def on_a_cluster(args: argparse.Namespace, stages: Graph, board: Board, workers: int) -> None:
    """The same on Ray: an instance of our own, or the one that --address names."""
    with on_ray.instance(args.address, workers * args.threads, args.dashboard) as ray:
        signal.signal(signal.SIGTERM, ask_to_stop)  # once more: Ray has taken it
        on_ray.require_shared(ray, stages.whole().folders())
        if args.address != "local":
            board.workers = max(1, int(ray.cluster_resources().get("CPU", 1)) // args.threads)
        on_ray.run(stages, board, ray, args.threads, args.num_gpus, args.retries, print)


def dry_run(stages: list[Stage], speeds: Speeds, workers: int, choices: list[Choice]) -> None:
    """Every command, and what all of it takes."""
    outcomes = {stage.name: finished(stage) for stage in stages}
    done = {name for name, outcome in outcomes.items() if outcome and outcome.status == DONE}
    ahead = [stage for stage in stages if stage.name not in done]
    speeds.measure(stages)
    for stage in stages:
        outcome = outcomes[stage.name]
        if outcome and outcome.why:
            print(f"# cannot run: {outcome.why}")
        print(("# finished: " if stage.name in done else "") + stage.command)
    print()
    if choices:
        kept = sum(choice.keep for choice in choices)
        print(
            f"# {kept} policies are chosen once they are trained; shown as if the first were best"
        )
    print(told(stages, ahead, speeds, workers))


def main() -> None:
    """A sweep, or the report."""
    args = parse_args()
    if args.report is not None:
        from sweeps.report import write_report

        return write_report(args.report, args.output_dir.resolve())
    sweep(args)
