"""Stages on a batch that has no simulator: learning from a part of it, judging on the other."""

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym

from common.environment.described import Described
from common.environment.making import announce_current_id
from common.errors import InputError
from common.files import Folders, read_json
from common.judging.held_out import HeldOut, in_two, read_log, too_thin
from common.judging.importance import SOFT
from common.run.playing import record_of

# What judging without a simulator takes where nothing is said.
DEFAULTS = {"held_out": 0.1, "estimate_iterations": 10_000, "estimate_rows": 50_000}
# What a stage without a simulator has no use for.
OF_SIMULATORS = ("eval_episodes", "video", "true_value", "concurrent", "eval_eps")
FEW_EFFECTIVE = 5.0  # episodes, below which importance sampling says nothing


def settle_env(args: argparse.Namespace, typed: set[str]) -> None:
    """`args.env` as it runs: a current id, or None where the batch has no simulator.

    That is where --env is not among the flags that were `typed`, the stage learns or judges, and
    the record of --buffer_name (without one, of --model) describes the task.

    Raises: InputError for flags that mean nothing then, and where two batches have that name.
    """
    if not _without_simulator(args, typed):
        args.env = announce_current_id(args.env)
        wrong = sorted(typed & DEFAULTS.keys()) if not args.estimate else []
        if wrong:
            raise InputError(
                f"--{wrong[0]} is for judging without a simulator: give --estimate, or a batch "
                "that was imported without --env"
            )
    else:
        args.env = None
        wrong = sorted(typed & {*OF_SIMULATORS})
        if args.evaluate or wrong:
            raise InputError(
                f"--{'evaluate' if args.evaluate else wrong[0]}: batch {args.buffer_name} has no "
                "environment to play in; --estimate judges by its data"
            )
    if args.env is None or args.estimate:
        for flag, value in DEFAULTS.items():
            setattr(args, flag, value if vars(args)[flag] is None else vars(args)[flag])


def _without_simulator(args: argparse.Namespace, typed: set[str]) -> bool:
    if "env" in typed or args.train_behavioral or args.generate_buffer:
        return False
    described, other = (_batch_record(args, env) for env in (None, args.env))
    if described.exists() and "task" in read_json(described):
        if other.exists():
            raise InputError(
                f"{described} has no environment and {other} is of {args.env}: --env {args.env} "
                "takes the latter; the former needs another name"
            )
        return True
    record = record_of(args.model) if args.act and args.model else None
    return bool(record and record.exists() and _arguments(record).get("env", "") is None)


def _batch_record(args: argparse.Namespace, env: str | None) -> Path:
    """The record of --buffer_name, made in this environment or in none."""
    folders = Folders(args.buffer_dir or args.output_dir, env, args.seed)
    return Path(f"{folders.buffer(args.buffer_name)}.json")


def without_env(args: argparse.Namespace) -> list[str]:
    """The names of the batches of this seed that were imported without --env."""
    end, names = f"_{args.seed}.json", []
    for path in sorted(_batch_record(args, None).parent.glob(f"*{end}")):
        with suppress(InputError):
            record = read_json(path)
            if "task" in record and record.get("env") is None:
                names.append(path.name.removesuffix(end))
    return names


def of_other_envs(args: argparse.Namespace) -> list[str]:
    """The environments of which there is a batch of this name and seed."""
    found = []
    for path in sorted(_batch_record(args, None).parent.glob(f"*_{args.seed}.json")):
        with suppress(InputError):
            env = read_json(path).get("env")
            if isinstance(env, str) and path == _batch_record(args, env):
                found.append(env)
    return found


def _arguments(record: Path) -> dict[str, Any]:
    found = read_json(record).get("arguments")
    return found if isinstance(found, dict) else {}


def environment(args: argparse.Namespace, make: Callable[[], gym.Env], kind: str) -> gym.Env:
    """`--env`, or the description of a batch's task where there is none.

    Raises: InputError for a task with another `kind` of actions, or no description.
    """
    if args.env is not None:
        return make()
    if args.act and args.model:  # the batch may have stayed elsewhere
        path = record_of(args.model)
        batch = read_json(path).get("batch")
        task = batch.get("task") if isinstance(batch, dict) else None
    else:
        path = _batch_record(args, None)
        task = read_json(path).get("task")
    described = Described(task if isinstance(task, dict) else {}, path)
    described.require(kind, path)
    return described


def held_out(
    agent: Any, env: gym.Env, args: argparse.Namespace, replay_buffer: Any
) -> tuple[HeldOut, Any]:
    """The evaluation on held-out episodes, and a buffer of the others.

    Raises: InputError where nothing would be left to learn from.
    """
    space: Any = env.action_space
    discrete = isinstance(space, gym.spaces.Discrete)
    num_actions, scale = (int(space.n), None) if discrete else (None, float(space.high[0]))
    log = read_log(replay_buffer, num_actions, scale)
    parts = in_two(log, args.held_out, args.seed, scale)
    return HeldOut(agent.select_action, parts, args, num_actions), replay_buffer.part(parts.rows)


def estimate(agent: Any, env: gym.Env, args: argparse.Namespace, replay_buffer: Any) -> None:
    """Print what a policy is worth by a batch, how sure that is, and what speaks against it."""
    judge, _ = held_out(agent, env, args, replay_buffer)
    training, judged = judge.parts.training, judge.parts.judged
    figures = judge()
    own = judged.discounted_returns(args.discount)
    cut = int((~judged.terminated).sum())
    from_where = "not held out: learned from" if judged is training else "held out"
    lines = {
        "episodes": f"{judged.episodes:,} {from_where}, of batch {args.buffer_name}",
        "estimate": f"{figures['value']:.4g}, 95% interval {figures['low']:.4g} to "
        f"{figures['high']:.4g} (FQE, discounted value at the episodes' first states)",
        "batch's own": f"{float(own.mean()):.4g} discounted return of these episodes"
        + (f", {cut:,} of them cut: what came after counts as 0" if cut else ""),
        "TD error": f"{figures['td_error']:.4g}",
    }
    if "agreement" in figures:
        weighted = judge.importance(args.discount, args.seed)
        lines |= {
            "WIS": f"{weighted.value:.4g}, 95% interval {weighted.low:.4g} to {weighted.high:.4g}"
            f" (π soft by {SOFT:g})",
            "effective": f"{weighted.effective:.1f} of {judged.episodes:,} episodes"
            + (": WIS says nothing" if weighted.effective < FEW_EFFECTIVE else ""),
            "agreement": f"{figures['agreement']:.1%} of the logged actions; mean log-probability "
            f"of the policy's {figures['log_likelihood']:.3g}",
        }
    else:
        lines["distance"] = (
            f"mean |a − π(s)| {figures['action_distance']:.4g} in units of the bound"
        )
    lines["outside"] = f"the batch's support in {figures['outside']:.1%} of states"
    reasons = too_thin(figures, judged.episodes)
    lines["coverage"] = f"too thin to say: {'; '.join(reasons)}" if reasons else "enough to say"
    for name, text in lines.items():
        print(f"  {name:<12} {text}")
