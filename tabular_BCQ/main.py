"""The theory of batch-constrained Q-learning, checked on random finite MDPs.

    python main.py                       (everything: Lemma 1, Theorems 1 to 4, the line world)
    python main.py --theorem 4           (one of them)

Prints what is claimed, on how many MDPs it was checked and the largest deviation; saves the lines
(.npy), a record of them (.json) and the figure (.png, .pdf).

Source: Fujimoto, Meger, Precup, "Off-Policy Deep Reinforcement Learning without Exploration", ICML
2019, section 4.1.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import end_quietly, run

if __name__ == "__main__":
    end_quietly()

import matplotlib as mpl
import numpy as np

from checks import Check, Statement
from figures import save_figure
from line_world import line_world
from theorems import lemma_1, theorem_1, theorem_2, theorem_3, theorem_4
from utils import ROOT, refuse_existing, replacing, write_array, write_json

STATEMENTS: dict[str, Callable[[int, int], Statement]] = {
    "lemma_1": lemma_1,
    "theorem_1": theorem_1,
    "theorem_2": theorem_2,
    "theorem_3": theorem_3,
    "theorem_4": theorem_4,
    "line_world": line_world,
}
MOST_MDPS = 10_000  # some 10 GB


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An argparse type for whole numbers in [low, high]."""

    def parse(text: str) -> int:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not (low <= number <= high and number.is_integer()):
            raise argparse.ArgumentTypeError(
                f"{text} is not a whole number from {low} to {high}, such as 1000 or 1e3"
            )
        return int(number)

    return parse


def folder(text: str) -> Path:
    """A path; the empty one is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a folder is empty")
    return Path(text)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """All flags; at most one names a statement."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="With none of --lemma, --theorem and --line_world, all of them.",
        allow_abbrev=False,
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--lemma", type=int, choices=[1], help="this lemma of the paper alone")
    one.add_argument("--theorem", type=int, choices=[1, 2, 3, 4], help="this theorem alone")
    one.add_argument("--line_world", action="store_true", help="BEAR's line world alone")
    parser.add_argument(
        "--mdps", type=whole_number(1, MOST_MDPS), default=1000,
        help="random MDPs of every check (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole_number(0, 2**53), default=0,
        help="seed of the random generator; part of all file names (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--output_dir", type=folder, default=ROOT,
        help="folder of results/ (default: the repository)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace files of the same name")
    return parser.parse_args(argv)


def shown(check: Check) -> str:
    """One check as a line: MDPs, figure, bound, verdict, claim."""
    number = f"{check.number:,} MDPs"
    if check.at_most is None and check.at_least is None:
        return f"  {number:>10}  {check.figure:9.0f}  (counter-examples)".ljust(46) + check.claim
    word, bound = (
        ("at most", check.at_most) if check.at_most is not None else ("at least", check.at_least)
    )
    verdict = "" if check.holds else "DOES NOT HOLD: "
    return f"  {number:>10}  {check.figure:9.2g}  ({word} {bound:.2g})".ljust(46) + (
        f"{verdict}{check.claim}"
    )


def as_record(statement: Statement, args: argparse.Namespace, seconds: float) -> dict:
    """What a reader of the .npy needs: its lines, its x axis, the claims, and how it was made."""
    checks = [
        {key: getattr(value, "item", lambda v=value: v)() for key, value in c._asdict().items()}
        | {"holds": bool(c.holds)}
        for c in statement.checks
    ]
    kept = {k: v for k, v in vars(args).items() if k not in {"output_dir", "overwrite"}}
    return {
        "name": statement.name,
        "claim": statement.claim,
        "checks": checks,
        "x_label": statement.x_label,
        "x": statement.x,
        "lines": statement.lines,
        "arguments": kept,
        "cpu_seconds": round(seconds, 2),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }


def main() -> None:
    """Check the statements that the flags name. Ends with status 1 where one does not hold."""
    args = parse_args()
    if args.lemma:
        names = [f"lemma_{args.lemma}"]
    elif args.theorem:
        names = [f"theorem_{args.theorem}"]
    else:
        names = ["line_world"] if args.line_world else list(STATEMENTS)
    results = args.output_dir.resolve() / "results"
    files = {
        name: [results / f"tabular_{name}_{args.seed}{kind}" for kind in
               (".npy", ".json", ".png", ".pdf")]
        for name in names
    }  # fmt: skip
    refuse_existing([path for paths in files.values() for path in paths], args.overwrite)

    mpl.use("Agg")
    failed = 0
    for name in names:
        with replacing(*files[name]) as [npy, json, png, pdf]:
            npy.touch()  # a folder that cannot be written is told before the minute, not after
            began = time.process_time()
            statement = STATEMENTS[name](args.seed, args.mdps)
            seconds = time.process_time() - began
            record = as_record(statement, args, seconds)
            write_array(npy, statement.values)
            write_json(json, record)
            save_figure(record, statement.values, png, pdf)
        failed += sum(not check.holds for check in statement.checks)
        claim = " ".join(statement.claim.split())
        print(f"{name.replace('_', ' ').capitalize()}. {claim}")
        print("\n".join(map(shown, statement.checks)))
        print(f"  saved {files[name][2]} (.pdf, .npy, .json); {seconds:.1f} s of CPU\n", flush=True)
    if failed:
        sys.exit(f"error: {failed} of the checks above do not hold")


if __name__ == "__main__":
    run(main)
