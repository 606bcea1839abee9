"""plot.py: what it averages, what it says, and what it refuses to draw together."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plot
from common.errors import InputError


def saved(folder: Path, name: str, y: list[float], **changes: Any) -> Path:
    """A saved run as main.py leaves it; `changes` go into its arguments or, by name, its record."""
    arguments: dict[str, Any] = {
        "train_behavioral": False,
        "generate_buffer": False,
        "algorithm": "BCQ",
        "env": "Toy-v0",
        "buffer_name": "Robust",
        "seed": 0,
        "lmbda": 0.75,
        "threads": 1,
    }
    record: dict[str, Any] = {"x_label": "iterations", "x": [10 * (k + 1) for k in range(len(y))]}
    for key, value in changes.items():
        (arguments if key in arguments else record)[key] = value
    path = folder / f"{name}.npy"
    np.save(path, np.array(y))
    path.with_suffix(".json").write_text(json.dumps(record | {"arguments": arguments}))
    return path


def drawn(monkeypatch: pytest.MonkeyPatch, *words: Any) -> None:
    """plot.py, as typed."""
    monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, words)])
    plot.main()


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
    # Means over the evaluations are 3 and 6; the last evaluations 5 and 9.
    assert "| Toy-v0 | Robust | BCQ | 2 | 4.5 ± 1.5 | 7.0 ± 2.0 | 7.0 ± 2.0 |" in said
    assert "| behavioural policy | 1 | 4.0 |" in said
    assert "| batch's average return | 1 | -2.5 |" in said
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_the_final_figure_is_the_mean_of_the_last_ten_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, "run_0", [1000.0, *range(10)])
    drawn(monkeypatch, path, "--output", tmp_path / "figure")
    assert "| 4.5 | 9.0 | 1000.0 |" in capsys.readouterr().out


def test_the_x_axis_and_the_legend_come_from_the_record(tmp_path: Path) -> None:
    runs = [
        plot.read_result(saved(tmp_path, f"run_{seed}", [seed, 2 + seed], seed=seed))
        for seed in (0, 1)
    ]
    axes: Any = plot.plt.subplots()[1]
    plot.draw_panel(axes, "title", {"BCQ": runs}, spread=0.5)
    [line] = axes.get_lines()
    assert line.get_xydata().tolist() == [[10, 0.5], [20, 2.5]]
    assert line.get_label() == "BCQ (2 seeds, ±0.5 s.d.)"
    [band] = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(0.25) and heights.max() == pytest.approx(2.75)
    assert axes.get_xlabel() == "iterations"
    plot.plt.close("all")


def test_environments_and_batches_have_panels_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(plot, "draw_panel", lambda _axes, title, *_: titles.append(title))
    drawn(
        monkeypatch,
        saved(tmp_path, "a", [1.0]),
        saved(tmp_path, "b", [1.0], buffer_name="Imitation"),
        saved(tmp_path, "c", [1.0], env="Other-v0"),
        saved(tmp_path, "d", [1.0], train_behavioral=True, x_label="timesteps"),
        "--output",
        tmp_path / "figure",
    )
    assert titles == [
        "Other-v0, batch Robust",
        "Toy-v0, behavioural training",
        "Toy-v0, batch Imitation",
        "Toy-v0, batch Robust",
    ]


def test_an_unfinished_seed_cuts_the_others_and_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        plot.read_result(saved(tmp_path, "long", [1.0, 2.0, 3.0])),
        plot.read_result(saved(tmp_path, "short", [5.0], seed=1)),
    ]
    x, returns = plot.stack(runs)
    assert x.tolist() == [10] and returns.tolist() == [[1.0], [5.0]]
    assert "long.npy: 1 of its 3 evaluations used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lmbda": 1.0}, "differ in --lmbda"),
        ({"x": [7, 14]}, "differ in the x axis"),
        ({"seed": 0}, "the same run"),
    ],
)
def test_runs_that_are_not_seeds_of_one_experiment_are_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    first = plot.read_result(saved(tmp_path, "one", [1.0, 2.0]))
    other = plot.read_result(saved(tmp_path, "two", [1.0, 2.0], **({"seed": 1} | changes)))
    with pytest.raises(InputError, match=reason) as refused:
        plot.stack([first, other])
    assert "one.npy" in str(refused.value) and "two.npy" in str(refused.value)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "damaged"),
        (lambda path: np.save(path, np.zeros((2, 2))), r"shape \(2, 2\)"),
        (lambda path: np.save(path, np.zeros(5)), "5 evaluations, its record 2"),
        (lambda path: path.with_suffix(".json").write_text("{"), "damaged"),
        (lambda path: path.with_suffix(".json").write_text("{}"), "no record of a run"),
        (lambda path: path.with_suffix(".json").write_text('{"arguments": 3}'), "no record of a"),
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, reason: str
) -> None:
    path = saved(tmp_path, "run_0", [1.0, 2.0])
    damage(path)
    with pytest.raises(InputError, match=reason) as refused:
        drawn(monkeypatch, path, "--output", tmp_path / "figure.png")
    assert "run_0" in str(refused.value)
    assert not list(tmp_path.glob("figure*"))


def test_evaluations_without_a_record_are_drawn_by_number(tmp_path: Path) -> None:
    path = tmp_path / "BCQ_Hopper-v3_0.npy"
    np.save(path, np.array([1.0, 2.0]))
    result = plot.read_result(path)
    assert result.label == "BCQ_Hopper-v3" and result.x.tolist() == [1, 2]
    assert result.x_label == "evaluations"
