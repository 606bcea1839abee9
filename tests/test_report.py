"""reproduce.py --report: the rule behind a verdict, the files it writes, the page in a browser."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import load_variant
from test_plot import batch_of, estimates, saved

from common.errors import InputError
from plotting.panels import panels
from plotting.runs import read_run, read_runs
from sweeps import command_line
from sweeps.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Finding,
    all_claims,
    difference,
    findings,
    verdict,
)
from sweeps.report import command, result_files, to_latex

DISCRETE = ("BCQ", "DQN", "BC", "QRDQN")


def paper(
    folder: Path, seeds: int = 3, ddpg: float = 10.0, bcq: float = 100.0, estimate: float = 500.0
) -> Path:
    """The imitation task: a behaviour that earns 100, BCQ and DDPG on its batch."""
    results = folder / "results"
    for seed in range(seeds):
        made = batch_of("generate_buffer", 90.0, policy=f"behavioral_Hopper-v4_{seed}")
        common: dict[str, Any] = {"env": "Hopper-v4", "buffer_name": "Imitation", "seed": seed}
        name = f"Imitation_Hopper-v4_{seed}"
        for learner, value, q in (("BCQ", bcq, 30.0), ("DDPG", ddpg, estimate)):
            y = [0.0] * 6 + [value - seed] * 6  # what it began with says nothing of the end
            pairs = estimates(*[(0.0, 25.0)] * 6, *[(q + seed, 25.0)] * 6)
            saved(
                results,
                f"{learner}_{name}",
                y,
                algorithm=learner,
                batch=made,
                values=pairs,
                **common,
            )
        saved(
            results, f"buffer_performance_{name}", [100.0], generate_buffer=True,
            algorithm="DDPG", batch=made, **common,
        )  # fmt: skip
    return folder


def found(folder: Path, of: str) -> list[Finding]:
    """The findings of the claims whose text holds `of`."""
    runs = read_runs(result_files([folder], folder))
    every = findings(all_claims(DISCRETE), panels(runs), runs)
    return [one for one in every if of in one.claim]


# --- the rule


@pytest.mark.parametrize(
    ("n", "low", "high", "above", "expected"),
    [
        (3, 0.1, 2.0, True, HOLDS),
        (3, 0.1, 2.0, False, FAILS),
        (3, -2.0, -0.1, True, FAILS),
        (3, -2.0, -0.1, False, HOLDS),
        (3, -0.1, 2.0, True, UNDECIDED),
        (2, 0.1, 2.0, True, UNDECIDED),
        (3, float("nan"), float("nan"), True, UNDECIDED),
    ],
)
def test_a_verdict_is_where_the_whole_interval_lies(
    n: int, low: float, high: float, above: bool, expected: str
) -> None:
    assert verdict(n, low, high, above) == expected


def test_the_interval_is_the_bootstraps_of_the_difference_of_means() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([10.0, 10.0])
    mean, low, high = difference(x)
    assert (mean, low, high) == (2.0, 1.0, 3.0)  # 1 in 27 resamples is all the least: within 2.5%
    assert difference(x, y) == (-8.0, -9.0, -7.0)
    assert difference(x[:1])[0] == 1.0 and np.isnan(difference(x[:1])[1])
    assert np.isnan(difference(np.array([1.0, np.inf]))[1])


@pytest.mark.parametrize(
    ("ddpg", "expected"), [(10.0, HOLDS), (49.0, HOLDS), (51.0, UNDECIDED), (60.0, FAILS)]
)
def test_far_below_is_below_half_of_the_behaviour(
    ddpg: float, expected: str, tmp_path: Path
) -> None:
    [one] = found(paper(tmp_path, ddpg=ddpg), "DDPG falls far below the behavioural policy: imit")
    assert (one.verdict, one.n) == (expected, 3)
    assert one.mean == pytest.approx(ddpg - 1 - 50)


@pytest.mark.parametrize(("bcq", "expected"), [(100.0, HOLDS), (93.0, HOLDS), (80.0, FAILS)])
def test_to_match_is_to_reach_nine_tenths(bcq: float, expected: str, tmp_path: Path) -> None:
    [one] = found(
        paper(tmp_path, bcq=bcq), "BCQ matches or beats the behavioural policy: imitation"
    )
    assert one.verdict == expected


@pytest.mark.parametrize(("estimate", "expected"), [(500.0, HOLDS), (30.0, FAILS)])
def test_an_estimate_is_unstable_where_it_is_off_by_more_than_the_true_value(
    estimate: float, expected: str, tmp_path: Path
) -> None:
    folder = paper(tmp_path, estimate=estimate)
    [one] = found(folder, "DDPG's value estimates are unstable or diverge: imitation")
    assert one.verdict == expected
    assert one.mean == pytest.approx((estimate + 1 - 25) / 25 - 1)
    [stable] = found(folder, "BCQ's value estimates are stable: imitation")
    assert stable.verdict == HOLDS


def test_two_seeds_decide_nothing_and_a_claim_without_runs_says_so(tmp_path: Path) -> None:
    folder = paper(tmp_path, seeds=2)
    [one] = found(folder, "DDPG falls far below the behavioural policy: imitation")
    assert (one.verdict, one.n) == (UNDECIDED, 2)
    [none] = found(folder, "DDPG falls far below the behavioural policy: concurrent")
    assert (none.verdict, none.n, none.measured) == (UNDECIDED, 0, "no runs of it here")


def test_every_learner_of_the_discrete_variant_is_compared_with_bcq() -> None:
    learners = tuple(load_variant("discrete_BCQ").main.ALGORITHMS)
    [claim] = [c for c in all_claims(learners) if c.text == "BCQ is above every other learner"]
    assert {"BCQ", *claim.learners} == set(learners)


# --- the files


def report(monkeypatch: Any, folder: Path) -> dict[str, str]:
    """What the report writes, by name."""
    words = ["reproduce.py", "--report", "--output_dir", str(folder)]
    monkeypatch.setattr(sys, "argv", words)
    command_line.main()
    target = folder / "results" / "report"
    return {
        p.name: p.read_text(encoding="utf-8") if p.suffix not in {".png", ".pdf"} else ""
        for p in target.iterdir()
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The report of the imitation task."""
    with pytest.MonkeyPatch.context() as patched:
        return report(patched, paper(tmp_path_factory.mktemp("files")))


def test_the_report_is_figures_tables_claims_and_one_page(files: dict[str, str]) -> None:
    assert set(files) == {
        "claims.md", "table.md", "table.csv", "table.tex", "index.html",
        "batches.png", "batches.pdf", "values.png", "values.pdf",
    }  # fmt: skip
    rows = [line for line in files["claims.md"].splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= len(all_claims(DISCRETE))
    [row] = [r for r in rows if "far below the behavioural policy: imitation" in r]
    assert "| −41.0 [−42.0, −40.0] | 3 | holds |" in row and "section 3.1" in row
    assert "bootstrap" in files["claims.md"] and "fewer than 3 seeds" in files["claims.md"]
    assert r"\toprule" in files["table.tex"] and r"policy" in files["table.tex"]


def test_the_page_needs_nothing_from_elsewhere_and_names_every_curves_run_and_command(
    files: dict[str, str],
) -> None:
    page = files["index.html"]
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page.replace("xlink:href", "href"))
    assert "@import" not in page and "fetch(" not in page and "<img" not in page
    titles = re.findall(r"<title>(.*?)</title>", page, re.DOTALL)
    [ddpg, *_] = [t for t in titles if t.startswith("DDPG, batch Imitation, Hopper-v4")]
    typed = "python continuous_BCQ/main.py --algorithm DDPG --env Hopper-v4 --seed 0"
    assert typed in ddpg and "--buffer_name Imitation" in ddpg
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert page.index("far below the behavioural policy") < page.index("<h2>Figures")
    assert "viewport" in page and "@media print" in page


@pytest.mark.slow
def test_the_same_runs_give_the_same_page(
    files: dict[str, str], tmp_path: Path, monkeypatch: Any
) -> None:
    assert report(monkeypatch, paper(tmp_path)) == files


def test_a_runs_command_is_one_that_makes_it(tmp_path: Path) -> None:
    more = {"phi": 0.1, "max_timesteps": 500, "seed": 3, "env": "Hopper-v4"}
    run = read_run(saved(tmp_path, "BCQ_Robust_Hopper-v4_3", [1.0], **more))
    typed = command(run).split()
    assert typed[:2] == ["python", "continuous_BCQ/main.py"]
    args = load_variant("continuous_BCQ").main.parse_args(typed[2:])
    assert {key: getattr(args, key) for key in more} == more
    online = saved(tmp_path, "behavioral_Hopper-v4_0", [1.0], train_behavioral=True, **more)
    assert "--train_behavioral" in command(read_run(online))


def test_what_latex_reads_as_its_own_is_escaped() -> None:
    text = to_latex([["a", "b", "c", "d"], ["x_1", "50%", "{m}&$", "1 ± 2"]])
    assert r"x\_1 & 50\% & \{m\}\&\$ & 1 $\pm$ 2 \\" in text


def test_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no results in .*run a preset first"):
        result_files([], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium")
def test_a_browser_shows_the_page_on_a_phone_without_scrolling_sideways(
    tmp_path: Path, monkeypatch: Any
) -> None:
    report(monkeypatch, paper(tmp_path))
    page = tmp_path / "results" / "report" / "index.html"
    probe = """<script>
      const curve = document.querySelector(".curve");
      curve.dispatchEvent(new Event("click"));
      document.body.dataset.told = curve.closest("figure").querySelector(".told-of").textContent;
      document.body.dataset.wide = document.documentElement.scrollWidth;
    </script></body>"""
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", probe), encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", "--dump-dom"]
    shown = subprocess.run(
        ["chromium", *words, page.as_uri()], capture_output=True, text=True, check=True
    ).stdout
    wide, told = (re.findall(rf'data-{n}="(.*?)"', shown, re.DOTALL) for n in ("wide", "told"))
    assert int(wide[0]) <= 500
    assert "python continuous_BCQ/main.py" in told[0]
