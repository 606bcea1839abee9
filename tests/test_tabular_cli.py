"""`python main.py` of the theory: what it prints and saves, and what it refuses."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, load_variant, run_main, snapshot

from common.files import read_json

tabular = load_variant("tabular_BCQ")
KINDS = (".json", ".npy", ".pdf", ".png")
ALL = ["lemma_1", "theorem_1", "theorem_2", "theorem_3", "theorem_4", "line_world"]


def outputs(*names: str, seed: int = 0) -> list[str]:
    return sorted(f"results/tabular_{name}_{seed}{kind}" for name in names for kind in KINDS)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thirtieth of the updates, and the tolerance that goes with it."""
    for module in (tabular.checks, tabular.theorems, tabular.curves):
        monkeypatch.setattr(module, "UPDATES", 2000)
    loose = {step_size: 9.0 for step_size in tabular.checks.LEARNED}
    monkeypatch.setattr(tabular.theorems, "LEARNED", loose)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of no content: drawing takes most of a test's time."""

    def save_figure(record: Any, values: Any, png: Path, pdf: Path) -> None:
        png.write_bytes(b"png")
        pdf.write_bytes(b"pdf")

    monkeypatch.setattr(tabular.main, "save_figure", save_figure)


def test_with_no_flag_everything_is_checked_and_saved(tmp_path: Path, brief: None) -> None:
    end = run_main(tabular.main, "--mdps", "4", "--output_dir", str(tmp_path))
    assert (end.status, end.err) == (0, "")
    assert sorted(snapshot(tmp_path)) == outputs(*ALL)
    assert list(tabular.main.STATEMENTS) == ALL
    for name in ALL:
        assert (tmp_path / f"results/tabular_{name}_0.png").read_bytes().startswith(b"\x89PNG")
        record = read_json(tmp_path / "results" / f"tabular_{name}_0.json")
        values = np.load(tmp_path / "results" / f"tabular_{name}_0.npy")
        assert values.shape == (len(record["lines"]), len(record["x"]))
        assert record["name"] == name and all(check["holds"] for check in record["checks"])
        assert record["arguments"]["mdps"] == 4
        assert record["claim"].split("\n")[0] in end.out
    assert "DOES NOT HOLD" not in end.out and "(counter-examples)" in end.out


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--lemma", "1"], "lemma_1"),
        (["--theorem", "2"], "theorem_2"),
        (["--line_world"], "line_world"),
    ],
)
def test_one_seed_gives_the_same_lines_and_another_other_ones(
    flags: list[str], name: str, tmp_path: Path, brief: None, undrawn: None
) -> None:
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        words = [*flags, "--mdps", "3", "--seed", str(seed), "--output_dir", str(tmp_path / folder)]
        assert run_main(tabular.main, *words).status == 0
        assert sorted(snapshot(tmp_path / folder)) == outputs(name, seed=seed)
    a, b = (tmp_path / x / f"results/tabular_{name}_0.npy" for x in "ab")
    assert a.read_bytes() == b.read_bytes()
    c = np.load(tmp_path / f"c/results/tabular_{name}_1.npy")
    assert (name == "line_world") == np.array_equal(np.load(a), c, equal_nan=True)


def test_figures_draws_the_same_figure_from_the_saved_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_main(tabular.main, "--line_world", "--output_dir", str(tmp_path)).status == 0
    before = snapshot(tmp_path)
    for kind in (".png", ".pdf"):
        (tmp_path / f"results/tabular_line_world_0{kind}").unlink()
    path = tmp_path / "results/tabular_line_world_0.npy"
    end = run_main(tabular.figures, str(path))
    assert end.status == 0 and "tabular_line_world_0.png" in end.out
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--theorem", "5"], "invalid choice: 5"),
        (["--theorem", "0"], "invalid choice: 0"),
        (["--theorem", "one"], "invalid int value"),
        (["--lemma", "2"], "invalid choice: 2"),
        (["--theorem", "1", "--lemma", "1"], "not allowed with argument"),
        (["--theorem", "1", "--line_world"], "not allowed with argument"),
        (["--mdps", "0"], "0 is not a whole number from 1 to 10000"),
        (["--mdps", "1.5"], "1.5 is not a whole number"),
        (["--mdps", "nan"], "nan is not a whole number"),
        (["--mdps", "1e9"], "1e9 is not a whole number"),
        (["--seed", "-1"], "-1 is not a whole number from 0"),
        (["--output_dir", ""], "the name of a folder is empty"),
        (["--no_such_flag"], "unrecognized arguments"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(words: list[str], message: str) -> None:
    end = run_main(tabular.main, *words)
    assert end.status == 2 and not end.out
    error = end.err.strip().splitlines()[-1]
    assert "error: " in error and message in error


def test_existing_files_are_kept_unless_told_otherwise(tmp_path: Path, undrawn: None) -> None:
    figure = tmp_path / "results" / "tabular_line_world_0.png"
    figure.parent.mkdir()
    figure.write_text("mine")
    words = ["--line_world", "--output_dir", str(tmp_path)]
    end = run_main(tabular.main, *words)
    assert end.status == 1 and end.err.count("\n") == 1
    assert f"{figure} exists: --overwrite" in end.err
    # Before anything is computed, whichever of the statements the file belongs to.
    end = run_main(tabular.main, "--output_dir", str(tmp_path))
    assert end.status == 1 and not end.out
    assert snapshot(tmp_path) == {"results/tabular_line_world_0.png": b"mine"}
    assert run_main(tabular.main, *words, "--overwrite").status == 0
    assert figure.read_bytes() == b"png"


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setitem(tabular.main.STATEMENTS, "theorem_1", never)
    (tmp_path / "file").touch()
    end = run_main(tabular.main, "--theorem", "1", "--output_dir", str(tmp_path / "file"))
    assert end.status == 1 and end.err.count("\n") == 1 and "cannot write" in end.err


def test_a_claim_that_does_not_hold_is_said_and_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    check = tabular.checks.Check
    real = tabular.line_world.line_world(0, 1)
    checks = [check("below", 1, 2.0, at_most=1.0), check("above", 1, 2.0, at_least=3.0),
              check("no number", 1, float("nan"), at_most=1.0), check("fine", 1, 2.0, at_most=2.0),
              check("shown", 1, 7)]  # fmt: skip
    assert [c.holds for c in checks] == [False, False, False, True, True]
    broken = real._replace(checks=[checks[0], *checks[3:]])
    monkeypatch.setitem(tabular.main.STATEMENTS, "line_world", lambda *_: broken)
    end = run_main(tabular.main, "--line_world", "--output_dir", str(tmp_path))
    assert end.status == 1 and "error: 1 of the checks above do not hold" in end.err
    assert end.out.count("DOES NOT HOLD") == 1


@pytest.mark.parametrize("damage", ["no record", "no lines", "other shape"])
def test_a_damaged_result_is_named_and_not_drawn(
    damage: str, tmp_path: Path, undrawn: None
) -> None:
    assert run_main(tabular.main, "--line_world", "--output_dir", str(tmp_path)).status == 0
    path = tmp_path / "results/tabular_line_world_0.npy"
    if damage == "no record":
        path.with_suffix(".json").unlink()
    elif damage == "no lines":
        path.with_suffix(".json").write_text("{}")
    else:
        np.save(path, np.zeros((2, 2)))
    end = run_main(tabular.figures, str(path))
    assert end.status == 1 and end.err.count("\n") == 1 and "tabular_line_world_0" in end.err


def test_the_theory_needs_no_torch_and_runs_from_its_folder() -> None:
    code = "import main, sys; sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tabular_BCQ").returncode == 0
