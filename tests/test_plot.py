"""plot.py: what it averages, draws and tabulates, and what it refuses."""

import csv
import json
import math
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from conftest import ROOT
from matplotlib.colors import to_hex

import plot
from common.errors import InputError
from plotting import figures, table
from plotting.names import in_figure, in_table
from plotting.panels import cut, experiments, interval, panels
from plotting.runs import read_run, read_runs
from plotting.tradeoff import tradeoff

BAD = float("nan")


def saved(folder: Path, name: str, y: list[float], **changes: Any) -> Path:
    """A saved run as main.py leaves it; `changes` go into its arguments or, by name, its record."""
    arguments: dict[str, Any] = {
        "train_behavioral": False,
        "generate_buffer": False,
        "algorithm": "BCQ",
        "env": "Toy-v0",
        "buffer_name": "Robust",
        "seed": 0,
        "max_timesteps": 10 * len(y),
        "concurrent": False,
        "start_timesteps": 10,
        "phi": 0.05,
        "target_candidates": 10,
        "acting_candidates": 100,
        "lmbda": 0.75,
        "threads": 1,
    }
    record: dict[str, Any] = {
        "finished": True,
        "x_label": "iterations",
        "x": [10 * (k + 1) for k in range(len(y))],
    }
    for key, value in changes.items():
        (arguments if key in arguments else record)[key] = value
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.npy"
    np.save(path, np.array(y))
    path.with_suffix(".json").write_text(json.dumps(record | {"arguments": arguments}))
    return path


def estimates(*pairs: tuple[float | None, float | None]) -> list[dict[str, float | None]]:
    """`values` of a record."""
    return [{"estimate": estimate, "true": true} for estimate, true in pairs]


def batch_of(stage: str, mean_return: float | None = 3.0, **more: Any) -> dict[str, Any]:
    """A batch's record."""
    batch = {"stage": stage, "policy": "behavioral_Toy-v0_0", "mean_return": mean_return}
    return batch | {"arguments": {"gaussian_std": 0.3}} | more


def drawn(monkeypatch: pytest.MonkeyPatch, *words: Any) -> None:
    """plot.py, as typed."""
    monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, words)])
    plot.main()


def figure_of(paths: list[Path], what: str = "batches", kind: str = "sd") -> Any:
    """The figure of these files."""
    runs = read_runs(paths)
    if what == "tradeoff":
        return tradeoff(panels(runs), runs)
    return figures.by_batch(panels(runs), what, kind, 0.5)


def visible(figure: Any) -> list[Any]:
    """The axes that are shown."""
    return [axes for axes in figure.axes if axes.get_visible()]


def curves(axes: Any) -> dict[str, list[list[float]]]:
    """What is drawn, by label: [x, y] of every point."""
    return {str(line.get_label()): line.get_xydata().tolist() for line in axes.get_lines()}


def legend(figure: Any) -> list[str]:
    """Every line of the legend."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rows_of(paths: list[Path], kind: str = "sd") -> dict[tuple[str, str], dict[str, Any]]:
    """The table by batch and learner."""
    runs = read_runs(paths)
    return {(r["batch"], r["learner"]): r for r in table.rows(panels(runs), runs, kind)}


# What is averaged


def test_seeds_are_averaged_and_the_table_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a = saved(tmp_path, "BCQ_Robust_Toy-v0_0", [1.0, 5.0])
    b = saved(tmp_path, "BCQ_Robust_Toy-v0_1", [3.0, 9.0], seed=1, threads=2)
    batch = saved(
        tmp_path, "buffer_performance_Robust_Toy-v0_0", [4.0], generate_buffer=True,
        batch={"mean_return": -2.5},
    )  # fmt: skip
    drawn(monkeypatch, a, b, batch, "--output", tmp_path / "figure.png")
    said = capsys.readouterr().out
    # The last evaluations, half of two, are 5 and 9. No behaviour of seed 1.
    assert "| Toy-v0 | Robust | BCQ | 2 | 20 | 7.0 ± 2.0 | 7.0 | 7.0 | n/a | n/a | n/a |" in said
    assert "| behavioural policy | 1 | 10 | 4.0 | 4.0 | 4.0 | 100.0 | +0.0 | n/a |" in said
    assert "| batch's average return | 1 | n/a | -2.5 | n/a | n/a | -62.5 | -162.5 | n/a |" in said
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    with (tmp_path / "figure.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["learner"] == "BCQ" and len(rows) == 3
    assert (rows[0]["final"], rows[0]["low"], rows[0]["high"]) == ("7.0", "5.0", "9.0")
    assert rows[0]["d4rl_score"] == rows[0]["percent_of_behaviour"] == "n/a"


def test_an_unfinished_seed_cuts_the_others_and_both_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = saved(tmp_path, "long", [1.0, 2.0, 3.0], max_timesteps=35)
    short = saved(tmp_path, "short", [5.0], seed=1, max_timesteps=35, finished=False)
    [runs] = experiments([read_run(long), read_run(short)]).values()
    assert [run.x.tolist() for run in runs] == [[10], [10]]
    assert [run.y.tolist() for run in runs] == [[1.0], [5.0]]
    assert "long.npy: 1 of its 3 evaluations used, as many as short.npy" in capsys.readouterr().err
    row = rows_of([long, short])["Robust", "BCQ"]
    assert (row["steps"], row["planned"], row["n"]) == (10, 35, 2)
    assert "| 10 of 35 |" in table.to_markdown([row], "sd")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"lmbda": 1.0}, ["BCQ, lmbda 0.75", "BCQ, lmbda 1.0"]),
        ({"max_timesteps": 70}, ["BCQ, max_timesteps 20", "BCQ, max_timesteps 70"]),
        ({"threads": 2, "device": "cuda", "true_value": True, "behavioral_seed": 4}, ["BCQ"]),
        ({"unknown to the other": 3}, ["BCQ"]),
    ],
)
def test_what_differs_in_more_than_the_seed_is_a_curve_of_its_own(
    tmp_path: Path, changes: dict[str, Any], names: list[str]
) -> None:
    one = read_run(saved(tmp_path, "one", [1.0, 2.0]))
    two = saved(tmp_path, "two", [1.0, 2.0], seed=1)
    record = json.loads(two.with_suffix(".json").read_text())
    record["arguments"] |= changes
    two.with_suffix(".json").write_text(json.dumps(record))
    assert list(experiments([one, read_run(two)])) == names


def panels_of(folder: Path, *batches: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Panels of one run a batch, each of another learner: their names, learners and seeds."""
    learners = ["BCQ", "BC", "DDPG", "DQN"]
    paths = [
        saved(folder, f"{number}", [1.0], seed=batch.pop("seed", 0), batch=batch, algorithm=learner)
        for number, (learner, batch) in enumerate(zip(learners, batches, strict=False))
    ]
    return {
        panel.batch: [(name, run.seed) for name, seeds in panel.learners.items() for run in seeds]
        for panel in panels(read_runs(paths))
    }


def test_batches_that_were_made_otherwise_have_panels_of_their_own(tmp_path: Path) -> None:
    noisy, quiet = {"gaussian_std": 0.3, "seed": 0}, {"gaussian_std": 0.1, "seed": 7}
    made = [batch_of("generate_buffer", arguments=one) for one in (noisy, quiet, noisy)]
    assert panels_of(tmp_path, *made, {"mean_return": 1.0}) == {
        "Robust": [("DQN", 0)],  # of no known batch: of neither
        "Robust, gaussian_std 0.1": [("BC", 0)],
        "Robust, gaussian_std 0.3": [("BCQ", 0), ("DDPG", 0)],
    }
    longer = batch_of("generate_buffer", arguments=noisy | {"max_timesteps": 5})
    assert len(panels_of(tmp_path, longer, batch_of("generate_buffer", arguments=noisy))) == 1
    other = batch_of("generate_buffer", arguments=noisy | {"max_timesteps": 6})
    assert set(panels_of(tmp_path, longer, other)) == {
        "Robust, max_timesteps 5", "Robust, max_timesteps 6"
    }  # fmt: skip


def test_a_batch_made_anew_is_told_by_its_digest(tmp_path: Path) -> None:
    one, other = ({"digest": letter * 64} for letter in "ab")
    assert panels_of(tmp_path, dict(one), dict(other)) == {
        "Robust, digest aaaaaaaa": [("BCQ", 0)], "Robust, digest bbbbbbbb": [("BC", 0)]
    }  # fmt: skip
    # Every seed has a batch of its own; which of seed 0's goes with it nobody knows.
    assert list(panels_of(tmp_path, dict(one), other | {"seed": 1})) == ["Robust"]
    third = {"digest": "c" * 64, "seed": 1}
    assert len(panels_of(tmp_path, dict(one), dict(other), third)) == 3
    # Records from before digests say nothing against it.
    assert list(panels_of(tmp_path, dict(one), {}, dict(one))) == ["Robust"]


def test_a_learner_is_compared_with_the_policy_of_its_own_batch(tmp_path: Path) -> None:
    for folder, digest, height in [("a", "a" * 64, 4.0), ("b", "b" * 64, 8.0)]:
        made = batch_of("generate_buffer", height) | {"digest": digest}
        saved(tmp_path / folder, "made", [height], generate_buffer=True, batch=made)
        saved(tmp_path, folder, [4.0], batch=made, algorithm=folder)
    rows = rows_of(sorted(tmp_path.rglob("*.npy")))
    percent = {name: row["percent_of_behaviour"] for (_, name), row in rows.items()}
    assert (percent["a"], percent["b"]) == (100, 50)


def test_without_a_simulator_estimates_are_called_that_and_no_return(tmp_path: Path) -> None:
    paths = [
        saved(
            tmp_path, f"BCQ_Clinic_{seed}", [0.25, 0.5 + seed / 5], env=None,
            buffer_name="Clinic", seed=seed, batch=batch_of("import", 9.0),
        )
        for seed in (0, 1)
    ]  # fmt: skip
    figure = figure_of(paths)
    [axes] = visible(figure)
    assert axes.get_ylabel() == "no simulator\nestimated value"
    assert "batch's average return" not in legend(figure)
    shown = table.to_markdown(list(rows_of(paths).values()), "sd")
    assert "| final estimate |" in shown and "| 0.6 ± " in shown
    assert "Of no simulator they are estimates" in shown
    assert "return" not in shown.split("Percentages")[0]


def test_runs_that_cannot_be_averaged_are_refused(tmp_path: Path) -> None:
    one = read_run(saved(tmp_path, "one", [1.0, 2.0]))
    with pytest.raises(InputError, match=r"one\.npy and .*two\.npy are two runs of BCQ, seed 0"):
        experiments([one, read_run(saved(tmp_path, "two", [1.0, 3.0]))])
    with pytest.raises(InputError, match=r"one\.npy and .*x\.npy differ in the x axis"):
        cut([one, read_run(saved(tmp_path, "x", [1.0, 2.0], x=[7, 14], seed=1))])


def test_a_file_named_twice_and_a_copy_are_used_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, "a", [1.0, BAD])
    copy = saved(tmp_path / "elsewhere", "a", [1.0, BAD])
    monkeypatch.chdir(tmp_path)
    assert len(read_runs([path, Path("a.npy"), tmp_path / "elsewhere" / ".." / "a.npy"])) == 1
    assert rows_of([path, copy])["Robust", "BCQ"]["n"] == 1
    assert "a copy of" in capsys.readouterr().err


# The grid of returns


def test_the_line_the_band_the_axis_and_n_are_the_records(tmp_path: Path) -> None:
    paths = [saved(tmp_path, f"run_{seed}", [seed, 2 + seed], seed=seed) for seed in (0, 1)]
    figure = figure_of(paths)
    [axes] = visible(figure)
    assert curves(axes) == {"BCQ": [[10, 0.5], [20, 2.5]]}
    [band] = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(0.25) and heights.max() == pytest.approx(2.75)
    assert axes.get_xlabel() == "iterations" and axes.get_title() == "batch Robust"
    assert axes.get_ylabel() == "Toy-v0\nundiscounted return"
    assert legend(figure) == ["BCQ (n = 2)"]
    title = figure.legends[0].get_title().get_text()
    assert title == "mean over n seeds; shaded: ± half a standard deviation"


def test_environments_are_rows_and_batches_columns_in_the_papers_order(tmp_path: Path) -> None:
    names = ["Other", "Robust", "Imitation", "Concurrent", "FinalBuffer"]
    paths = [
        saved(tmp_path, f"{env}{name}", [1.0], env=env, buffer_name=name)
        for env in ("B-v0", "A-v0")
        for name in names
        if (env, name) != ("B-v0", "Imitation")
    ]
    figure = figure_of([*paths, saved(tmp_path, "c", [1.0], env="A-v0", concurrent=True)])
    places = {
        (axes.get_subplotspec().rowspan.start, axes.get_subplotspec().colspan.start): (
            axes.get_title().removeprefix("batch ")
        )
        for axes in visible(figure)
    }
    columns = ["FinalBuffer", "Concurrent", "Imitation", "Robust", "Other", "Robust, concurrent"]
    assert [places.get((0, k)) for k in range(6)] == columns
    assert [places.get((1, k)) for k in range(6)] == [*columns[:2], None, *columns[3:5], None]
    assert [axes.get_ylabel() for axes in visible(figure)[::6]] == [
        "A-v0\nundiscounted return",
        "B-v0\nundiscounted return",
    ]


def test_a_batch_of_stage_2_shows_its_policy_and_its_average_as_lines(tmp_path: Path) -> None:
    paths = [saved(tmp_path, "run", [1.0, 2.0], batch=batch_of("generate_buffer", 3.0))]
    assert curves(visible(figure_of(paths))[0])["batch's average return"] == [[0, 3], [1, 3]]
    paths += [
        saved(tmp_path, f"buffer_{seed}", [4.0 + seed], generate_buffer=True, seed=seed,
              batch=batch_of("generate_buffer", 3.0 + 4 * seed))
        for seed in (0, 1)
    ]  # fmt: skip
    figure = figure_of(paths)
    shown = curves(visible(figure)[0])
    assert shown["behavioural policy"] == [[0, 4.5], [1, 4.5]]
    assert shown["batch's average return"] == [[0, 5], [1, 5]]
    assert legend(figure)[1:] == ["behavioural policy (n = 2)", "batch's average return (n = 2)"]


def behavioural(folder: Path, y: list[float], **changes: Any) -> Path:
    """A result of stage 1."""
    changes = {"x_label": "timesteps", "seed": 0} | changes
    return saved(folder, f"behavioral_{changes['seed']}", y, train_behavioral=True, **changes)


def test_a_batch_of_stage_1_shows_the_agents_own_curve(tmp_path: Path) -> None:
    run = saved(tmp_path, "run", [1.0, 2.0], batch=batch_of("train_behavioral"))
    own, other = behavioural(tmp_path, [5.0, 7.0]), behavioural(tmp_path, [9.0, 9.0], seed=1)
    training, panel = visible(figure_of([run, own, other]))
    assert panel.get_title() == "batch Robust"
    assert curves(panel)["behavioural policy"] == [[10, 5], [20, 7]]
    # What no batch here is made of has a panel of its own.
    assert training.get_title() == "behavioural training"
    assert curves(training) == {"behavioural policy": [[10, 9], [20, 9]]}
    assert len(visible(figure_of([run]))) == 1  # and a behaviour that is not there is not drawn


def test_a_longer_training_has_an_axis_of_its_own_but_not_where_updates_correspond(
    tmp_path: Path,
) -> None:
    own = behavioural(tmp_path, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    apart = saved(tmp_path, "a", [1.0, 2.0], batch=batch_of("train_behavioral"))
    panel, twin = visible(figure_of([apart, own]))
    assert "behavioural policy" not in curves(panel)
    assert len(curves(twin)["behavioural policy"]) == 6
    assert twin.get_xlabel() == "timesteps of the behaviour" and twin.get_xlim()[1] > 60
    together = saved(tmp_path, "b", [1.0, 2.0], concurrent=True, batch=batch_of("train_behavioral"))
    [panel] = visible(figure_of([together, own]))
    # start_timesteps is 10: timestep 20 is the agent's update 10.
    assert curves(panel)["behavioural policy"] == [[10, 2], [20, 3]]


def test_of_several_folders_the_behaviour_beside_the_learner_counts(tmp_path: Path) -> None:
    both = []
    for name, height in (("a", 4.0), ("b", 8.0)):
        folder = tmp_path / name
        learner = saved(folder, "run", [2.0], batch=batch_of("train_behavioral"), phi=height)
        both += [learner, behavioural(folder, [height], start_timesteps=height)]
    rows = rows_of(both)
    assert rows["Robust", "BCQ, phi 4.0"]["percent_of_behaviour"] == 50
    assert rows["Robust", "BCQ, phi 8.0"]["percent_of_behaviour"] == 25


def test_learners_tell_apart_known_unknown_and_many(tmp_path: Path) -> None:
    names = [*figures.LEARNERS, *(f"Own{k}" for k in range(12))]
    paths = [saved(tmp_path, name, [1.0, 2.0], algorithm=name) for name in names]
    figure = figure_of(paths)
    lines = visible(figure)[0].get_lines()
    looks = {
        str(line.get_label()): (line.get_color(), line.get_marker(), str(line.get_linestyle()),
                                str(line._dash_pattern))
        for line in lines
    }  # fmt: skip
    assert set(looks) == set(names) and len(set(looks.values())) == len(names)
    assert looks["BCQ"][:2] == ("#0072B2", "o")
    known = [f"{name} (n = 1)" for name in figures.LEARNERS]
    assert legend(figure)[: len(known)] == known
    assert figure.legends[0].get_title().get_text() == ""


def test_the_learners_of_each_paper_have_colours_of_their_own() -> None:
    looks = figures.styles(list(figures.LEARNERS))
    for paper in (
        ("BCQ", "DDPG", "BC", "VAE_BC", "DQN", "TD3_BC", "BEAR"),
        ("BCQ", "DQN", "QRDQN", "REM", "KL_Control", "BC"),
    ):
        assert len({looks[name]["color"] for name in paper}) == len(paper)


def test_a_single_evaluation_is_a_visible_point(tmp_path: Path) -> None:
    [line] = visible(figure_of([saved(tmp_path, "a", [1.0])]))[0].get_lines()
    assert line.get_marker() == "o" and line.get_markevery() == (0, 1)
    run = saved(tmp_path, "run", [1.0], batch=batch_of("train_behavioral"))
    for axes in visible(figure_of([run, behavioural(tmp_path, [5.0])])):
        assert all(
            line.get_marker() == "o" for line in axes.get_lines() if len(line.get_xdata()) == 1
        )


def test_the_figure_is_of_print_size_and_nothing_is_smaller_than_7_points(tmp_path: Path) -> None:
    with mpl.rc_context(figures.PRINT):  # type: ignore[arg-type]
        one = figure_of([saved(tmp_path, "a", [1.0, 2.0])])
        four = figure_of([saved(tmp_path, f"{k}", [1.0], buffer_name=f"B{k}") for k in range(4)])
        four.draw_without_rendering()
        sizes = [text.get_fontsize() for text in four.findobj(mpl.text.Text) if text.get_text()]
    assert (one.get_figwidth(), four.get_figwidth()) == (3.25, 6.75)
    assert min(sizes) >= 7
    assert figures.PRINT["pdf.fonttype"] == 42


# Value estimates


def test_values_are_solid_and_the_true_ones_dotted_in_the_same_colour(tmp_path: Path) -> None:
    values = estimates((1.0, 2.0), (None, 3.0), (5.0, None))
    pairs = {"number": 100, "source": "simulator"}
    paths = [
        saved(tmp_path, "BCQ", [0.0, 0.0, 0.0], values=values, value_pairs=pairs),
        saved(tmp_path, "BC", [0.0, 0.0, 0.0], algorithm="BC"),
    ]
    figure = figure_of(paths, "values")
    [axes] = visible(figure)
    assert curves(axes) == {"BCQ": [[10, 1], [30, 5]], "_true value of BCQ": [[10, 2], [20, 3]]}
    estimate, true = axes.get_lines()
    assert to_hex(estimate.get_color()) == to_hex(true.get_color())
    assert (estimate.get_linestyle(), true.get_linestyle()) == ("-", ":")
    assert legend(figure) == ["BCQ (n = 1)", "true value, in the same colour (from the simulator)"]
    assert axes.get_ylabel() == "Toy-v0\nmean Q" and axes.get_yscale() == "linear"


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (estimates((1.0, 100.0), (1e3, 90.0)), "linear"),
        (estimates((1.0, 100.0), (1.1e3, 90.0)), "log"),
        (estimates((-1.0, 110.0), (1.2e3, 90.0)), "symlog"),
        (estimates((1.0, -110.0), (-1.2e3, -90.0)), "symlog"),
        (estimates((1.0, None), (2.0, None), (3.0, None), (21.0, None)), "linear"),
        (estimates((1.0, None), (2.0, None), (3.0, None), (26.0, None)), "log"),
        (estimates((0.0, None), (0.0, None)), "linear"),
    ],
)
def test_values_that_diverge_have_a_logarithmic_axis(
    tmp_path: Path, values: list[Any], scale: str
) -> None:
    figure = figure_of([saved(tmp_path, "a", [0.0] * len(values), values=values)], "values")
    [axes] = visible(figure)
    assert axes.get_yscale() == scale
    if scale == "symlog":
        assert axes.yaxis.get_transform().linthresh == 100
    figure.draw_without_rendering()


def test_records_of_before_the_values_show_the_mean_q_of_learning(tmp_path: Path) -> None:
    path = saved(tmp_path, "a", [0.0, 0.0], figures=[{"q": 3.0}, {"q": 4.0}])
    figure = figure_of([path], "values")
    assert curves(visible(figure)[0]) == {"BCQ": [[10, 3], [20, 4]]}
    assert legend(figure) == ["BCQ (n = 1)"]


def test_the_behavioural_agents_own_mean_q_stands_beside_the_estimates(tmp_path: Path) -> None:
    own = behavioural(tmp_path, [1.0, 2.0, 3.0], figures=[{"q": 7.0}, {}, {"q": 9.0}])
    learner = saved(
        tmp_path, "a", [0.0, 0.0], values=estimates((4.0, None), (5.0, None)),
        batch=batch_of("train_behavioral"), concurrent=True,
    )  # fmt: skip
    [panel] = visible(figure_of([learner, own], "values"))
    # start_timesteps is 10: the first evaluation found it before its first update.
    assert curves(panel)["behavioural policy"] == [[20, 9]]
    assert "behavioural policy" not in curves(visible(figure_of([learner], "values"))[0])


def test_values_that_nobody_recorded_are_an_error(tmp_path: Path) -> None:
    paths = [
        saved(tmp_path, "BC", [0.0], algorithm="BC"),
        saved(tmp_path, "Own", [0.0], algorithm="Own", values=estimates((None, None))),
    ]
    with pytest.raises(InputError, match="none of the files has value estimates"):
        figure_of(paths, "values")


# The trade-off


def sweep(folder: Path, cells: dict[tuple[float, int, int], list[float]]) -> list[Path]:
    """Runs of one name in folders of their own: by (phi, target, acting), a return a seed."""
    return [
        saved(folder / f"{phi}_{target}_{acting}", f"BCQ_Robust_Toy-v0_{seed}", [0.0, height],
              phi=phi, target_candidates=target, acting_candidates=acting, seed=seed)
        for (phi, target, acting), heights in cells.items()
        for seed, height in enumerate(heights)
    ]  # fmt: skip


def test_the_heat_map_has_every_cell_in_its_place(tmp_path: Path) -> None:
    cells = {(0.5, 10, 100): [3.0], (0.0, 1, 1): [1.0, 2.0], (0.0, 10, 100): [-5.0, -7.0]}
    paths = sweep(tmp_path, cells)
    paths.append(saved(tmp_path, "buf", [20.0], generate_buffer=True, phi=9.0))
    paths.append(saved(tmp_path, "DDPG", [20.0], algorithm="DDPG", phi=9.0))
    figure = figure_of(paths, "tradeoff")
    axes = visible(figure)[0]
    [mesh] = axes.collections
    heights = mesh.get_array()
    assert heights.filled(99).tolist() == [[1.5, -6.0], [99, 3.0]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "0.5"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "10/100"]
    assert [text.get_text() for text in axes.texts] == ["1.5\nn = 2", "-6.0\nn = 2", "3.0\nn = 1"]
    assert axes.get_title() == "Toy-v0, batch Robust\nbehavioural policy 20"
    assert "last 10 evaluations" in figure.axes[1].get_ylabel()


def test_a_heat_map_of_unequal_runs_is_cut_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sweep(tmp_path, {(0.0, 1, 1): [1.0], (0.1, 1, 1): [2.0]})
    short = saved(tmp_path, "c", [7.0], phi=0.2, target_candidates=1, acting_candidates=1,
                  max_timesteps=20, finished=False)  # fmt: skip
    axes = visible(figure_of([*paths, short], "tradeoff"))[0]
    assert axes.collections[0].get_array().tolist() == [[0.0], [0.0], [7.0]]
    assert "1 of its 2 evaluations used, as many as c.npy" in capsys.readouterr().err
    other = saved(tmp_path, "d", [7.0, 7.0], phi=0.3, lmbda=1.0)
    with pytest.raises(InputError, match="differ in --lmbda as well"):
        figure_of([*paths, other], "tradeoff")
    with pytest.raises(InputError, match="none of the files is a run of continuous BCQ"):
        figure_of([saved(tmp_path, "e", [1.0], algorithm="DQN")], "tradeoff")


# The table


@pytest.mark.parametrize(
    ("evaluations", "final"),
    [(1, 0.0), (2, 1.0), (5, 3.0), (10, 7.0), (19, 13.5), (20, 14.5), (21, 15.5), (100, 94.5)],
)
def test_the_final_performance_is_of_the_last_ten_evaluations_or_of_the_last_half(
    tmp_path: Path, evaluations: int, final: float
) -> None:
    row = rows_of([saved(tmp_path, "run_0", list(map(float, range(evaluations))))])["Robust", "BCQ"]
    assert (row["final"], row["last"], row["best"]) == (final, evaluations - 1, evaluations - 1)


def test_percentages_are_of_the_batchs_policy_and_scores_d4rls(tmp_path: Path) -> None:
    made: dict[str, Any] = {"env": "Hopper-v4"}
    online = {"batch": batch_of("train_behavioral") | {"policy": "behavioral_Hopper-v4_0_best"}}
    paths = [
        saved(tmp_path, "r0", [1606.99], **made, batch=batch_of("generate_buffer")),
        saved(tmp_path, "r1", [1000.0], seed=1, **made, batch=batch_of("generate_buffer")),
        saved(tmp_path, "b0", [800.0], generate_buffer=True, **made),
        saved(tmp_path, "b1", [1200.0], generate_buffer=True, seed=1, **made),
        saved(tmp_path, "f", [50.0], buffer_name="Final", **made, **online),
        behavioural(tmp_path, [0.0] * 10 + [100.0] * 5 + [300.0] * 5, **made),
    ]
    rows = rows_of(paths)
    row = rows["Robust", "BCQ"]
    assert row["percent_of_behaviour"] == pytest.approx(100 * 1303.495 / 1000)
    assert row["percent_difference"] == pytest.approx(30.3495)
    assert row["d4rl_score"] == pytest.approx(132376.7305 / 3254.572305)
    assert rows["Final", "BCQ"]["percent_of_behaviour"] == 25  # of 200, the last ten of the curve
    assert rows["Robust", "behavioural policy"]["percent_difference"] == 0
    # A concurrent learner with the behaviour's evaluation after as many updates: 300.
    own = behavioural(tmp_path / "c", [50.0, 200.0, 300.0, 900.0], **made)
    two = saved(tmp_path / "c", "two", [0.0, 30.0], concurrent=True, **made, **online)
    assert rows_of([two, own])["Robust, concurrent", "BCQ"]["percent_of_behaviour"] == 10
    early = behavioural(tmp_path / "e", [50.0], **made)
    none = saved(tmp_path / "e", "none", [25.0], concurrent=True, **made, **online)
    assert rows_of([none, early])["Robust, concurrent", "BCQ"]["percent_of_behaviour"] is None
    text = table.to_markdown(list(rows.values()), "sd")
    assert "| 1303.5 ± 303.5 | 1303.5 | 1303.5 | 130.3 | +30.3 | 40.7 |" in text


@pytest.mark.parametrize(
    ("reference", "percent"), [(-50.0, None), (0.0, None), (None, None), (200.0, -50.0)]
)
def test_a_share_of_nothing_or_of_less_is_not_given(
    reference: float | None, percent: float | None
) -> None:
    assert table.percent_of(-100.0, reference) == percent


def test_what_is_no_number_is_not_available(tmp_path: Path) -> None:
    paths = [
        saved(tmp_path, "a", [BAD, BAD, 1.0], env="Hopper-v4"),
        saved(tmp_path, "b", [2.0, 2.0, 1.0], env="Hopper-v4", seed=1),
    ]
    for kind in ("sd", "bootstrap"):
        with warnings.catch_warnings(action="error"):
            rows = list(rows_of(paths, kind).values())
        assert math.isnan(rows[0]["final"])
        assert "| BCQ | 2 | 30 | n/a" in table.to_markdown(rows, kind)
        line = table.to_csv(rows).splitlines()[1]
        assert line == "Hopper-v4,Robust,BCQ,2,30,30,n/a,n/a,n/a,1.0,n/a,n/a,n/a,n/a"
    # A mean of one seed's evaluation would not be of n seeds: it is left out.
    assert curves(visible(figure_of(paths))[0]) == {"BCQ": [[30, 1]]}


# The bootstrap


def test_the_bootstrap_is_scipys_percentile_interval_of_the_mean() -> None:
    from scipy.stats import bootstrap

    values = np.array([[1.0, 0.0], [4.0, 0.0], [10.0, 3.0], [2.0, 9.0]])
    low, high = interval(values, "bootstrap", spread=0.5)
    assert low.shape == high.shape == (2,)
    for k in range(2):
        hand = bootstrap((values[:, k],), np.mean, n_resamples=20000, method="percentile", rng=1)
        assert low[k] == pytest.approx(hand.confidence_interval.low, abs=0.35)
        assert high[k] == pytest.approx(hand.confidence_interval.high, abs=0.35)
    # All 4^4 resamples, one by one: 2.5% of them have a smaller mean.
    every = np.array(np.meshgrid(*[values[:, 0]] * 4)).reshape(4, -1).mean(0)
    assert np.mean(every < low[0]) <= 0.035 and np.mean(every <= low[0]) >= 0.015
    assert np.mean(every > high[0]) <= 0.035 and np.mean(every >= high[0]) >= 0.015
    again = interval(values, "bootstrap", spread=0.5)
    assert np.array_equal(low, again[0]) and np.array_equal(high, again[1])


def test_the_bootstrap_is_drawn_and_tabulated_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [saved(tmp_path, f"r{k}", [float(k * k)], seed=k) for k in range(3)]
    low, high = interval(np.array([0.0, 1.0, 4.0]), "bootstrap", 0)
    drawn(monkeypatch, *paths, "--interval", "bootstrap", "--output", tmp_path / "f")
    assert f"| 1.7 [{low:.1f}, {high:.1f}] |" in capsys.readouterr().out
    figure = figure_of(paths, kind="bootstrap")
    assert "95% bootstrap interval" in figure.legends[0].get_title().get_text()
    heights = visible(figure)[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (low, high) == (0.0, 4.0)


def test_one_seed_and_equal_seeds_have_no_width() -> None:
    for kind in ("sd", "bootstrap"):
        for n in (1, 3):
            low, high = interval(np.full((n, 2), 5.0), kind, 0.5)
            assert low.tolist() == high.tolist() == [5.0, 5.0]


# Everything in the folder, and what is no result


def test_everything_in_a_results_folder_is_drawn_or_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = batch_of("generate_buffer")
    saved(tmp_path, "BCQ_Robust_Toy-v0_0", [1.0], batch=made, values=estimates((1.0, 2.0)))
    np.save(tmp_path / "BCQ_Robust_Toy-v0_0_value.npy", np.ones((1, 2)))
    saved(tmp_path, "BC_Robust_Toy-v0_0", [1.0], algorithm="BC", batch={})
    saved(tmp_path, "buffer_performance_Robust_Toy-v0_0", [4.0], generate_buffer=True, batch=made)
    behavioural(tmp_path, [3.0])
    behavioural(tmp_path, [3.0, 4.0], seed=1, buffer_name="FinalBuffer")
    np.save(tmp_path / "theirs_0.npy", np.arange(3.0))
    np.save(tmp_path / "theirs_1.npy", np.arange(3.0))
    np.save(tmp_path / "matrix.npy", np.ones((2, 2)))
    np.save(tmp_path / "nothing.npy", np.ones(0))
    files = sorted(tmp_path.glob("*.npy"))
    for figure in plot.FIGURES:
        drawn(monkeypatch, *files, "--figure", figure, "--output", tmp_path / "out" / figure)
    said = capsys.readouterr()
    assert "| (none) | no record | theirs | 2 | 3 | 1.5 ± 0.0 |" in said.out
    assert "matrix.npy: passed over" in said.err and "nothing.npy: passed over" in said.err
    assert "_value" not in said.out + said.err
    assert len(list((tmp_path / "out").iterdir())) == 9


@pytest.mark.parametrize("figure", ["batches", "values"])
@pytest.mark.parametrize("folder", ["results/reference", "results/reference/discrete"])
def test_the_committed_records_are_drawn(folder: str, figure: str) -> None:
    files = sorted((ROOT / folder).glob("*.npy"))
    assert all(curves(axes) for axes in visible(figure_of(files, figure)))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "does not exist: main.py saves .*`make quickstart`"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "damaged"),
        (lambda path: np.save(path, np.zeros((2, 2))), r"shape \(2, 2\)"),
        (lambda path: np.save(path, np.zeros(5)), "5 evaluations, its record 2"),
        (lambda path: path.with_suffix(".json").write_text("{"), "damaged"),
        (lambda path: path.with_suffix(".json").write_text("{}"), "no record of a run"),
        (lambda path: path.with_suffix(".json").write_text('{"arguments": 3}'), "no record of a"),
        (lambda path: recorded(path, values=estimates((1, 1))), "2 evaluations, its record 1"),
        (lambda path: recorded(path, values=[{"estimate": 1}, {}]), "no record of a run"),
        (lambda path: recorded(path, values=None), "no record of a run"),
        (lambda path: recorded(path, x=["a", "b"]), "no record of a run"),
        (lambda path: recorded(path, batch=[1]), "no record of a run"),
        (lambda path: recorded(path, batch={"mean_return": "high"}), "no record of a run"),
        (lambda path: recorded(path, value_pairs="many"), "no record of a run"),
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, reason: str
) -> None:
    path = saved(tmp_path, "run_0", [1.0, 2.0])
    damage(path)
    with pytest.raises(InputError, match=reason) as refused:
        drawn(monkeypatch, path, "--output", tmp_path / "figure.png")
    assert "run_0" in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.glob("figure*"))


def recorded(path: Path, **changes: Any) -> None:
    """Change a record."""
    record = json.loads(path.with_suffix(".json").read_text()) | changes
    path.with_suffix(".json").write_text(json.dumps(record))


def test_value_files_alone_are_no_runs(tmp_path: Path) -> None:
    np.save(tmp_path / "a_value.npy", np.ones((1, 2)))
    with pytest.raises(InputError, match="no run among the files"):
        read_runs([tmp_path / "a_value.npy"])


def test_evaluations_without_a_record_are_drawn_by_number(tmp_path: Path) -> None:
    path = tmp_path / "BCQ_Hopper-v3_0.npy"
    np.save(path, np.array([1.0, 2.0]))
    run = read_run(path)
    assert run.learner == "BCQ_Hopper-v3" and run.x.tolist() == [1, 2]
    assert run.x_label == "evaluations"
    [axes] = visible(figure_of([path]))
    assert axes.get_title() == "no record" and axes.get_xlabel() == "evaluations"


def test_the_tables_of_the_theory_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path, "run", [1.0, 2.0])
    table_of = ROOT / "results" / "reference" / "tabular" / "tabular_theorem_4_0.npy"
    assert [one.path for one in read_runs([run, table_of])] == [run]
    assert "tabular_theorem_4_0.npy: passed over" in capsys.readouterr().err


# Names


STRANGE = [
    "F$$",
    "a $\\frac$ b",
    "_hidden",
    "_0",
    "a|b",
    "a\\|b",
    "two\nlines",
    "\x1b[31mred",
    "\udcff",
]


@pytest.mark.parametrize("figure", ["batches", "values", "tradeoff"])
def test_any_recorded_name_is_drawn_and_stays_in_its_cell(
    figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    values = estimates((1, 1), (2, 2))
    paths = []
    for number, name in enumerate([*STRANGE, ""]):
        names: dict[str, Any] = {"env": name, "buffer_name": name, "x_label": name}
        names |= {"value_pairs": {"source": name}, "values": values}
        paths += [
            saved(tmp_path, f"{number}", [1.0, 2.0], **names, algorithm=name),
            saved(tmp_path, f"{number}_bcq", [1.0, 2.0], **names),
        ]
    drawn(monkeypatch, *paths, "--figure", figure, "--output", tmp_path / "f")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [len(re.split(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows]
    assert cells == [13] * (2 + len(paths))
    with (tmp_path / "f.csv").open(newline="", encoding="utf-8") as file:
        learners = {row["learner"] for row in csv.DictReader(file)}
    assert learners == {"BCQ", "", *STRANGE[:-1], r"\udcff"}
    if figure != "tradeoff":
        shown = legend(figure_of(paths, figure))
        assert len(shown) == 2 + len(STRANGE) + (figure == "values")


def test_any_file_name_is_drawn_with_an_entry_in_the_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    paths = [tmp_path / f"{name}.npy" for name in STRANGE]
    for path in paths:
        np.save(path, np.ones(3))
    drawn(monkeypatch, *paths, "--output", tmp_path / "f")
    assert capsys.readouterr().out.count("| (none) | no record |") == len(paths)
    entries = legend(figure_of(paths))
    assert len(entries) == len(paths)
    assert all(entry.endswith(" (n = 1)") and entry[0] != "_" for entry in entries)


def test_a_name_is_shown_as_it_is() -> None:
    assert in_figure("VAE_BC, phi 0.05") == in_table("VAE_BC, phi 0.05") == "VAE_BC, phi 0.05"
    assert in_figure("_a") == "\u200b_a" and in_figure("$x$") == r"\$x\$"
    assert in_table("a|b") == r"a\|b" and in_table("a\\|") == r"a\\\|"
    assert in_table("a\nb") == r"a\\nb" and in_figure("\x1b") == r"\x1b"
