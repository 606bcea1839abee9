"""The papers' claims, each held against the saved runs by one stated rule, never by eye.

A claim is a difference of means over seeds: positive where it says "above", negative where it says
"below". Its verdict is that of the difference's 95% bootstrap interval.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from plotting.panels import RESAMPLES, Panel
from plotting.runs import FINAL, Run, last
from plotting.table import reference

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
SEEDS = 3  # fewer decide nothing
FAR, NEAR = 0.5, 0.1  # shares of the reference: "far below" it, "matches" it
OFF = 1.0  # relative error of a value estimate from which it is called unstable
RULE = (
    f"Rule. A return is the mean of {FINAL}. Of each seed the difference named "
    "in the row is taken; the interval is the 95% percentile bootstrap interval of its mean over "
    f"seeds ({RESAMPLES:,} resamples, generator 0). A claim holds where all of the interval is on "
    "the side that it names, fails where all of it is on the other side, and is undecided where it "
    f'has both, or with fewer than {SEEDS} seeds. "Far below" is below y − {FAR:g}·|y|, '
    f'"matches or beats" above y − {NEAR:g}·|y|, y being the reference\'s return of the same seed. '
    f"A value estimate is off by |estimate − true value| / |true value|, both such means; "
    f"stable is less than {OFF:g}, unstable more."
)


@dataclass(frozen=True)
class Finding:
    """A claim in one environment: the difference with its interval, and what it is of.

    `names` are the curves of `panel` that show it, as returns or as `values`.
    """

    claim: str
    where: str
    env: str
    measured: str
    n: int
    mean: float
    low: float
    high: float
    verdict: str
    panel: Panel | None = None
    names: tuple[str, ...] = ()
    values: bool = False


def difference(x: np.ndarray, y: np.ndarray | None = None) -> tuple[float, float, float]:
    """Mean of x, or of x − mean of y, with its bootstrap interval; (n,), (m,) of seeds.

    x alone are differences within seeds; x and y are resampled apart. One value has no interval.
    """
    samples = (x,) if y is None else (x, y)
    mean = float(np.mean(x) - (0.0 if y is None else np.mean(y)))
    if min(map(len, samples)) < 2 or not all(np.isfinite(one).all() for one in samples):
        return mean, math.nan, math.nan
    from scipy.stats import bootstrap  # a second to import, and needed here alone

    def statistic(x: np.ndarray, y: np.ndarray | float = 0.0, axis: int = -1) -> np.ndarray:
        return x.mean(axis) - (y.mean(axis) if isinstance(y, np.ndarray) else y)

    with warnings.catch_warnings(action="ignore"):  # of seeds that all agree
        found = bootstrap(
            samples, statistic, n_resamples=RESAMPLES, method="percentile", rng=0, axis=-1,
            vectorized=True,
        ).confidence_interval  # fmt: skip
    return mean, float(found.low), float(found.high)


def verdict(n: int, low: float, high: float, above: bool) -> str:
    """By the interval of the difference, which the claim says is above zero, or below it."""
    if n < SEEDS or not (math.isfinite(low) and math.isfinite(high)):
        return UNDECIDED
    if low > 0:
        return HOLDS if above else FAILS
    if high < 0:
        return FAILS if above else HOLDS
    return UNDECIDED


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and the runs that it is about.

    `test` gives the findings in one panel; `batches` are the names of its batch.
    """

    text: str
    where: str
    discrete: bool
    batches: tuple[str, ...]
    test: Callable[["Claim", Panel, list[Run]], Iterator[Finding]]
    learners: tuple[str, ...] = ()
    above: bool = True
    margin: float = 0.0
    values: bool = False

    def finding(
        self,
        panel: Panel,
        names: tuple[str, ...],
        measured: str,
        samples: tuple[np.ndarray, ...],
    ) -> Finding:
        """What these differences say."""
        mean, low, high = difference(*samples)
        n = min(map(len, samples))
        found = verdict(n, low, high, self.above)
        env = ", ".join([panel.env, *panel.batch.split(", ")[1:]])
        return Finding(
            self.text, self.where, env, measured, n, mean, low, high, found, panel, names,
            self.values,
        )  # fmt: skip

    def about(self, panel: Panel) -> bool:
        """Whether a panel's batch is the claim's, of its variant."""
        runs = [run for some in panel.learners.values() for run in some]
        discrete = any("low_noise_p" in run.arguments for run in runs)
        # What follows the name tells batches of one name apart (plotting/panels.py).
        name = panel.batch.split(", ")[0]
        return name in self.batches and bool(runs) and discrete == self.discrete


def curves(panel: Panel, learner: str) -> dict[str, list[Run]]:
    """A learner's experiments in a panel, the one alone of its name or several that differ."""
    return {
        name: runs
        for name, runs in panel.learners.items()
        if name == learner or name.startswith(f"{learner}, ")
    }


def number(value: float) -> str:
    """A return or an error in few figures."""
    return (f"{value:,.1f}" if abs(value) < 1e6 else f"{value:.3g}").replace("-", "−")


def behaviour_compared(claim: Claim, panel: Panel, runs: list[Run]) -> Iterator[Finding]:
    """Each learner's return less the behavioural policy's, of which `margin` is left or lost."""
    for learner in claim.learners:
        for name, seeds in curves(panel, learner).items():
            pairs = [(run.final, other.final) for run in seeds if (other := reference(run, runs))]
            if pairs:
                x, y = np.array(pairs).T
                measured = f"{name} {number(x.mean())}, behavioural policy {number(y.mean())}"
                d = x - (y - claim.margin * np.abs(y))
                yield claim.finding(panel, (name,), measured, (d,))


def learners_compared(claim: Claim, panel: Panel, _: list[Run]) -> Iterator[Finding]:
    """BCQ's return less each other learner's on the same batches."""
    for bcq, ours in curves(panel, "BCQ").items():
        for learner in claim.learners:
            for name, theirs in curves(panel, learner).items():
                of_seed = {run.seed: run.final for run in theirs}
                pairs = [(r.final, of_seed[r.seed]) for r in ours if r.seed in of_seed]
                if pairs:
                    x, y = np.array(pairs).T
                    measured = f"{bcq} {number(x.mean())}, {name} {number(y.mean())}"
                    yield claim.finding(panel, (bcq, name), measured, (x - y,))


def batch_compared(claim: Claim, panel: Panel, _: list[Run]) -> Iterator[Finding]:
    """BCQ's return less the average return of its batch: that of the policy with its noise."""
    for name, seeds in curves(panel, "BCQ").items():
        pairs = [
            (run.final, run.batch_record["mean_return"])
            for run in seeds
            if run.batch_record.get("mean_return") is not None
        ]
        if pairs:
            x, y = np.array(pairs).T
            measured = f"{name} {number(x.mean())}, the batch {number(y.mean())}"
            yield claim.finding(panel, (name,), measured, (x - (y - claim.margin * np.abs(y)),))


def error(run: Run) -> float | None:
    """|estimate − true value| / |true value| at the end; None where it was not measured."""
    if run.values is None:
        return None
    found = run.values[last(len(run.values))]
    found = found[np.isfinite(found).all(1)]
    if not len(found) or not found[:, 1].mean():
        return None
    estimate, true = found.mean(0)
    return float(abs(estimate - true) / abs(true))


def errors(seeds: list[Run]) -> np.ndarray:
    """Those of the seeds that have one."""
    return np.array([found for run in seeds if (found := error(run)) is not None])


def values_measured(claim: Claim, panel: Panel, _: list[Run]) -> Iterator[Finding]:
    """How far a learner's value estimates are off, less what is called unstable."""
    for learner in claim.learners:
        for name, seeds in curves(panel, learner).items():
            found = errors(seeds)
            if len(found):
                measured = (
                    f"{name}'s estimate is off by {number(found.mean())} times the true value"
                )
                yield claim.finding(panel, (name,), measured, (found - OFF,))


def values_worst(claim: Claim, panel: Panel, runs: list[Run]) -> Iterator[Finding]:
    """How far DDPG's estimates are off here, less how far on each other batch; decimal logs."""
    for name, seeds in curves(panel, "DDPG").items():
        here = errors(seeds)
        for other in ("FinalBuffer", "Concurrent"):
            there = errors(
                [r for r in runs if (r.env, r.batch, r.learner) == (panel.env, other, "DDPG")]
            )
            if len(here) and len(there):
                measured = f"off by {number(here.mean())}, on {other} by {number(there.mean())}"
                logs = (np.log10(here + 1e-9), np.log10(there + 1e-9))
                yield claim.finding(panel, (name,), f"{name} {measured}", logs)


ROBUST = ("Robust", "Imperfect")  # main.py's default name, and the paper's word
_TASKS = {
    "the final buffer": ("FinalBuffer",), "concurrent": ("Concurrent",),
    "imitation": ("Imitation",), "imperfect demonstrations": ROBUST,
}  # fmt: skip
_ICML = "Fujimoto, Meger, Precup, ICML 2019"
_DISCRETE = "Fujimoto, Conti, Ghavamzadeh, Pineau 2019"
OTHERS = ("DDPG", "DQN", "BC", "VAE_BC")  # the ICML paper's own baselines
OFF_POLICY = ("DQN", "QRDQN", "REM")


def all_claims(discrete_learners: tuple[str, ...]) -> list[Claim]:
    """Every claim, in the papers' order; the discrete paper's learners are the variant's."""
    others = tuple(name for name in discrete_learners if name != "BCQ")
    made = []
    for task in ("the final buffer", "concurrent", "imitation"):
        made.append(
            Claim(
                f"Off-policy DDPG falls far below the behavioural policy: {task}",
                f"{_ICML}, section 3.1 and figure 1", False, _TASKS[task], behaviour_compared,
                ("DDPG",), above=False, margin=FAR,
            )
        )  # fmt: skip
    for task in ("the final buffer", "concurrent", "imitation"):
        made.append(
            Claim(
                f"Off-policy DDPG's value estimates are unstable or diverge: {task}",
                f"{_ICML}, section 3.1 and figure 1", False, _TASKS[task], values_measured,
                ("DDPG",), values=True,
            )
        )  # fmt: skip
    made.append(
        Claim(
            "Off-policy DDPG's value estimates are worst on imitation",
            f"{_ICML}, section 3.1 and figure 1", False, _TASKS["imitation"], values_worst,
            ("DDPG",), values=True,
        )
    )  # fmt: skip
    for task, batches in _TASKS.items():
        made.append(
            Claim(
                f"BCQ matches or beats the behavioural policy: {task}",
                f"{_ICML}, section 5.1 and figure 2", False, batches, behaviour_compared,
                ("BCQ",), margin=NEAR,
            )
        )  # fmt: skip
    made.append(
        Claim(
            "BCQ matches or beats the behavioural policy with its noise: imperfect demonstrations",
            f"{_ICML}, section 5.1 and figure 2", False, ROBUST, batch_compared, margin=NEAR,
        )
    )  # fmt: skip
    made.append(
        Claim(
            "BCQ is above the other learners on imperfect demonstrations",
            f"{_ICML}, section 5.1 and figure 2", False, ROBUST, learners_compared, OTHERS,
        )
    )  # fmt: skip
    for task, batches in _TASKS.items():
        made.append(
            Claim(
                f"BCQ's value estimates are stable: {task}",
                f"{_ICML}, section 5.1", False, batches, values_measured, ("BCQ",), above=False,
                values=True,
            )
        )  # fmt: skip
    default = ("Default",)
    made += [
        Claim(
            "Off-policy learners fall below the policy that made the batch",
            f"{_DISCRETE}, abstract and section 4", True, default, behaviour_compared,
            tuple(name for name in OFF_POLICY if name in others), above=False,
        ),
        Claim(
            "BCQ is above every other learner", f"{_DISCRETE}, abstract and section 4", True,
            default, learners_compared, others,
        ),
        Claim(
            "BCQ matches or beats the policy that made the batch, with its noise",
            f"{_DISCRETE}, section 4", True, default, batch_compared, margin=NEAR,
        ),
    ]  # fmt: skip
    return made


def findings(claims: list[Claim], panels: list[Panel], runs: list[Run]) -> list[Finding]:
    """All claims in all environments; one without runs is undecided and says so."""
    found: list[Finding] = []
    for claim in claims:
        here = [
            one for panel in panels if claim.about(panel) for one in claim.test(claim, panel, runs)
        ]
        nothing = Finding(
            claim.text, claim.where, "", "no runs of it here", 0, math.nan, math.nan, math.nan,
            UNDECIDED, values=claim.values,
        )  # fmt: skip
        found += here or [nothing]
    return found


def shown(panel: Panel, names: tuple[str, ...]) -> Panel:
    """The panel with these learners' curves alone, and the behaviour's."""
    return replace(panel, learners={name: panel.learners[name] for name in names})


def interval_text(finding: Finding) -> str:
    """The difference with its interval."""
    if not math.isfinite(finding.mean):
        return "n/a"
    if not math.isfinite(finding.low):
        return number(finding.mean)
    return f"{number(finding.mean)} [{number(finding.low)}, {number(finding.high)}]"
