"""What a sweep will take: core-hours from speeds measured on this machine, and disk."""

import json
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from common.errors import InputError
from common.files import ROOT, read_json, replacing, write_json
from sweeps.stage import GENERATE, LEARN, TRAIN, Stage
from sweeps.variants import entry, resolved

TRUE_VALUE_STEPS = 688  # γ^t < 0.001 at γ = 0.99
EPISODES, PAIRS = 10, 100
# Iterations a second of one quiet core at Hopper's sizes, where nothing has been measured: what the
# time left goes by. docs/reproduce.md has where they are from.
USUAL = {"BCQ": 31, "BEAR": 35, "VAE_BC": 88, "TD3_BC": 144, "DDPG": 213, "DQN": 460, "BC": 722}


def machine() -> str:
    """What speeds depend on."""
    return f"{platform.node()}, {platform.machine()}, torch {torch.__version__}"


class Speeds:
    """Measured speeds by variant, environment and learner, kept in a file beside the logs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            kept = read_json(path)
        except InputError:
            kept = {}
        self.known: dict[str, Any] = kept.get("speeds", {}) if kept.get("on") == machine() else {}

    def of(self, stage: Stage) -> dict[str, Any] | None:
        """What is known for a stage's variant and environment."""
        return self.known.get(f"{stage.variant} {stage.env}")

    def measure(self, stages: Iterable[Stage]) -> None:
        """Measure what is not known yet: some two seconds a learner and environment."""
        wanted: dict[tuple[str, str], set[str]] = defaultdict(set)
        for stage in stages:
            wanted[stage.variant, stage.env].add(learner(stage))
        for (variant, env), names in wanted.items():
            known = self.known.get(f"{variant} {env}", {"learners": {}})
            missing = sorted(names - known["learners"].keys())
            if not missing:
                continue
            print(f"measuring {', '.join(missing)} on {env} …", file=sys.stderr)
            command = [sys.executable, "-m", "sweeps.speeds", variant, env, *missing]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                raise InputError(
                    f"speeds of {env} cannot be measured: {done.stderr.strip().splitlines()[-1]}"
                )
            found = json.loads(done.stdout.splitlines()[-1])
            found["learners"] = known["learners"] | found["learners"]
            self.known[f"{variant} {env}"] = found
        with replacing(self.path) as [temporary]:
            write_json(temporary, {"on": machine(), "speeds": self.known})


def learner(stage: Stage) -> str:
    """The algorithm that a stage runs, the behavioural one in stages 1 and 2."""
    if stage.kind == LEARN:
        return resolved(stage.variant, stage.words).algorithm
    return entry(stage.variant).BEHAVIOURAL


def seconds(stage: Stage, speeds: Speeds) -> float:
    """CPU seconds of a stage: steps, updates, evaluations of full-length episodes, true values."""
    args, name = resolved(stage.variant, stage.words), learner(stage)
    known, steps = speeds.of(stage), args.max_timesteps
    if known is None or name not in known["learners"]:
        return 5 + (steps / USUAL.get(name, 200) if stage.kind != GENERATE else steps / 5000)
    speed = known["learners"][name]
    evaluations = -(-steps // args.eval_freq) if stage.kind != GENERATE else 1
    evaluation = known["episode"] * (EPISODES * known["step"] + speed["evaluate"])
    total = known["start"] + evaluations * evaluation
    if stage.kind != LEARN:
        total += steps * (known["step"] + speed["act"])
    if stage.kind == TRAIN:
        updates = max(0, steps - args.start_timesteps) / getattr(args, "train_freq", 1)
        total += updates * speed["update"]
    if stage.kind == LEARN:
        total += steps * speed["update"]
        if getattr(args, "true_value", False) and name not in {"BC", "VAE_BC"}:
            total += evaluations * TRUE_VALUE_STEPS * (PAIRS * known["step"] + speed["values"])
    return total


def disk(stage: Stage, speeds: Speeds) -> int:
    """Bytes that a stage leaves: its batch, its two models, its record."""
    args, known = resolved(stage.variant, stage.words), speeds.of(stage)
    if known is None:
        return 0
    models = 0 if stage.kind == GENERATE else 2 * known["learners"][learner(stage)]["bytes"]
    batch = stage.kind == GENERATE or (stage.kind == TRAIN and args.save_buffer)
    rows = min(args.max_timesteps, args.buffer_size or args.max_timesteps) if batch else 0
    records = 300 * -(-args.max_timesteps // args.eval_freq)
    return models + rows * known["row"] + records


def told(stages: list[Stage], ahead: list[Stage], speeds: Speeds, workers: int) -> str:
    """What `--dry_run` says after its commands: numbers of runs, core-hours and disk."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for stage in ahead:
        kind = {TRAIN: "stage 1", GENERATE: "stage 2"}.get(stage.kind, learner(stage))
        by_name[kind].append(seconds(stage, speeds) / 3600)
    hours = sum(map(sum, by_name.values()))
    lines = [f"{len(stages)} runs, {len(stages) - len(ahead)} of them finished"]
    for name, some in by_name.items():
        each = f"{sum(some) / len(some):.2f}"
        lines.append(f"  {len(some):5} × {name:<22} {each:>8} h each {sum(some):10.1f} h")
    size = sum(disk(stage, speeds) for stage in ahead) / 1e9
    lines += [
        f"{hours:.1f} core-hours, {hours / workers:.1f} h on {workers} "
        f"worker{'s' if workers > 1 else ''}, {size:.2f} GB of disk",
        f"(measured: {speeds.path}; evaluations counted as episodes of full length)",
    ]
    return "\n".join(lines)
