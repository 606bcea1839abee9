"""Saved evaluations -> one figure (.png and .pdf) and a table (Markdown, and .csv beside it).

    python plot.py results/*.npy
    python plot.py --figure values results/*.npy
    python plot.py --figure tradeoff sweep/phi*/results/*.npy

`batches` is the paper's figure, environments × batches: every learner's returns, those of the
behavioural agent, and the batch's average as a line. `values` are the critics' estimates with the
true values dotted. `tradeoff` is BCQ's final performance over Φ and the number of candidates.

Runs that differ in the seed alone are averaged (`plotting/panels.py` says what that means); other
runs of one learner are curves of their own, named by what they differ in.
"""

import argparse
import re
from pathlib import Path

from common.errors import end_quietly, run

if __name__ == "__main__":
    end_quietly()

import matplotlib as mpl

from common.files import ROOT, replacing
from plotting import figures, table
from plotting.panels import panels
from plotting.runs import read_runs, say
from plotting.tradeoff import tradeoff

FIGURES = ("batches", "values", "tradeoff")


def parse_args() -> tuple[argparse.Namespace, str]:
    """The flags, and the figure's name without a suffix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path, help="saved evaluations, results/*.npy")
    parser.add_argument(
        "--figure",
        choices=FIGURES,
        default="batches",
        help="returns by environment and batch; value estimates; or BCQ's final performance over "
        "phi and candidates (default: batches)",
    )
    parser.add_argument(
        "--output",
        help="the figure's name; .png, .pdf and .csv are written (default: results/FIGURE)",
    )
    parser.add_argument(
        "--interval",
        choices=["sd", "bootstrap"],
        default="sd",
        help="the shade about a mean over seeds: standard deviations, or a bootstrap's 95%% "
        "interval of the mean (default: sd)",
    )
    parser.add_argument(
        "--spread",
        type=float,
        default=0.5,
        help="half-width of --interval sd, in standard deviations (default: 0.5, the ICML paper's)",
    )
    args = parser.parse_args()
    if not 0 <= args.spread < float("inf"):
        parser.error(f"argument --spread: {args.spread} is not a number of at least 0")
    if args.output is None:
        args.output = str(ROOT / "results" / args.figure)
    # Not Path.with_suffix: a name such as `phi0.05` has no suffix to replace.
    stem = re.sub(r"\.(png|pdf)$", "", args.output)
    if Path(args.output).is_dir() or not Path(stem).name:
        parser.error(f"argument --output: {args.output!r} is no name of a figure")
    return args, stem


def main() -> None:
    """Read the files, draw the figure, print the table."""
    args, stem = parse_args()
    runs = read_runs(args.files)
    places = panels(runs)
    rows = table.rows(places, runs, args.interval)
    targets = [Path(f"{stem}{suffix}") for suffix in (".png", ".pdf", ".csv")]
    with mpl.rc_context(figures.PRINT):  # type: ignore[arg-type]
        if args.figure == "tradeoff":
            figure = tradeoff(places, runs)
        else:
            figure = figures.by_batch(places, args.figure, args.interval, args.spread)
        with replacing(*targets) as (png, pdf, csv):
            figure.savefig(png, format="png")
            # A fixed date makes the same figure the same file.
            figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
            csv.write_text(table.to_csv(rows), encoding="utf-8", errors="backslashreplace")
    print(table.to_markdown(rows, args.interval))
    say(f"saved {', '.join(map(str, targets))}")


if __name__ == "__main__":
    run(main)
