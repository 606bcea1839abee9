"""Saved evaluations -> one figure (.png and .pdf) and a table.

    python plot.py results/*.npy

One panel for every environment and batch (the offline learners, with the batch's average return and
the behavioural policy's as lines) and one for every environment's behavioural training. Runs that
differ in the seed alone are averaged.
"""

import argparse
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from common.errors import InputError, run
from common.files import ROOT, read_array, read_json, replacing

# Okabe and Ito's colours, told apart by the colour-blind and in grey print.
COLOURS = {
    "BCQ": "#0072B2", "DDPG": "#D55E00", "BC": "#009E73", "VAE_BC": "#CC79A7", "DQN": "#E69F00",
    "TD3_BC": "#56B4E9", "BEAR": "#000000",
}  # fmt: skip
LINES = {"behavioural policy": "--", "batch's average return": ":"}
# Arguments that may differ between runs that are averaged: none of them changes what is learned.
INCIDENTAL = {"seed", "threads", "device", "overwrite", "tensorboard"}
LAST = 10  # evaluations behind a "final" figure, as in the papers' tables


@dataclass(frozen=True)
class Result:
    """One saved run: mean return `y[k]` after `x[k]` steps, and what its record says."""

    path: Path
    env: str
    batch: str
    label: str
    x: np.ndarray
    x_label: str
    y: np.ndarray
    arguments: dict[str, Any]
    batch_return: float | None


def read_result(path: Path) -> Result:
    """A result and its record. Raises: InputError where either is damaged or they do not fit."""
    y = np.array(read_array(path), dtype=float)
    if y.ndim != 1 or len(y) == 0:
        raise InputError(f"{path} has shape {y.shape}: saved evaluations are one number each, (N,)")
    record_path = path.with_suffix(".json")
    if not record_path.exists():
        # Another code's evaluations: the name is all that is known of them.
        label = re.sub(r"_\d+$", "", path.stem)
        x = np.arange(1, len(y) + 1)
        return Result(path, "", "no record", label, x, "evaluations", y, {}, None)
    record = read_json(record_path)
    try:
        arguments, x = record["arguments"], np.array(record["x"])
        env, batch = arguments["env"], arguments["buffer_name"]
        label, x_label = arguments["algorithm"], record["x_label"]
        if arguments["train_behavioral"]:
            batch, label = "", "behavioural policy"
        elif arguments["generate_buffer"]:
            label = "behavioural policy"
        batch_return = record.get("batch", {}).get("mean_return")
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{record_path} is no record of a run ({error})") from error
    if len(x) != len(y):
        raise InputError(f"{path} has {len(y)} evaluations, its record {len(x)}: they do not fit")
    return Result(path, env, batch, label, x, x_label, y, arguments, batch_return)


def stack(runs: list[Result]) -> tuple[np.ndarray, np.ndarray]:
    """The x axis and the returns (runs, evaluations) of runs that differ in the seed alone.

    A shorter (unfinished) run cuts the others to its length, and a line says so.

    Raises: InputError where the runs were made with other arguments or evaluated elsewhere.
    """
    first = runs[0]
    length = min(len(one.y) for one in runs)
    seeds: dict[Any, Path] = {}
    for one in runs:
        keys = (one.arguments.keys() | first.arguments.keys()) - INCIDENTAL
        differing = [k for k in sorted(keys) if one.arguments.get(k) != first.arguments.get(k)]
        if differing or np.any(one.x[:length] != first.x[:length]):
            names = ", ".join(f"--{name}" for name in differing) or "the x axis"
            raise InputError(
                f"{first.path} and {one.path} differ in {names}: they are not seeds of one "
                "experiment; plot them apart"
            )
        seed = one.arguments.get("seed", one.path)
        if seed in seeds:
            raise InputError(f"{seeds[seed]} and {one.path} are the same run: name it once")
        seeds[seed] = one.path
        if len(one.y) > length:
            print(f"{one.path}: {length} of its {len(one.y)} evaluations used, as many as all have")
    return first.x[:length], np.stack([one.y[:length] for one in runs])


def draw_panel(axes: Axes, title: str, groups: dict[str, list[Result]], spread: float) -> None:
    """Curves of the learners; a single evaluation (a batch's record) is a horizontal line."""
    for label, runs in groups.items():
        x, returns = stack(runs)
        if runs[0].arguments.get("generate_buffer"):
            lines = {"behavioural policy": returns.mean()}
            averages = [one.batch_return for one in runs if one.batch_return is not None]
            if averages:
                lines["batch's average return"] = float(np.mean(averages))
            for name, height in lines.items():
                axes.axhline(height, color="0.35", linestyle=LINES[name], linewidth=1.2, label=name)
            continue
        mean, colour = returns.mean(0), COLOURS.get(label, "0.35")
        seeds = f"{len(runs)} seeds, ±{spread:g} s.d." if len(runs) > 1 else "1 seed"
        # Cloning often lies exactly on BCQ: the gaps let the line below show through.
        style: dict[str, Any] = {
            "linestyle": "-." if "BC" in label.split("_") else "-",
            "linewidth": 1.5,
        }
        style["marker"] = "o" if len(x) == 1 else None
        axes.plot(x, mean, color=colour, label=f"{label} ({seeds})", **style)
        if len(runs) > 1:
            band = spread * returns.std(0)
            axes.fill_between(x, mean - band, mean + band, color=colour, alpha=0.2, linewidth=0)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(next(iter(groups.values()))[0].x_label if groups else "")
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-3, 4), useMathText=True)
    axes.grid(alpha=0.25, linewidth=0.5)
    # Below, where no curve can run through it.
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2)


def table(panels: dict[tuple[str, str], dict[str, list[Result]]]) -> str:
    """A Markdown table: mean over seeds (± their standard deviation where there are several)."""
    rows = [
        f"| environment | batch | | seeds | mean of the last {LAST} evaluations | last | best |",
        "|---|---|---|---:|---:|---:|---:|",
    ]

    def shown(values: np.ndarray) -> str:
        return f"{values.mean():.1f}" + (f" ± {values.std():.1f}" if len(values) > 1 else "")

    for (env, batch), groups in panels.items():
        for label, runs in groups.items():
            _, returns = stack(runs)
            final, last, best = returns[:, -LAST:].mean(1), returns[:, -1], returns.max(1)
            cells = f"{shown(final)} | {shown(last)} | {shown(best)} |"
            if runs[0].arguments.get("generate_buffer"):
                cells = f"{shown(last)} | | |"
            rows.append(f"| {env} | {batch or '(online)'} | {label} | {len(runs)} | {cells}")
            averages = np.array([one.batch_return for one in runs if one.batch_return is not None])
            if len(averages):
                line = f"| batch's average return | {len(averages)} | {shown(averages)} | | |"
                rows.append(f"| {env} | {batch} {line}")
    return "\n".join(rows)


def main() -> None:
    """Read the files, draw the figure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path, help="saved evaluations, results/*.npy")
    parser.add_argument(
        "--output",
        default=str(ROOT / "results" / "figure.png"),
        help="the figure's name; .png and .pdf are both written (default: results/figure.png)",
    )
    parser.add_argument(
        "--spread",
        type=float,
        default=0.5,
        help="half-width of the shaded band, in standard deviations over seeds (default: 0.5, the "
        "ICML paper's)",
    )
    args = parser.parse_args()
    if not args.spread >= 0:
        parser.error(f"argument --spread: {args.spread} is not a number of at least 0")
    # Not Path.with_suffix: a name such as `phi0.05` has no suffix to replace.
    stem = re.sub(r"\.(png|pdf)$", "", args.output)
    if Path(args.output).is_dir() or not Path(stem).name:
        parser.error(f"argument --output: {args.output!r} is no name of a figure")

    panels: dict[tuple[str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    order = {label: place for place, label in enumerate(COLOURS)}
    results = [read_result(path) for path in args.files]
    for one in sorted(results, key=lambda r: (r.env, r.batch, order.get(r.label, 99), r.path)):
        panels[one.env, one.batch][one.label].append(one)

    mpl.use("Agg")
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 2.9 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, ((env, batch), groups) in zip(grid.flat, panels.items(), strict=False):
        title = f"{env}, {f'batch {batch}' if batch else 'behavioural training'}".lstrip(", ")
        draw_panel(axes, title, groups, args.spread)
    for axes in grid[:, 0]:
        axes.set_ylabel("undiscounted return")

    targets = [Path(f"{stem}{suffix}") for suffix in (".png", ".pdf")]
    with replacing(*targets) as temporaries:
        for target, temporary in zip(targets, temporaries, strict=True):
            # A fixed date makes the same figure the same file.
            metadata = {"CreationDate": None} if target.suffix == ".pdf" else {}
            plt.savefig(temporary, format=target.suffix[1:], dpi=160, metadata=metadata)
    plt.close(figure)
    print(table(panels))
    print(f"\nsaved {targets[0]} and {targets[1].name}")


if __name__ == "__main__":
    run(main)
