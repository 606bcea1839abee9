"""Other people's data, or your own, as a batch that main.py learns from; a batch as a Minari set.

    python import_dataset.py --d4rl hopper_medium-v2.hdf5 --env Hopper-v4 --buffer_name D4RLmedium
    python import_dataset.py --minari mujoco/hopper/expert-v0 --buffer_name Expert
    python import_dataset.py --dqn_replay Pong/1/replay_logs --shards 0-4 --env PongNoFrameskip-v0
    python import_dataset.py --csv log.csv --env Pendulum-v1 --buffer_name Mine
    python import_dataset.py --csv log.csv --buffer_name Clinic        (no simulator: no --env)
    python import_dataset.py --export_minari pendulum/mine-v0 --env Pendulum-v1 --buffer_name Mine

Then `main.py --env … --buffer_name …` learns, in continuous_BCQ or discrete_BCQ.
"""

import argparse
import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.errors import InputError, end_quietly, require_renderer, run

if __name__ == "__main__":
    end_quietly()
    require_renderer()

import numpy as np
import torch

from common import notes
from common.arguments import at_least_two, folder, name, real, whole
from common.data.batch_files import column_path
from common.data.replay import ReplayBuffer
from common.environment.making import MUJOCO, announce_current_id, current_id
from common.environment.scores import normalized_score
from common.files import ROOT, Folders, read_json
from common.resume.ownership import Ownership
from common.run.flags import add_environment_flags, environment_options
from common.run.record import provenance, require_env
from datasets import batch, d4rl, dqn_replay, minari_sets, tables
from datasets.inference import THE_DATA, UNDESCRIBED, Given, infer
from datasets.rows import Transitions
from datasets.task import Task, base_and_version, task_of

IMPORT = "import"  # what a batch's owner is called that has no run to go on with


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """All flags; exactly one of them names the data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--d4rl", type=path, metavar="FILE", help="a D4RL .hdf5 file")
    data.add_argument("--minari", type=filled, metavar="ID_OR_PATH", help="a Minari data set")
    data.add_argument(
        "--dqn_replay", type=path, metavar="FOLDER", help="a game of the DQN replay data set"
    )
    data.add_argument("--npz", type=path, metavar="FILE", help="your own data: arrays")
    data.add_argument("--csv", type=path, metavar="FILE", help="your own data: columns")
    data.add_argument(
        "--export_minari",
        type=filled,
        metavar="ID",
        help="write the batch --buffer_name as a Minari data set",
    )
    add = parser.add_argument
    add(
        "--env",
        help="gymnasium id of the task; --minari: the one it names, unless given; none where there "
        "is no simulator",
    )
    for flag, extreme in (("--action_low", "lowest"), ("--action_high", "highest")):
        add(
            flag,
            type=real,
            nargs="+",
            metavar="BOUND",
            help=f"without --env: {extreme} action, one for all or a dimension (default: the "
            f"data's {extreme})",
        )
    add("--num_actions", type=at_least_two, help="without --env: actions are 0 to this less 1")
    add_environment_flags(parser)
    add("--buffer_name", type=name, default="Imported", help="name of the batch (%(default)s)")
    add("--seed", type=whole, default=0, help="part of the file names (%(default)s)")
    add("--shards", type=shards, metavar="0-4", help="--dqn_replay: these alone (default: all)")
    add("--clip_actions", action="store_true", help="clip actions beyond the environment's bounds")
    add("--drop_bad_rows", action="store_true", help="leave rows with NaN or infinity out")
    add(
        "--output_dir",
        type=folder,
        default=None,
        help="folder of buffers/ (default: the repository)",
    )
    add("--overwrite", action="store_true", help="replace a batch, or data set, of the same name")
    return parser.parse_args(argv)


def filled(text: str) -> str:
    """A word; the empty one is refused."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def path(text: str) -> Path:
    """A path; the empty one is refused."""
    return Path(filled(text))


def shards(text: str) -> list[int]:
    """`0-4` -> [0, 1, 2, 3, 4]; `0,2` and `7` too."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        last = int(match[2] or match[1]) if match else -1
        if not match or last < int(match[1]):
            raise argparse.ArgumentTypeError(f"{text} is no range of shards such as 0-4, 0,2 or 7")
        numbers += range(int(match[1]), last + 1)
    return sorted(set(numbers))


def compare_environments(what: str, recorded_in: str | None, env_id: str) -> None:
    """A warning where the data are of another version of the environment.

    Raises: InputError where they are of another environment.
    """
    if recorded_in is None:
        return
    recorded, asked = base_and_version(current_id(recorded_in)), base_and_version(env_id)
    if recorded == asked:
        return
    if recorded[0] != asked[0]:
        raise InputError(f"{what} was recorded in {recorded_in}, not in {env_id}: choose its --env")
    print(
        f"warning: {what} was recorded in {recorded_in}, and --env is {env_id}: versions differ in "
        "states or rewards (docs/engines.md)"
    )


def d4rl_environment(path: Path, env_id: str) -> str | None:
    """Where a file with a name of D4RL's was recorded: the -v2 tasks of MuJoCo; else None."""
    names = {"halfcheetah": "HalfCheetah", "hopper": "Hopper", "walker2d": "Walker2d", "ant": "Ant"}
    named = re.match(rf"({'|'.join(names)})[_-]", path.name.lower())
    known = re.fullmatch(MUJOCO, base_and_version(env_id)[0])
    return f"{names[named[1]]}-v2" if named and known else None


def open_source(args: argparse.Namespace) -> tuple[batch.Source, Task, dict[str, Any] | None]:
    """The data that the flags name; sets `args.env` to the id it runs as.

    Without one, the task is what flags and data say, and the third is what the record says of it.
    """
    dataset = minari_sets.open_dataset(args.minari) if args.minari else None
    recorded_in = None if dataset is None else minari_sets.made_in(dataset)
    args.env = args.env or recorded_in
    given = Given(args.num_actions, args.action_low, args.action_high)

    def read(task: Task) -> batch.Source:
        if dataset is not None:  # one without episodes counts as false
            return minari_sets.read(dataset, args.minari, task)
        if args.d4rl:
            return d4rl.read(args.d4rl, task)
        return tables.read_npz(args.npz, task) if args.npz else tables.read_csv(args.csv, task)

    if not args.env:
        task, described, notes = infer(read(UNDESCRIBED), given)
        source = read(task)
        source.notes[:0] = notes  # reading adds more
        return source, task, described
    if given != Given():
        raise InputError(
            f"--action_low, --action_high and --num_actions describe data without an environment; "
            f"{args.env} has its own"
        )
    args.env = announce_current_id(args.env)
    task = task_of(args.env, **environment_options(args))
    if task.frames:
        raise InputError(
            f"--env {args.env} shows frames: batches of such come from --dqn_replay alone, of Atari"
        )
    if dataset is not None:
        compare_environments(f"the Minari data set {args.minari}", recorded_in, args.env)
    if args.d4rl:
        compare_environments(str(args.d4rl), d4rl_environment(args.d4rl, args.env), args.env)
    return read(task), task, None


def batch_record(args: argparse.Namespace, origin: dict[str, Any]) -> dict[str, Any]:
    """What a batch's json says of where it is from; the counts are added as it is written."""
    # Where the data lay on this machine is nobody's business, their name and hash are.
    places = {"d4rl", "dqn_replay", "npz", "csv"}
    arguments = {k: v.name if k in places and v else v for k, v in vars(args).items()}
    if args.env:
        arguments = {k: v for k, v in arguments.items() if k not in Given._fields}
    record = provenance(argparse.Namespace(**arguments))
    record["versions"] |= {package: version(package) for package in ("h5py", "minari")}
    return record | {
        "env": args.env,
        "seed": args.seed,
        "policy": None,
        "stage": "import",
        "in_order": True,
        "source": origin,
    }


def report(source_name: str, summary: batch.Summary, task: Task, notes: list[str]) -> None:
    """Print what was read."""
    episodes, returns = summary.episodes, summary.episodes.returns
    print(f"read {summary.transitions:,} transitions from {source_name}")
    lines = {
        "rows": f"{summary.rows:,}",
        "episodes": f"{episodes.terminated + episodes.truncated:,} finished: "
        f"{episodes.terminated:,} in a terminal state, {episodes.truncated:,} by time-out"
        + ("; the last one unfinished" if episodes.steps else ""),
    }
    if len(returns):
        mean = float(returns.mean())
        score = None if task.env_id == THE_DATA else normalized_score(task.env_id, mean)
        lines["return"] = f"mean {mean:.4g}, from {returns.min():.4g} to {returns.max():.4g}"
        lines["score"] = f"{score:.1f} (D4RL: 0 random, 100 expert)" if score is not None else "n/a"
    else:
        lines["return"] = "unknown: no episode is whole"
    actions = summary.actions
    if task.num_actions is None:
        lines["actions"] = f"from {actions.lowest:.4g} to {actions.highest:.4g}"
        lines["actions"] += f", bounds {batch.bounds(task)}"
        if task.rescaled:
            lines["actions"] += "; scaled to [-1, 1] in the batch"
        if actions.beyond:
            lines["clipped"] = f"{actions.beyond:,} actions, the largest {actions.worst:g}"
    else:
        lines["actions"] = f"{actions.lowest:g} to {actions.highest:g} of {task.num_actions}"
    if task.env_id == THE_DATA:
        lines.pop("score", None)
    for label, line in lines.items():
        print(f"  {label:<10} {line}")
    for why, count in summary.dropped.items():
        print(f"  {'dropped':<10} {count:,}: {why}")
    if episodes.longest > task.limit:
        notes = [
            *notes,
            f"the longest episode has {episodes.longest:,} steps and {task.env_id} allows "
            f"{task.limit:,}: are time-outs missing from the data?",
        ]
    for note in notes:
        print(f"  {'note':<10} {note}")


def import_data(args: argparse.Namespace) -> None:
    """Read the data, write the batch, say what was in it."""
    if args.shards and not args.dqn_replay:
        raise InputError("--shards belongs to --dqn_replay")
    if args.dqn_replay:
        import_frames(args)
        return
    source, task, described = open_source(args)
    folders = Folders(args.output_dir, args.env, args.seed)
    prefix = folders.buffer(args.buffer_name)
    record = batch_record(args, source.origin)
    if described is not None:
        record["task"] = described
    with Ownership(folders, args.buffer_name, IMPORT, args.overwrite) as owner:
        summary = batch.write(
            prefix, source, task, args.clip_actions, args.drop_bad_rows, record, owner.permit
        )
    report(source.what, summary, task, source.notes)
    variant = "continuous_BCQ" if task.num_actions is None else "discrete_BCQ"
    saved(args, prefix, variant)


def import_frames(args: argparse.Namespace) -> None:
    """The DQN replay data set: frames, for discrete_BCQ."""
    if not args.env:
        raise InputError("--env is missing: the id of the game, such as PongNoFrameskip-v0")
    args.env = announce_current_id(args.env)
    task = task_of(args.env, **environment_options(args))
    if not task.atari:
        raise InputError(f"--env {args.env} is no Atari game, which --dqn_replay holds")
    replay = dqn_replay.read(args.dqn_replay, args.shards, task)
    folders = Folders(args.output_dir, args.env, args.seed)
    prefix = folders.buffer(args.buffer_name)
    with Ownership(folders, args.buffer_name, IMPORT, args.overwrite) as owner:
        record = batch_record(args, replay.origin)
        summary = dqn_replay.write(prefix, replay, record, owner.permit)
    report(replay.what, summary, task, replay.notes)
    saved(args, prefix, "discrete_BCQ")


def saved(args: argparse.Namespace, prefix: Path, variant: str) -> None:
    """Print where the batch is and what learns from it."""
    seed = f" --seed {args.seed}" if args.seed else ""
    other = f" --output_dir {shlex.quote(str(args.output_dir))}" if args.output_dir != ROOT else ""
    print(f"saved {prefix}_*.npy; learn from it with:")
    env = f" --env {args.env}" if args.env else ""
    print(f"  python {variant}/main.py{env} --buffer_name {args.buffer_name}{seed}{other}")


def export_minari(args: argparse.Namespace) -> None:
    """Write a batch as a Minari data set."""
    if not args.env:
        raise InputError("--env is missing: the id of the environment the batch is of")
    args.env = announce_current_id(args.env)
    task = task_of(args.env, **environment_options(args))
    if task.frames:
        raise InputError(f"--env {args.env} shows frames: its batches are not exported")
    prefix = Folders(args.output_dir, args.env, args.seed).buffer(args.buffer_name)
    if not column_path(prefix, "state").exists():
        raise InputError(f"{column_path(prefix, 'state')} does not exist: there is no such batch")
    require_env(prefix, args)
    dtype = torch.float32 if task.num_actions is None else torch.int64
    replay_buffer = ReplayBuffer(task.state_dim, task.action_dim, "cpu", 1, action_dtype=dtype)
    replay_buffer.load(prefix)
    columns = replay_buffer.rows(np.arange(replay_buffer.size))
    kept = Transitions(*(column.numpy() for column in columns))
    ends = minari_sets.episode_ends(kept, replay_buffer.ends())
    description = (
        f"{len(kept.state):,} transitions of {args.env}, the batch {args.buffer_name} with seed "
        f"{args.seed}. A time-out is where one transition does not go on with the next."
    )
    target = minari_sets.export(args.export_minari, kept, ends, task, args.overwrite, description)
    print(f"wrote {len(kept.state):,} transitions in {int(ends.sum()):,} episodes")
    print(f"saved {target}")
    if not replay_buffer.says_ends:
        print(
            "note: the batch has no column episode: an episode that began where the one before "
            "ended is part of that" + _counted_otherwise(prefix, int(ends.sum()))
        )
    if minari_sets.portable_spec(task) is None:
        print(f"note: it cannot say how {args.env} is made: give its --env to whoever reads it")


def _counted_otherwise(prefix: Path, episodes: int) -> str:
    """What a batch's record says of its episodes, where it counts more of them."""
    path = Path(f"{prefix}.json")
    counted = read_json(path).get("episodes") if path.exists() else None
    more = isinstance(counted, int) and counted > episodes
    return f": its record counts {counted:,}" if more else ""


def main() -> None:
    """Import, or export, what the flags name."""
    args = parse_args()
    notes.begin()
    args.output_dir = (args.output_dir or ROOT).resolve()
    if args.export_minari:
        export_minari(args)
    else:
        import_data(args)


if __name__ == "__main__":
    run(main)
