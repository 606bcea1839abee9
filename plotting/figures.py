"""The grids of environments × batches: returns, and value estimates.

Sizes are those of print: ICML's column is 3.25 inches wide, its page 6.75, and no text is smaller
than 7 points. A learner has a colour and a marker, so that it is told apart in grey as well.
"""

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, SymmetricalLogLocator

from common.errors import InputError
from plotting.names import in_figure
from plotting.panels import BATCHES, LEARNERS, Panel, interval, place_in
from plotting.runs import AVERAGE, BEHAVIOUR, NO_SIMULATOR, Run, say

COLUMN, PAGE = 3.25, 6.75  # inches
PRINT: dict[str, Any] = {
    "font.size": 7, "axes.titlesize": 8, "axes.labelsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "legend.fontsize": 7, "legend.title_fontsize": 7, "axes.linewidth": 0.6,
    "lines.linewidth": 1.1, "lines.markersize": 4, "xtick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.width": 0.6, "ytick.major.size": 2.5,
    "ytick.minor.size": 1.5, "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.3,
    "grid.linewidth": 0.4, "savefig.dpi": 200,
    # Letters as letters (TrueType), which publishers ask for; the default's are drawings.
    "pdf.fonttype": 42, "ps.fonttype": 42,
}  # fmt: skip

# Okabe and Ito's colours, told apart by the colour-blind.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "X", "P", "<", ">", "p", "h")  # as colours come round again
# The discrete paper's learners, which those of the continuous one never meet in a panel.
COLOUR_OF = {"QRDQN": "DDPG", "REM": "TD3_BC", "KL_Control": "BEAR"}
# Cloning often lies exactly on BCQ: drawn over it, with gaps that let it show through.
CLONING: dict[str, Any] = {"BC": "-.", "VAE_BC": (0, (3, 1, 1, 1, 1, 1))}
OTHERS: tuple[Any, ...] = ((0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 0.6)))  # what is no paper's
GREY = "0.35"
ALONE = {BEHAVIOUR: "--", AVERAGE: ":"}  # the line styles of what no learner is
MARKS = 5  # markers a curve


def styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of every learner: always the same for the papers' ones."""
    others = itertools.cycle(itertools.product(OTHERS, range(len(COLOURS))))
    chosen: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in LEARNERS:
            dashes, place = CLONING.get(name, "-"), LEARNERS.index(name)
            colour = LEARNERS.index(COLOUR_OF.get(name, name))
        else:
            dashes, place = next(others)
            colour = place
        chosen[name] = {
            "color": COLOURS[colour],
            "marker": MARKERS[place % len(MARKERS)], "linestyle": dashes,
            "markeredgecolor": "white", "markeredgewidth": 0.4,
            "zorder": 2.9 if name in CLONING else 2.8 - 0.01 * len(chosen),
        }  # fmt: skip
    return chosen


def draw_curve(
    axes: Axes, name: str, x: np.ndarray, y: np.ndarray, kind: str, spread: float, **style: Any
) -> None:
    """The mean over seeds of `y` (seeds, evaluations) with its interval; NaN is left out."""
    there = np.isfinite(y).all(0)
    x, y = x[there], y[:, there]
    if not len(x):
        return
    if len(x) == 1:
        style = {"marker": "o"} | style  # a line of one point is none
    # Staggered, so that of two curves on one another both are seen.
    step = -(-len(x) // MARKS)
    start = 0 if len(x) < MARKS else MARKERS.index(style.get("marker", "o")) * step // len(MARKERS)
    axes.plot(x, y.mean(0), label=name, markevery=(start, step), **style)
    if len(y) > 1:
        low, high = interval(y, kind, spread)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def draw_returns(
    axes: Axes, panel: Panel, looks: dict[str, dict[str, Any]], kind: str, spread: float
) -> None:
    """Learning curves, the behavioural agent's own curve or its policy's line, the batch's line."""
    for name, runs in panel.learners.items():
        y = np.stack([run.y for run in runs])
        draw_curve(axes, in_figure(name), runs[0].x, y, kind, spread, **looks[name])
    returns = {name: np.stack([run.y for run in runs]) for name, runs in panel.online.items()}
    draw_behaviour(axes, panel, returns, kind, spread)
    lines = {name: np.mean([run.y[-1] for run in runs]) for name, runs in panel.generated.items()}
    if len(panel.batch_returns):
        lines[AVERAGE] = panel.batch_returns.mean()
    for name, height in lines.items():
        dashes = ALONE.get(name, ALONE[BEHAVIOUR])
        axes.axhline(float(height), color=GREY, linestyle=dashes, label=in_figure(name), zorder=3)


def draw_behaviour(
    axes: Axes, panel: Panel, curves: dict[str, np.ndarray], kind: str, spread: float
) -> None:
    """The behavioural agent's own (seeds, evaluations) by name, while its transitions came in."""
    learners = list(itertools.chain(*panel.learners.values()))
    place, shift, end = axes, 0.0, np.inf
    if learners and curves:
        end = max(run.x[-1] for run in learners)
        online = next(iter(panel.online.values()))[0]
        if any(run.arguments.get("concurrent") for run in learners):
            # Iteration t of a learner is the behavioural agent's update t.
            shift = float(online.arguments.get("start_timesteps", 0))
        elif not 0.8 < online.x[-1] / end < 1.25:
            place, end = axes.twiny(), np.inf
            place.grid(visible=False)
            place.set_xlabel("timesteps of the behaviour", color=GREY, labelpad=3)
            place.tick_params(axis="x", colors=GREY, pad=1)
    for name, y in curves.items():
        x = panel.online[name][0].x - shift
        seen = (x > 0) & (x <= end)
        look: dict[str, Any] = {"color": GREY, "linestyle": ALONE[BEHAVIOUR], "zorder": 3}
        draw_curve(place, in_figure(name), x[seen], y[:, seen], kind, spread, **look)
        finish_x(place)


def draw_values(
    axes: Axes, panel: Panel, looks: dict[str, dict[str, Any]], kind: str, spread: float
) -> None:
    """The critics' estimates and, dotted in the same colour, the true values.

    Where the batch is a training run, the behavioural agent's mean Q of that time stands beside
    them (ICML, figure 1): of its own mini-batches, while it learned.
    """
    true: list[np.ndarray] = []
    for name, runs in panel.learners.items():
        if not has_values(runs):
            if any(has_values([run]) for run in runs):
                say(f"{name} on {panel.env}, batch {panel.batch}: not every seed has estimates")
            continue
        values = np.stack([run.values for run in runs if run.values is not None])
        label, x = in_figure(name), runs[0].x
        draw_curve(axes, label, x, values[..., 0], kind, spread, **looks[name])
        dotted = looks[name] | {"linestyle": ":", "markerfacecolor": "white", "linewidth": 1.4}
        dotted["markeredgecolor"] = looks[name]["color"]
        draw_curve(axes, f"_true value of {label}", x, values[..., 1], kind, 0, **dotted)
        true.append(values[..., 1].mean(0))
    drawn = [np.asarray(line.get_ydata(), float) for line in axes.get_lines()]
    if not drawn:
        return
    own = {
        name: np.stack([run.values[:, 0] for run in runs if run.values is not None])
        for name, runs in panel.online.items()
        if has_values(runs)
    }
    draw_behaviour(axes, panel, own, kind, spread)
    heights = np.concatenate(true) if true else np.array([])
    scale_values(axes, np.concatenate(drawn), heights[np.isfinite(heights)])


def scale_values(axes: Axes, drawn: np.ndarray, true: np.ndarray) -> None:
    """A logarithmic axis where something drawn is more than ten times what values can be.

    That is the largest true value where there is one, else the median of all that is drawn. Where
    it is not all above zero the axis is linear about zero, up to that size.
    """
    size = float(np.abs(true).max() if len(true) else np.median(np.abs(drawn)))
    if size == 0 or np.abs(drawn).max() <= 10 * size:
        return
    if drawn.min() > 0:
        axes.set_yscale("log")
        axes.set_ylim(drawn.min() / 1.5, drawn.max() * 1.5)
        return
    linear = 10 ** np.floor(np.log10(size))
    axes.set_yscale("symlog", linthresh=linear)
    locator = SymmetricalLogLocator(base=10, linthresh=linear)
    locator.set_params(numticks=6)
    axes.yaxis.set_major_locator(locator)


def finish_x(axes: Axes) -> None:
    """Steps as 50k and 1M: no factor beside the axis."""
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def grid(panels: list[Panel], share_y: bool) -> tuple[Figure, list[Axes]]:
    """Environments × batches, and the axes of every panel; a place without runs stays empty."""
    envs = list(dict.fromkeys(panel.env for panel in panels))
    batches = sorted({panel.batch for panel in panels if panel.env}, key=place_in(BATCHES))
    # Files without a record have no environment, and a row of their own.
    places = [
        (envs.index(panel.env), batches.index(panel.batch) if panel.env else 0) for panel in panels
    ]
    if len(panels) < 0.6 * len(envs) * len(batches):
        # Environments with hardly a batch in common: no columns to keep, so move to the left.
        places = [(row, sum(r == row for r, _ in places[:k])) for k, (row, _) in enumerate(places)]
    columns = 1 + max(column for _, column in places)
    width = COLUMN if columns == 1 else PAGE * max(1, columns / 4)
    height = min(max(0.75 * width / columns, 1.55), 2.1)
    figure = Figure(figsize=(width, height * len(envs) + 0.2), layout="constrained")
    every = figure.subplots(len(envs), columns, squeeze=False, sharey="row" if share_y else False)
    for place, axes in np.ndenumerate(every):
        axes.set_visible(place in places)
    for (row, column), panel in zip(places, panels, strict=True):
        axes = every[row, column]
        title = f"batch {panel.batch}" if panel.batch else "behavioural training"
        axes.set_title(in_figure(title if panel.env else panel.batch))
        if column == min(c for r, c in places if r == row):
            unit = "undiscounted return" if share_y else "mean Q"
            if share_y and panel.env == NO_SIMULATOR:
                unit = "estimated value"
            axes.set_ylabel(f"{in_figure(panel.env)}\n{unit}" if panel.env else unit)
            axes.tick_params(labelleft=True)
    return figure, [every[place] for place in places]


def by_batch(panels: list[Panel], what: str, kind: str, spread: float) -> Figure:
    """`--figure batches` and `--figure values`. Raises: InputError where no value is recorded."""
    draw = draw_returns
    if what == "values":
        draw = draw_values
        panels = [p for p in panels if any(has_values(runs) for runs in p.learners.values())]
        if not panels:
            raise InputError(
                "none of the files has value estimates: stage 3 of a learner with a critic (BCQ, "
                "DDPG, …) records them"
            )
    figure, places = grid(panels, share_y=what == "batches")
    learners = sorted({name for panel in panels for name in panel.learners}, key=place_in(LEARNERS))
    looks = styles(learners)
    for axes, panel in zip(places, panels, strict=True):
        draw(axes, panel, looks, kind, spread)
        curves = list(itertools.chain(*panel.learners.values(), *panel.online.values()))
        if curves:
            axes.set_xlabel(in_figure(curves[0].x_label))
            finish_x(axes)
        else:
            axes.set_xticks([])
    add_legend(figure, panels, what, kind, spread)
    return figure


def add_legend(figure: Figure, panels: list[Panel], what: str, kind: str, spread: float) -> None:
    """One for all panels, below them, with the number of seeds and what the shade and dots are."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for panel in panels:
        for groups in (panel.learners, panel.online, panel.generated):
            for name, seeds in groups.items():
                numbers[in_figure(name)].add(len(seeds))
        numbers[AVERAGE].add(len(panel.batch_returns))
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    last = [name for name in handles if name == AVERAGE or name.startswith(BEHAVIOUR)]
    order = [*sorted(handles.keys() - set(last), key=place_in(LEARNERS)), *sorted(last)[::-1]]
    labels = [f"{name} (n = {span(numbers[name] - {0})})" for name in order]
    drawn = [handles[name] for name in order]
    if what == "values":
        sources = {
            run.value_source
            for panel in panels
            for run in itertools.chain(*panel.learners.values())
            if run.values is not None and np.isfinite(run.values[:, 1]).any()
        } - {""}
        if any(str(line.get_label())[:5] == "_true" for one in figure.axes for line in one.lines):
            drawn.append(Line2D([], [], color=GREY, linestyle=":", linewidth=1.4))
            found = " or ".join(map(in_figure, sorted(sources)))
            source = f" (from the {found})" if sources else ""
            labels.append(f"true value, in the same colour{source}")
    shade = f"{spread:g} standard deviations" if spread != 0.5 else "half a standard deviation"
    shade = "95% bootstrap interval" if kind == "bootstrap" else f"± {shade}"
    several = max(itertools.chain(*numbers.values()), default=1) > 1
    lay_out(figure, drawn, labels, f"mean over n seeds; shaded: {shade}" if several else "")


def lay_out(figure: Figure, handles: list[Any], labels: list[str], title: str) -> None:
    """A legend in as many columns as the figure is wide, which grows by its height."""
    columns, width = 1, 0.0
    for wanted in range(1, min(len(labels), 5) + 1):
        # As matplotlib fills the columns, and about as wide as it draws a letter.
        longest = [max(map(len, some)) for some in np.array_split(labels, wanted)]
        needed = sum(0.55 + 0.052 * letters for letters in longest)
        if wanted == 1 or needed < figure.get_figwidth():
            columns, width = wanted, needed
    figure.set_figwidth(max(figure.get_figwidth(), width))
    lines = -(-len(labels) // columns) + bool(title)
    figure.set_figheight(figure.get_figheight() + 0.15 * lines)
    figure.legend(
        handles,
        labels,
        title=title or None,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.2,
    )


def span(numbers: set[int]) -> str:
    """Numbers of seeds: {3} -> 3, {1, 2, 3} -> 1–3."""
    return "–".join(str(number) for number in sorted({min(numbers), max(numbers)}))


def has_values(runs: list[Run]) -> bool:
    """Whether each of these runs has an estimate at some evaluation."""
    return all(run.values is not None and np.isfinite(run.values[:, 0]).any() for run in runs)
