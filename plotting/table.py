"""Final performance as rows: Markdown for the reader, CSV for what comes after."""

import csv
import io
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from common.environment.scores import normalized_score
from plotting.names import in_table
from plotting.panels import Panel, behaviour_of, interval, meanwhile
from plotting.runs import AVERAGE, BEHAVIOUR, FINAL, NO_SIMULATOR, Run

NONE = "n/a"
COLUMNS = (
    "environment", "batch", "learner", "n", "steps", "planned", "final", "low", "high",
    "last", "best", "percent_of_behaviour", "percent_difference", "d4rl_score",
)  # fmt: skip


def percent_of(value: float, reference: float | None) -> float | None:
    """100·x/reference; None without a reference above zero.

    Of a negative return a percentage says the opposite of what it seems to: −100 is 200% of −50.
    """
    return 100 * (value / reference) if reference is not None and reference > 0 else None


def reference(learner: Run, runs: list[Run]) -> Run | None:
    """The evaluations of the behavioural policy that a learner's are compared with."""
    behaviour = behaviour_of(learner, runs)
    return meanwhile(behaviour, learner) if behaviour else None


def rows(panels: list[Panel], runs: list[Run], kind: str) -> list[dict[str, Any]]:
    """One row a curve or line, by `COLUMNS`; None where there is nothing to say.

    `final` is the mean over seeds of each seed's last evaluations (plotting/runs.py), `low` and
    `high` their mean ± one standard deviation over seeds, or the bootstrap interval; the
    percentages are those of `final` to the behavioural policy's, and their difference is
    100·(x − reference)/reference.
    """
    made = []
    for panel in panels:
        policies = panel.online | panel.generated
        for name, seeds in itertools.chain(panel.learners.items(), policies.items()):
            found = [run if name in policies else reference(run, runs) for run in seeds]
            made.append(
                _row(panel, name, np.array([run.final for run in seeds]), found, kind)
                | {
                    "steps": int(seeds[0].x[-1]),
                    "planned": int(max(run.planned for run in seeds)),
                    "last": np.mean([run.y[-1] for run in seeds]),
                    "best": np.mean([run.y.max() for run in seeds]),
                }
            )
        if len(panel.batch_returns):
            found = list(itertools.chain(*policies.values()))
            made.append(_row(panel, AVERAGE, panel.batch_returns, found, kind))
    return made


def _row(
    panel: Panel, name: str, finals: np.ndarray, behaviours: Sequence[Run | None], kind: str
) -> dict[str, Any]:
    low, high = interval(finals, kind, spread=1)
    final = float(finals.mean())
    # A mean over other seeds than the learner's would be no reference.
    references = [run.final for run in behaviours if run]
    whole = bool(references) and len(references) == len(behaviours)
    percent = percent_of(final, float(np.mean(references)) if whole else None)
    return dict.fromkeys(COLUMNS) | {
        "environment": panel.env,
        "batch": panel.batch,
        "learner": name,
        "n": len(finals),
        "final": final,
        "low": float(low),
        "high": float(high),
        "percent_of_behaviour": percent,
        "percent_difference": None if percent is None else percent - 100,
        "d4rl_score": normalized_score(panel.env, final),
    }


def to_csv(made: list[dict[str, Any]]) -> str:
    """The rows with full figures; n/a (which pandas reads as missing) where there is none."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: NONE if _missing(v) else v for k, v in row.items()} for row in made)
    return text.getvalue()


def _missing(value: Any) -> bool:
    """None, NaN and infinity alike are no figures."""
    return value is None or (not isinstance(value, str) and not math.isfinite(value))


def _shown(value: Any, form: str = ".1f") -> str:
    # + 0.0: no "-0.0"
    return NONE if _missing(value) else format(round(value, 1) + 0.0, form)


def _to_four_figures(value: Any) -> str:
    """An estimate, whose size is that of the rewards."""
    return NONE if _missing(value) else f"{value + 0.0:.4g}"


def to_markdown(made: list[dict[str, Any]], kind: str) -> str:
    """The table, and below it what its columns mean."""
    estimates = [row["environment"] == NO_SIMULATOR for row in made]
    what = "estimate" if all(estimates) else "return or estimate" if any(estimates) else "return"
    lines = [
        f"| environment | batch | learner | n | steps | final {what} | last | best "
        "| % of behaviour | % difference | D4RL score |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in made:
        show = _to_four_figures if row["environment"] == NO_SIMULATOR else _shown
        final = show(row["final"])
        if row["n"] > 1 and kind == "sd":
            final += f" ± {show(row['high'] - row['final'])}"
        elif row["n"] > 1:
            final += f" [{show(row['low'])}, {show(row['high'])}]"
        steps = _shown(row["steps"], ",.0f")
        if row["planned"] and row["steps"] and row["steps"] < row["planned"]:
            steps += f" of {row['planned']:,d}"
        cells = [
            in_table(row["environment"] or "(none)"), in_table(row["batch"] or "(online)"),
            in_table(row["learner"]), row["n"], steps, final,
            *(show(row[key]) for key in ("last", "best")),
            _shown(row["percent_of_behaviour"]), _shown(row["percent_difference"], "+.1f"),
            _shown(row["d4rl_score"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    spread = "± one standard deviation over the n seeds"
    if kind == "bootstrap":
        spread = "[95% bootstrap interval of the mean over the n seeds]"
    told = (
        f"\nOf {NO_SIMULATOR} they are estimates of a discounted value by the batch alone."
        if any(estimates)
        else ""
    )
    return "\n".join(lines) + (
        f"\n\nFinal {what}: mean of {FINAL}, {spread}. Percentages are of the "
        f"{BEHAVIOUR}'s,\nn/a where its evaluation is not among the files or not above zero (of a "
        "negative return they would mislead).\nD4RL score: 0 a random policy, 100 an expert; n/a "
        f"where D4RL has no references.{told}"
    )
