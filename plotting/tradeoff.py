"""The trade-off between imitation and Q-learning: BCQ over Φ and the number of candidates."""

import itertools
from collections import defaultdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.errors import InputError
from plotting.figures import COLUMN, span
from plotting.names import in_figure
from plotting.panels import Panel, behaviour_of, cut, differing
from plotting.runs import BEHAVIOUR, FINAL, Run

CANDIDATES = ("target_candidates", "acting_candidates")


def tradeoff(panels: list[Panel], runs: list[Run]) -> Figure:
    """`--figure tradeoff`: a heat map of BCQ's final performance for every environment and batch.

    Bottom left, Φ = 0 and one candidate, is cloning by the VAE; top right goes towards Q-learning.

    Raises: InputError where there is no such run, or they differ in anything else.
    """
    maps = []
    for panel in panels:
        here = [run for run in itertools.chain(*panel.learners.values()) if is_bcq(run)]
        others = sorted(set(differing(here)) - {"phi", *CANDIDATES})
        if others:
            raise InputError(
                f"the runs of BCQ on {panel.env}, batch {panel.batch}, differ in --{others[0]} as "
                "well: a heat map is of phi and candidates alone; plot them apart"
            )
        if here:
            maps.append((panel, cut(here)))
    if not maps:
        raise InputError(
            "none of the files is a run of continuous BCQ, the one with --phi and candidates"
        )
    columns = min(len(maps), 2)
    lines = -(-len(maps) // columns)
    figure = Figure(figsize=(COLUMN * columns, 2.6 * lines), layout="constrained")
    every = figure.subplots(lines, columns, squeeze=False)
    for axes in every.flat[len(maps) :]:
        axes.set_visible(False)
    for axes, (panel, here) in zip(every.flat, maps, strict=False):
        draw_heat_map(figure, axes, panel, here, runs)
    return figure


def is_bcq(run: Run) -> bool:
    """Whether the run has the two axes of the trade-off."""
    return run.learner == "BCQ" and {"phi", *CANDIDATES} <= run.arguments.keys()


def draw_heat_map(
    figure: Figure, axes: Axes, panel: Panel, here: list[Run], runs: list[Run]
) -> None:
    """Mean over seeds in every cell; grey where there is no run."""
    cells: dict[tuple[float, tuple[int, int]], list[float]] = defaultdict(list)
    for run in here:
        target, acting = (run.arguments[name] for name in CANDIDATES)
        cells[run.arguments["phi"], (target, acting)].append(run.final)
    phis = sorted({phi for phi, _ in cells})
    candidates = sorted({pair for _, pair in cells})
    heights = np.full((len(phis), len(candidates)), np.nan)
    for (phi, pair), finals in cells.items():
        heights[phis.index(phi), candidates.index(pair)] = np.mean(finals)
    seeds = {len(finals) for finals in cells.values()}

    axes.grid(visible=False)
    axes.set_facecolor("0.85")
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(heights), cmap="cividis", edgecolor="white", linewidth=0.5
    )
    for (row, column), height in np.ndenumerate(heights):
        if np.isfinite(height):
            number = len(cells[phis[row], candidates[column]])
            text = f"{height:.0f}" if abs(height) >= 100 else f"{height:.1f}"
            text += f"\nn = {number}" if len(seeds) > 1 else ""
            light = np.mean(mesh.to_rgba(height)[:3]) > 0.5
            axes.text(
                column + 0.5, row + 0.5, text, ha="center", va="center",
                color="black" if light else "white",
            )  # fmt: skip
    bar = figure.colorbar(mesh, ax=axes, label=f"return, mean of {FINAL}")
    bar.outline.set_linewidth(0.6)
    title = in_figure(f"{panel.env}, batch {panel.batch}")
    behaviour = [found.final for run in here if (found := behaviour_of(run, runs))]
    facts = [f"n = {span(seeds)}"] if len(seeds) == 1 else []
    if behaviour:
        facts.append(f"{BEHAVIOUR} {np.mean(behaviour):.0f}")
    axes.set_title("\n".join(filter(None, [title, ", ".join(facts)])))
    axes.set_yticks(np.arange(len(phis)) + 0.5, [f"{phi:g}" for phi in phis])
    axes.set_xticks(
        np.arange(len(candidates)) + 0.5,
        [
            f"{target}/{acting}" if target != acting else f"{target}"
            for target, acting in candidates
        ],
    )
    axes.tick_params(length=0)
    axes.set_ylabel("Φ, largest perturbation")
    axes.set_xlabel("candidates n, in the target/when acting")
