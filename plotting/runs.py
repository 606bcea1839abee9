"""Saved runs, read back: the evaluations (.npy) and all that their records (.json) say of them."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import InputError
from common.files import read_array, read_json

ONLINE, GENERATED, OFFLINE, FOREIGN = "stage 1", "stage 2", "stage 3", "no record"
BEHAVIOUR, AVERAGE = "behavioural policy", "batch's average return"
NO_SIMULATOR = "no simulator"  # in the place of an environment; such runs hold estimates
LAST = 10  # evaluations behind a final performance, as in the papers' tables
FINAL = f"the last {LAST} evaluations (of the last half where they are fewer than {2 * LAST})"


@dataclass(frozen=True)
class Run:
    """One saved run: mean undiscounted return `y[k]` after `x[k]` of `planned` steps.

    Where `env` is NO_SIMULATOR, `y` are estimates of a discounted value.

    `values` (evaluations, 2) holds the critic's estimate and the true value, NaN where there is
    none; it is None for a learner without a critic. Of a behavioural agent the estimate is the mean
    Q of its mini-batches.
    """

    path: Path
    stage: str
    env: str
    batch: str
    learner: str
    seed: Any
    x: np.ndarray
    x_label: str
    y: np.ndarray
    planned: float = 0
    arguments: dict[str, Any] = field(default_factory=dict)
    batch_record: dict[str, Any] = field(default_factory=dict)
    values: np.ndarray | None = None
    value_source: str = ""

    @property
    def final(self) -> float:
        """Final performance: the mean of the last evaluations."""
        return float(self.y[last(len(self.y))].mean())


def last(evaluations: int) -> slice:
    """Those behind a final performance: `FINAL`. What a short run began with says nothing of it."""
    return slice(-min(LAST, (evaluations + 1) // 2), None)


def say(line: str) -> None:
    """A remark for the reader; stdout is the table's."""
    print(line, file=sys.stderr)


def read_run(path: Path) -> Run:
    """A result and its record. Raises: InputError where either is damaged or they do not fit."""
    if not path.exists():  # a shell leaves results/*.npy as it is where nothing fits
        raise InputError(
            f"{path} does not exist: main.py saves evaluations as results/*.npy, `make quickstart` "
            "the first of them"
        )
    y = np.array(read_array(path), dtype=float)
    record_path = path.with_suffix(".json")
    if y.ndim != 1 or len(y) == 0:
        raise InputError(f"{path} has shape {y.shape}: saved evaluations are one number each, (N,)")
    if not record_path.exists():
        # Another code's evaluations: the name is all that is known of them.
        label, x = re.sub(r"(?<=.)_\d+$", "", path.stem), np.arange(1, len(y) + 1)
        return Run(path, FOREIGN, "", FOREIGN, label, str(path), x, "evaluations", y, x[-1])
    record = read_json(record_path)
    try:
        arguments, x = dict(record["arguments"]), np.array(record["x"], dtype=float)
        stage, batch = OFFLINE, str(arguments["buffer_name"])
        learner = str(arguments["algorithm"])
        if arguments["train_behavioral"]:
            stage, batch, learner = ONLINE, "", BEHAVIOUR
        elif arguments["generate_buffer"]:
            stage, learner = GENERATED, BEHAVIOUR
        elif arguments.get("concurrent") and "concurrent" not in batch.lower():
            batch += ", concurrent"
        made = dict(record.get("batch") or {})
        made["arguments"] = dict(made.get("arguments") or {})
        if made.get("mean_return") is not None:
            made["mean_return"] = float(made["mean_return"])
        env = NO_SIMULATOR if arguments["env"] is None else str(arguments["env"])
        if env == NO_SIMULATOR:
            made["mean_return"] = None  # undiscounted: nothing to compare an estimate with
        values = None if stage == GENERATED else _values(record)
        planned = x[-1] if record.get("finished", True) else arguments["max_timesteps"]
        run = Run(
            path, stage, env, batch, learner, arguments.get("seed", str(path)),
            x, str(record["x_label"]), y, float(planned), arguments,
            made, values,
            str((record.get("value_pairs") or {}).get("source", "")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{record_path} is no record of a run ({error!r})") from error
    if x.shape != y.shape or (values is not None and len(values) != len(y)):
        count = len(x) if x.shape != y.shape or values is None else len(values)
        raise InputError(f"{path} has {len(y)} evaluations, its record {count}: they do not fit")
    return run


def _values(record: dict[str, Any]) -> np.ndarray | None:
    """(evaluations, 2): estimate and true value; older records have the mean Q while learning."""
    if "values" in record:
        pairs = [[one["estimate"], one["true"]] for one in record["values"]]
    else:
        pairs = [[one.get("q"), None] for one in record.get("figures", [])]
        if all(estimate is None for estimate, _ in pairs):
            return None
    return np.array(pairs, dtype=float).reshape(-1, 2)


def _of_a_run(record: Path) -> bool:
    """Whether there is a record, and it is not tabular_BCQ's."""
    return record.exists() and "lines" not in read_json(record)


def read_runs(paths: list[Path]) -> list[Run]:
    """All runs among `paths`, each once.

    Passed over: `…_value.npy`, whose content is in the run's record, and, with a remark, arrays
    that are no list of evaluations and have no record of a run (those of tabular_BCQ).
    """
    runs = []
    for path in {path.resolve(): path for path in paths}.values():
        if path.stem.endswith("_value") and path.suffix == ".npy":
            continue
        if path.suffix == ".npy" and not _of_a_run(path.with_suffix(".json")):
            shape = read_array(path).shape
            if len(shape) != 1 or shape == (0,):
                say(f"{path}: passed over: no record of a run, and {shape} is no list of returns")
                continue
        runs.append(read_run(path))
    if not runs:
        raise InputError("no run among the files: name the .npy that main.py writes to results/")
    return runs
