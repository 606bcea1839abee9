"""A statement's saved lines -> its figure, .png and .pdf.

    python figures.py results/tabular_*.npy          (draws again what main.py has saved)

Reads NAME.npy, (lines, x), and NAME.json beside it, which names the lines and the x axis.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import InputError, end_quietly, run

if __name__ == "__main__":
    end_quietly()

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils import read_array, read_json, replacing

# Okabe and Ito's colours, told apart by the colour-blind and in grey print.
BLUE, VERMILION, GREEN, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9"
BLACK, GREY = "#000000", "0.35"
EPSILON_PI = "$\\varepsilon^\\pi_{MDP}$"
Lines = dict[str, np.ndarray]


def panels(
    number: int, height: float = 3.0, width: float = 3.7, **options: Any
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of `number` panels in a row, sizes in inches."""
    figure, grid = plt.subplots(
        1, number, figsize=(width * number, height), layout="constrained", squeeze=False, **options
    )
    for axes in grid[0]:
        axes.grid(alpha=0.25, linewidth=0.5)
    return figure, grid[0]


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, where no curve can run through it."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False
    )


def draw_learning(record: dict[str, Any], lines: Lines) -> Figure:
    """Theorems 1 and 3: the distance to the limit over learning, both kinds of dynamics."""
    x = record["x"]
    target = "|Q − Q*_B|" if record["name"] == "theorem_1" else "|Q − Q*|"
    symbols = {"|Q − Q*_B|": "$|Q - Q^*_B|$", "|Q − Q*|": "$|Q - Q^*|$"}
    figure, both = panels(2)
    for axes, kind, step in zip(
        both, ("deterministic", "stochastic"), ("α = 1/2", "Robbins-Monro α"), strict=True
    ):
        shown = [(f"largest {target}", VERMILION, "--"), (f"median {target}", BLUE, "-")]
        if record["name"] == "theorem_1":
            shown.append(("median |Q − Q*|", BLACK, ":"))
        for name, colour, style in shown:
            word, symbol = name.split(" ", 1)
            axes.loglog(
                x, lines[f"{kind}, {name}"], style, color=colour, linewidth=1.8,
                label=f"{word} {symbols[symbol]}",
            )  # fmt: skip
        axes.set_title(f"{kind}, {step}", fontsize=9)
        axes.set_xlabel("updates")
    both[0].set_ylabel("largest over (s,a)\n(median, largest: over the MDPs)")
    legend_below(figure, both[0], 3)
    return figure


def draw_lemma_1(record: dict[str, Any], lines: Lines) -> Figure:
    """The error in evaluating a policy as p_B comes near p_M."""
    x = record["x"]
    figure, [axes] = panels(1, width=5.4)
    for name, colour, style in (("largest", VERMILION, "--"), ("median", BLUE, "-")):
        line = lines[f"stochastic, {name}"]
        axes.loglog(x, line, style, color=colour, linewidth=1.8, label=f"stochastic, {name}")
    root = lines["stochastic, median"][-1] * np.sqrt(x[-1] / np.array(x))
    axes.loglog(x, root, ":", color=BLACK, linewidth=1.2, label="$n^{-1/2}$")
    exactly = lines["deterministic, largest"].max()
    axes.text(
        0.03, 0.06, f"deterministic: {exactly:.2g} from the first sample on",
        transform=axes.transAxes, fontsize=8,
    )  # fmt: skip
    axes.set_ylim(bottom=lines["stochastic, median"].min() / 5)
    axes.set_xlabel("n, samples of every (s,a)")
    axes.set_ylabel(EPSILON_PI)
    legend_below(figure, axes, 3)
    return figure


def draw_theorem_2(record: dict[str, Any], lines: Lines) -> Figure:
    """ε_MDP of every state-action pair of one MDP as learning goes on, and the mean ε^π_MDP."""
    x = record["x"]
    figure, [left, right, below] = panels(3, height=3.6)
    largest = max(np.abs(line).max() for name, line in lines.items() if "mean" not in name)
    ticks = [k for k, updates in enumerate(x) if k % 10 == 0]
    for axes, learner, label in ((left, "Q_learning", "Q-learning"), (right, "BCQL", "BCQL")):
        axes.grid(False)
        rows = [(name, line) for name, line in lines.items() if name.startswith(f"{learner}, s")]
        held = sum(name.endswith(", in B") for name, _ in rows)
        image = axes.imshow(
            np.stack([line for _, line in rows]), aspect="auto", interpolation="nearest",
            cmap="RdBu_r", vmin=-largest, vmax=largest,
        )  # fmt: skip
        axes.axhline(held - 0.5, color=BLACK, linewidth=1.2)
        axes.set_yticks([(held - 1) / 2, (held + len(rows) - 1) / 2], ["in B", "not in B"])
        axes.tick_params(axis="y", length=0, labelrotation=90)
        for tick in axes.get_yticklabels():
            tick.set_verticalalignment("center")
        axes.set_xticks(ticks, [f"{x[k]:,}" for k in ticks], fontsize=8)
        axes.set_title(f"{label}: one MDP", fontsize=9)
        axes.set_xlabel("updates")
    left.set_ylabel("(s,a)")
    figure.colorbar(image, ax=right, label="$\\varepsilon_{MDP} = Q^\\pi - Q^\\pi_B$")
    for name, label, colour, style in (
        ("Q_learning", "Q-learning", VERMILION, "-"), ("BCQL", "BCQL", BLUE, "--"),
    ):  # fmt: skip
        below.plot(lines[f"{name}, mean ε^π_MDP"], style, color=colour, linewidth=1.8, label=label)
    below.set_xticks(ticks, [f"{x[k]:,}" for k in ticks], fontsize=8)
    below.set_title(f"all MDPs: mean {EPSILON_PI}", fontsize=9)
    below.set_xlabel("updates")
    below.legend(fontsize=8, frameon=False)
    return figure


def draw_theorem_4(record: dict[str, Any], lines: Lines) -> Figure:
    """What is earned as the batch grows from one trajectory to every transition there is."""
    figure, both = panels(2, height=3.6, sharey=True)
    shown: list[tuple[str, dict[str, Any]]] = [
        ("BCQL", {"color": BLUE, "marker": "o"}),
        ("Q-learning, Q_0 = 0", {"color": BLACK, "marker": "o", "markersize": 8,
                                 "markerfacecolor": "none", "linestyle": "none"}),
        ("Q-learning, Q_0 like Q*", {"color": VERMILION, "marker": "s"}),
        ("Q-learning, Q_0 = max Q*", {"color": ORANGE, "marker": "^"}),
        ("the batch's own policy", {"color": GREEN, "linestyle": "-.", "marker": "x"}),
        ("behaviour", {"color": GREY, "linestyle": "--", "linewidth": 1.2}),
    ]  # fmt: skip
    names = {
        "Q-learning, Q_0 = 0": "Q-learning, $Q_0 = 0$",
        "Q-learning, Q_0 like Q*": "Q-learning, $Q_0$ drawn like $Q^*$",
        "Q-learning, Q_0 = max Q*": "Q-learning, $Q_0 = \\max Q^*$",
    }
    for axes, kind in zip(both, ("deterministic", "stochastic"), strict=True):
        share = 100 * lines[f"{kind}, share of (s,a) in B"]
        for name, style in shown:
            axes.plot(
                share, lines[f"{kind}, {name}"], label=names.get(name, name),
                **({"markersize": 4, "linewidth": 1.6} | style),
            )  # fmt: skip
        axes.set_title(f"{kind} MDPs", fontsize=9)
        axes.set_xlabel("share of (s,a) in the batch, %")
    start = [lines[f"deterministic, {name}"][0] for name in ("share of (s,a) in B", "BCQL")]
    both[0].annotate(
        f"{record['x'][0]} trajectory", (100 * start[0], start[1]),
        textcoords="offset points", xytext=(8, -12), fontsize=8,
    )  # fmt: skip
    both[0].set_ylabel("value of $s_0$ in M\n(0: uniform policy, 1: optimal)")
    legend_below(figure, both[0], 3)
    return figure


def draw_line_world(record: dict[str, Any], lines: Lines) -> Figure:
    """Return and success of the constrained policies as the behaviour gets worse."""
    x = record["x"]
    figure, both = panels(2)
    names = [name.removeprefix("return, ") for name in lines if name.startswith("return, ")]
    styles = [(GREY, "--", None), (SKY, "-", "v"), (ORANGE, "-", "^"), (VERMILION, "-", "s"),
              (BLUE, "-", "o")]  # fmt: skip
    for axes, what in zip(both, ("return", "P(goal)"), strict=True):
        for name, (colour, style, marker) in zip(names, styles, strict=True):
            axes.plot(
                x, lines[f"{what}, {name}"], style, color=colour, marker=marker, markersize=3.5,
                linewidth=1.6, label=name if "KL" not in name else f"{name} nats",
            )  # fmt: skip
        axes.set_xlabel("P(left) of the behaviour")
    both[0].set_ylabel("discounted return from S")
    both[1].set_ylabel("P(G within 50 steps)")
    legend_below(figure, both[0], 3)
    return figure


DRAW: dict[str, Callable[[dict[str, Any], Lines], Figure]] = {
    "lemma_1": draw_lemma_1,
    "theorem_1": draw_learning,
    "theorem_2": draw_theorem_2,
    "theorem_3": draw_learning,
    "theorem_4": draw_theorem_4,
    "line_world": draw_line_world,
}


def save_figure(record: dict[str, Any], values: np.ndarray, png: Path, pdf: Path) -> None:
    """Draw a record with its values (lines, x) and write the figure to exactly these names."""
    lines = dict(zip(record["lines"], values, strict=True))
    figure = DRAW[record["name"]](record, lines)
    for path, kind in ((png, "png"), (pdf, "pdf")):
        # A fixed date makes the same figure the same file.
        metadata = {"CreationDate": None} if kind == "pdf" else {}
        figure.savefig(path, format=kind, dpi=160, metadata=metadata)
    plt.close(figure)


def main() -> None:
    """Draw the figures of saved statements again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path, help="what main.py saved, tabular_*.npy")
    args = parser.parse_args()
    mpl.use("Agg")
    for path in args.files:
        values, record_path = read_array(path), path.with_suffix(".json")
        record = read_json(record_path)
        try:
            fits = values.shape == (len(record["lines"]), len(record["x"]))
            known = record["name"] in DRAW
        except (KeyError, TypeError) as error:
            raise InputError(f"{record_path} is no record of a statement ({error})") from error
        if not (fits and known):
            raise InputError(f"{path} and {record_path} do not fit: make them again with main.py")
        targets = [path.with_suffix(".png"), path.with_suffix(".pdf")]
        with replacing(*targets) as [png, pdf]:
            save_figure(record, values, png, pdf)
        print(f"saved {targets[0]} and {targets[1].name}")


if __name__ == "__main__":
    run(main)
