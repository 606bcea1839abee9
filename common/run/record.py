"""What a run leaves: evaluations as .npy, and all about them as json, after each evaluation."""

import argparse
import hashlib
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from common.environment.rollout import Episode
from common.errors import InputError
from common.files import ROOT, best_path, read_json, replacing, values_path, write_array, write_json
from common.notes import note
from common.saving import write_state

SOURCES = ("common/**/*.py", "datasets/*.py", "*_BCQ/*.py")
# Arguments that came later: left out where they are not set, so that records stay as they were.
LATER = ("held_out", "estimate_iterations", "estimate_rows", "estimate", "act", "output",
         "normalize_states", "save_policy")  # fmt: skip
PACKAGES = ("torch", "numpy", "gymnasium", "mujoco", "ale-py")


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """What made a file: the arguments, and the code."""
    arguments = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    for place in ("output_dir", "buffer_dir"):  # where files lie does not change what a run is
        arguments.pop(place, None)
    arguments = {k: v for k, v in arguments.items() if k not in LATER or v not in (None, False)}
    return {"arguments": arguments} | code()


def code() -> dict[str, Any]:
    """Package versions, the code's commit, and a sha256 of its files: -dirty may be any of many."""
    source = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        source.update(path.name.encode() + b"\n" + path.read_bytes())
    return {
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "commit": _commit(),
        "source": source.hexdigest(),
    }


def code_differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs in two results of `code`; what one of them lacks does not."""
    facts = [known | known.get("versions", {}) for known in (one, other)]
    keys = [key for key in facts[0] if key in facts[1] and key != "versions"]
    differing = [key for key in keys if facts[0][key] != facts[1][key]]
    if len(differing) > 1 and "commit" in differing:
        differing.remove("source")  # that says it already
    return [f"{key} {str(facts[1][key])[:20]}, not {str(facts[0][key])[:20]}" for key in differing]


def batch_record(
    args: argparse.Namespace,
    policy: Path,
    episodes: list[Episode],
    replay_buffer: Any,
    recorder: "Recorder",
) -> dict[str, Any]:
    """What is said of a batch beside its files; `episodes` are all that finished.

    `finished` says whether the batch is all that the stage was to make.
    `dropped` counts the transitions before the oldest one kept, `in_order` promises that they are
    saved as they happened. `episodes` and `mean_return` are of those that lie in it as a whole.
    """
    dropped = replay_buffer.added - replay_buffer.size
    begins = [0, *(episode.end for episode in episodes[:-1])]
    returns = [
        episode.episode_return
        for begin, episode in zip(begins[: len(episodes)], episodes, strict=True)
        if begin >= dropped
    ]
    stage = "train_behavioral" if args.train_behavioral else "generate_buffer"
    return recorder.origin() | {
        "env": args.env,
        "seed": args.seed,
        "policy": policy.stem,
        "stage": stage,
        "transitions": replay_buffer.size,
        "dropped": dropped,
        "in_order": True,
        "finished": replay_buffer.added == args.max_timesteps,
        "episodes": len(returns),
        "mean_return": float(np.mean(returns)) if returns else None,
    }


def announce_part(record: dict[str, Any]) -> None:
    """Say of a batch that the stage which makes it is not finished."""
    if record.get("finished") is False:
        print(f"the batch is of an unfinished run: {record['transitions']:,} transitions so far")


def require_env(prefix: Path, args: argparse.Namespace) -> None:
    """A line where a batch was made with other --env_kwargs or another --max_episode_steps.

    Raises: InputError where a batch's record, if it has one, names another environment.
    """
    path = Path(f"{prefix}.json")
    record = read_json(path) if path.exists() else {"env": args.env}
    if (made_for := record.get("env", args.env)) != args.env:
        raise InputError(
            f"{prefix}_*.npy were made in {made_for}, not in {args.env}: choose another --env or "
            "--buffer_name"
        )
    made_with = record.get("arguments")
    for name in ("env_kwargs", "max_episode_steps"):
        before = made_with.get(name) if isinstance(made_with, dict) else None
        if before != vars(args).get(name) and "arguments" in record:
            note(f"{prefix}_*.npy were made with --{name} {before}, not {vars(args).get(name)}")


def _commit() -> str | None:
    """The code's commit, with -dirty where files differ from it; None where there is no git.

    Without locks: a run that is killed while git rewrites its index (`git describe --dirty` does)
    would leave one that stops every later commit.
    """

    def git(*argv: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(ROOT), *argv]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("describe", "--always", "--abbrev=12")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit


class Recorder:
    """The evaluations of one run, written to `path` (.npy and .json) each time one is added.

    The .npy holds the mean undiscounted return of each evaluation, (evaluations,) float64. The
    agent evaluated last is saved as `model` with them, and beside it the one of the best evaluation
    (the first of equals), so that all are always of one run. Value estimates, where there are any,
    are written as (evaluations, 2), the estimate and the true value, NaN where it is not measured.
    """

    evaluations = "returns"  # what the record calls them

    def __init__(
        self,
        path: Path,
        args: argparse.Namespace,
        x_label: str,
        model: Path | None = None,
        **more: Any,
    ) -> None:
        """`more` is what the record should say besides."""
        self.path, self.model = path, model
        self.permit: Callable[[], None] = lambda: None  # called before files are replaced
        self.record: dict[str, Any] = provenance(args) | {
            **more,
            "finished": False,
            "seconds": 0.0,
            "x_label": x_label,
            "x": [],
            self.evaluations: [],
            "figures": [],
        }
        self._start = time.monotonic()
        self._tensorboard = args.tensorboard
        self._writer: Any = None

    @property
    def evaluated(self) -> int:
        """Steps at the last evaluation; 0 before the first."""
        return self.record["x"][-1] if self.record["x"] else 0

    def state_dict(self) -> dict[str, Any]:
        """The record so far."""
        self.record["seconds"] = round(time.monotonic() - self._start, 1)
        return {"record": self.record}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a record; its events for tensorboard are written anew."""
        self.record = state["record"]
        self._start = time.monotonic() - self.record["seconds"]
        for place in range(len(self.record["x"])):
            self._show(place)

    def went_on(self, step: int) -> None:
        """Record, and say, where other code or versions go on with the run from this step on."""
        now, changes = code(), self.record.get("code_changes", [])
        differing = code_differences((changes or [self.record])[-1], now)
        if differing:
            print(f"goes on under other code: {'; '.join(differing)}")
            self.record["code_changes"] = [*changes, {"step": step} | now]

    def origin(self) -> dict[str, Any]:
        """The arguments, and all code that took part."""
        keys = ("arguments", "versions", "commit", "source", "code_changes")
        return {key: self.record[key] for key in keys if key in self.record}

    @property
    def files(self) -> list[Path]:
        """What there is of the run, but for the json."""
        paths = [self.path, values_path(self.path)]
        paths += [self.model, best_path(self.model)] if self.model else []
        return [path for path in paths if path.exists()]

    @property
    def last_is_best(self) -> bool:
        """Whether no evaluation was as good as the last one."""
        means = self._means()
        return int(means.argmax()) == len(means) - 1

    def take_up(self, eval_freq: int) -> None:
        """Go on with the finished run's json, but for an evaluation that a longer run lacks.

        Raises: InputError where it is missing or damaged.
        """
        record = read_json(self.path.with_suffix(".json"))
        if record["x"][-1] % eval_freq:
            for name in {"x", self.evaluations, "figures", "values"} & record.keys():
                record[name].pop()
        more = {"finished": False, "arguments": self.record["arguments"]}
        self.load_state_dict({"record": record | more})

    def add(
        self,
        x: int,
        evaluation: Any,
        figures: dict[str, float],
        agent: Any = None,
        value: dict[str, float | None] | None = None,
    ) -> None:
        """One evaluation after `x` steps, and the mean losses since the last.

        `evaluation`: the returns of its episodes. `value`: the value estimate and the true value,
        by the names "estimate" and "true".
        """
        if value is not None:
            self.record.setdefault("values", []).append(value)
        self.record["x"].append(x)
        self.record[self.evaluations].append(evaluation)
        self.record["figures"].append(figures)
        self._save(agent)
        self._show(len(self.record["x"]) - 1)

    def _show(self, place: int) -> None:
        """One evaluation on the screen, and for tensorboard."""
        x = self.record["x"][place]
        value = self.record["values"][place] if "values" in self.record else {}
        values = {f"value_{k}": v for k, v in value.items() if v is not None}
        figures = self.record["figures"][place] | values
        shown = "  ".join(f"{name} {number:.4g}" for name, number in figures.items())
        measured, text = self._evaluated(place)
        tqdm.write(f"{self.record['x_label']} {x:>9,}  {text}  {shown}")
        if self._tensorboard:
            for name, number in {**measured, **figures}.items():
                self._events.add_scalar(name, number, x)
            self._events.flush()

    def _evaluated(self, place: int) -> tuple[dict[str, float], str]:
        """One evaluation: what tensorboard is told, and the screen."""
        returns = self.record["returns"][place]
        mean = float(np.mean(returns))
        return {"return": mean}, f"return {mean:9.2f} ± {np.std(returns):.2f}"

    def _means(self) -> np.ndarray:
        """One number an evaluation, (evaluations,), the best being the highest."""
        return np.array([np.mean(episodes) for episodes in self.record["returns"]])

    @property
    def _events(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            folder = self.path.parent / "tensorboard" / self.path.stem
            # tensorboard would draw the events of a run that is being replaced as part of this one.
            shutil.rmtree(folder, ignore_errors=True)
            self._writer = SummaryWriter(str(folder))
        return self._writer

    def finish(self, **more: Any) -> None:
        """Mark the run as finished and add what else its record should say."""
        self.record |= {"finished": True, **more}
        self._save()
        if self._writer:
            self._writer.close()
        print(f"saved {self.path}")

    def _save(self, agent: Any = None) -> None:
        self.record["seconds"] = round(time.monotonic() - self._start, 1)
        means = self._means()
        arrays = {self.path: means}
        if "values" in self.record:
            pairs = [(one["estimate"], one["true"]) for one in self.record["values"]]
            arrays[values_path(self.path)] = np.array(pairs, dtype=float)  # None becomes NaN
        paths = [*arrays, self.path.with_suffix(".json")]
        if self.model and agent:
            paths.append(self.model)
            if self.last_is_best:
                paths.append(best_path(self.model))
        self.permit()
        with replacing(*paths) as temporaries:
            *written, record = temporaries[: len(arrays) + 1]
            for temporary, array in zip(written, arrays.values(), strict=True):
                write_array(temporary, array)
            write_json(record, self.record)
            for path in temporaries[len(arrays) + 1 :]:
                write_state(path, agent.state_dict())


class EstimateRecorder(Recorder):
    """The evaluations of a run without a simulator: estimates, and never a return among them.

    `estimates` of the record holds what each evaluation said (`HeldOut`); the .npy their values,
    discounted, (evaluations,) float64. The best agent is that of the highest estimate.
    """

    evaluations = "estimates"

    def _evaluated(self, place: int) -> tuple[dict[str, float], str]:
        found = self.record["estimates"][place]
        interval = f"({found['low']:.4g} to {found['high']:.4g})"
        others = {k: v for k, v in found.items() if k not in ("value", "low", "high")}
        shown = "  ".join(f"{name} {number:.4g}" for name, number in others.items())
        return {"estimate": found["value"], **others}, (
            f"estimate {found['value']:.4g} {interval}  {shown}"
        )

    def _means(self) -> np.ndarray:
        return np.array([found["value"] for found in self.record["estimates"]])

    def finish(self, **more: Any) -> None:
        """As any run's, and which agent the best is."""
        super().finish(**more)
        if self.model:
            place = int(self._means().argmax())
            print(
                f"best by the estimate on held-out episodes, after {self.record['x'][place]:,} "
                f"{self.record['x_label']}: {best_path(self.model)}"
            )
