"""`--report`: figures, tables, claims.md and one HTML page of the saved runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import matplotlib as mpl

from common.arguments import INCIDENTAL
from common.errors import InputError
from common.files import replacing
from plotting import figures, table
from plotting.names import in_table
from plotting.panels import Panel, panels
from plotting.runs import FOREIGN, OFFLINE, ONLINE, Run, read_runs, say
from plotting.tradeoff import is_bcq, tradeoff
from sweeps.claims import RULE, Finding, all_claims, findings, interval_text, shown
from sweeps.drawing import draw
from sweeps.page import page
from sweeps.variants import algorithms, defaults, entry, resolved


def result_files(given: list[Path], output_dir: Path) -> list[Path]:
    """The evaluations in the folders and files given, or in the output folder and its sweeps.

    Raises: InputError where there are none.
    """
    places = given or [output_dir / "results", *sorted((output_dir / "sweep").glob("*/results"))]
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            below = place / "results" if (place / "results").is_dir() else place
            found += sorted(below.glob("*.npy"))
        elif place.exists():
            found.append(place)
        elif given:
            raise InputError(f"{place} does not exist: name a folder of results, or files")
    if not found:
        raise InputError(f"no results in {', '.join(map(str, places))}: run a preset first")
    return found


def apart(runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """The runs of the papers' own setting, and those of the trade-off, by their folders."""
    swept = [run for run in runs if run.path.parent.parent.name.startswith("phi") and is_bcq(run)]
    of_sweep = {run.path for run in swept}
    return [run for run in runs if run.path not in of_sweep], swept


def command(run: Run) -> str:
    """The main.py command that a run's record tells, in the repository's root; "" for none."""
    given = run.arguments
    if not given or run.stage == FOREIGN:
        return ""
    variant = "discrete_BCQ" if "low_noise_p" in given else "continuous_BCQ"
    learner = ("--algorithm", str(given["algorithm"])) if run.stage == OFFLINE else ()
    kind = {ONLINE: ["--train_behavioral"], OFFLINE: []}.get(run.stage, ["--generate_buffer"])
    usual = vars(defaults(variant, run.env)) | {
        flag: value
        for flag, value in vars(resolved(variant, ("--env", run.env, *learner, *kind))).items()
        if value is not None
    }
    transitions = run.batch_record.get("transitions")
    usual["buffer_size"] = transitions if run.stage == OFFLINE else int(1e6)
    usual["behavioral_seed"] = given.get("seed")
    usual["algorithm"] = entry(variant).DEFAULTS["algorithm"] if run.stage == OFFLINE else None
    typed: dict[str, Any] = {flag: given[flag] for flag in ("env", "seed") if flag in given}
    for flag, value in given.items():
        known = flag in usual and flag not in INCIDENTAL
        if (known or flag in ("concurrent", "save_buffer")) and value != usual.get(flag):
            typed[flag] = value
    for unread in ("train_behavioral", "generate_buffer", "evaluate"):
        typed.pop(unread, None)
    if run.stage == OFFLINE and given["algorithm"] != usual["algorithm"]:
        typed = {"algorithm": given["algorithm"], **typed}
    words = [f"{variant}/main.py", *kind]
    for flag, value in typed.items():
        words += _words(flag, value, variant)
    return shlex.join(["python", *words])


def _words(flag: str, value: Any, variant: str) -> list[str]:
    spelled = f"--{flag}"
    for learner in entry(variant).ALGORITHMS.values():
        if flag in learner.FLAGS:
            spelled = learner.FLAGS[flag].spelled or spelled
    if value is None:
        return []
    if isinstance(value, bool):
        return [spelled] if value else [spelled.replace("--", "--no-", 1)]
    return [spelled, f"{value:g}" if isinstance(value, float) else str(value)]


def told(panel: Panel) -> dict[str, str]:
    """Of each curve's name what a reader is told: its run, its seeds, its command."""
    names = {}
    for name, seeds in {**panel.learners, **panel.online}.items():
        numbers = ", ".join(str(run.seed) for run in seeds)
        more = f" (and {len(seeds) - 1} other seeds)" if len(seeds) > 1 else ""
        batch = f", batch {panel.batch}" if panel.batch else ""
        names[name] = f"{name}{batch}, {panel.env}, seed {numbers}\n{command(seeds[0])}{more}"
    return names


def to_latex(rows: list[list[str]]) -> str:
    """The table for a paper, with booktabs."""
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "±": r"$\pm$", "−": "$-$",
    }  # fmt: skip

    def cells(row: list[str]) -> str:
        return " & ".join("".join(special.get(c, c) for c in cell) for cell in row) + r" \\"

    head, *body = rows
    columns = "lll" + "r" * (len(head) - 3)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", cells(head), r"\midrule"]
    return "\n".join([*lines, *map(cells, body), r"\bottomrule", r"\end{tabular}"]) + "\n"


def cells_of(markdown: str) -> tuple[list[list[str]], str]:
    """The rows of `plotting/table.py`'s table, and the note below it."""
    lines = markdown.splitlines()
    rows = [line for line in lines if line.startswith("|") and not line.startswith("|---")]
    split = [
        [cell.strip().replace(r"\|", "|").replace("\\\\", "\\") for cell in _split(line)]
        for line in rows
    ]
    note = " ".join(line for line in lines if not line.startswith("|")).strip()
    return split, note


def _split(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)[1:-1]


def claims_markdown(found: list[Finding]) -> str:
    """claims.md."""
    lines = [
        "# The papers' claims, by the saved runs", "", RULE, "",
        "| claim | where | environment | measured | difference [95%] | n | verdict |",
        "|---|---|---|---|---:|---:|---|",
    ]  # fmt: skip
    for one in found:
        cells = [one.claim, one.where, one.env or "n/a", one.measured, interval_text(one)]
        cells = [in_table(cell) for cell in cells]
        lines.append(f"| {' | '.join([*cells, str(one.n), one.verdict])} |")
    return "\n".join(lines) + "\n"


def write_report(given: list[Path], output_dir: Path) -> None:
    """Read the runs, write everything to results/report/ of the output folder."""
    runs, swept = apart(read_runs(result_files(given, output_dir)))
    places = panels(runs) if runs else []
    found = findings(all_claims(tuple(algorithms("discrete_BCQ"))), places, runs)
    drawings = [
        draw(shown(one.panel, one.names), one.values, told(one.panel), f"c{place}")
        if one.panel
        else ""
        for place, one in enumerate(found)
    ]
    target = output_dir / "results" / "report"
    with mpl.rc_context(figures.PRINT):  # type: ignore[arg-type]
        whole = _whole_figures(places, runs, swept)
        for name, figure in whole.items():
            with replacing(target / f"{name}.png", target / f"{name}.pdf") as (png, pdf):
                figure.savefig(png, format="png")
                figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
    rows = table.rows(places, runs, "bootstrap")
    markdown = table.to_markdown(rows, "bootstrap")
    cells, note = cells_of(markdown)
    drawn = [
        (
            f"{panel.env or 'without a record'}, {what}"
            + (f", batch {panel.batch}" if panel.batch else ", behavioural training"),
            draw(panel, values, told(panel), f"f{place}{'v' if values else ''}"),
        )
        for place, panel in enumerate(places)
        for values, what in ((False, "returns"), (True, "value estimates"))
        if not values or any(figures.has_values(seeds) for seeds in panel.learners.values())
    ]
    commands = list(filter(None, map(command, [*runs, *swept])))
    texts = {
        "claims.md": claims_markdown(found),
        "table.md": markdown + "\n",
        "table.csv": table.to_csv(rows),
        "table.tex": to_latex(cells),
        "index.html": page(found, drawings, drawn, cells, note, commands),
    }
    for name, text in texts.items():
        with replacing(target / name) as [temporary]:
            temporary.write_text(text, encoding="utf-8")
    for one in found:
        print(f"{one.verdict:<10} n = {one.n}  {one.claim}  {one.env}")
    say(f"saved {target}: {', '.join([*texts, *(f'{name}.png' for name in whole)])}")


def _whole_figures(places: list[Panel], runs: list[Run], swept: list[Run]) -> dict[str, Any]:
    """The figures of plot.py, those that there are runs for."""
    made: dict[str, Any] = {}
    if places:
        made["batches"] = figures.by_batch(places, "batches", "bootstrap", 0.5)
        if any(figures.has_values(s) for panel in places for s in panel.learners.values()):
            made["values"] = figures.by_batch(places, "values", "bootstrap", 0.5)
    if swept:
        every = [*runs, *swept]
        made["tradeoff"] = tradeoff(panels([*swept, *_behaviours(runs)]), every)
    return made


def _behaviours(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.stage not in (OFFLINE, ONLINE, FOREIGN)]
