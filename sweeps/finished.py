"""Which runs there are already: what main.py would refuse as finished is known from its record."""

import functools
import json
from pathlib import Path
from typing import Any

from common.arguments import INCIDENTAL
from common.errors import InputError
from common.files import read_json
from sweeps.stage import DONE, FAILED, LEARN, TRAIN, Outcome, Stage
from sweeps.variants import resolved

# Measured beside what is learned, which it does not change.
BESIDE = {"true_value"}


def finished(stage: Stage) -> Outcome | None:
    """`done` where the run is there with the same arguments; None where it is to be run.

    A finished run with other arguments under the same name is a failure that says so: main.py
    would refuse to replace it. An interrupted one is to be run, and goes on; so does a shorter one
    that has left what that takes.
    """
    try:
        record = described(stage.record)
    except InputError:
        return None  # main.py knows what to do, and says it
    if not record.get("finished"):
        return None
    differing = differences(stage, record)
    if not differing:
        return Outcome(stage.name, DONE)
    said = "; ".join(f"{name} {made}, not {wanted}" for name, (made, wanted) in differing.items())
    what, remedy = f"with other arguments ({said})", ""
    if [*differing] == ["max_timesteps"]:
        made, wanted = differing["max_timesteps"]
        if made < wanted and stage.folders.end(stage.label).exists():
            return None
        what, remedy = f"of {made:,} steps, not {wanted:,}", f"ask for {made:,}, "
    why = (
        f"{stage.record} is a finished run {what}: {remedy}choose another --output_dir, or "
        "replace it by its command with --overwrite"
    )
    return Outcome(stage.name, FAILED, why=why)


def described(path: Path) -> dict[str, Any]:
    """A run's record, read as far as its evaluations, which are nearly all of it.

    Raises: InputError where there is none, or a damaged one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        head, found, _ = text.partition(',\n "x_label"')  # as common/files.py writes it
        record = json.loads(head + "\n}") if found else None
    except (OSError, ValueError):
        record = None
    return record if isinstance(record, dict) and "finished" in record else read_json(path)


def differences(stage: Stage, record: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The arguments in which a record differs from the stage's command: its value, the command's.

    What the command leaves open (None) and what older records do not know is no difference.
    """
    made = record.get("arguments", {})
    wanted = vars(resolved(stage.variant, stage.words)) | {"env": stage.env}
    if stage.kind != LEARN:
        wanted["algorithm"] = None  # the behavioural one, whatever the flag says
        wanted["batch_size"] = None
    batch = record.get("batch") or {}
    if wanted.get("concurrent"):  # main.py makes as many iterations as the behaviour made updates
        start = batch.get("arguments", {}).get("start_timesteps", 0)
        updates = batch.get("transitions", wanted["max_timesteps"] + start) - start
        wanted["max_timesteps"] = min(wanted["max_timesteps"], updates)
    if stage.kind == LEARN and wanted["buffer_size"] is None:
        wanted["buffer_size"] = _transitions(Path(f"{_prefix(stage, wanted)}.json"))
    if stage.kind == TRAIN and not wanted["save_buffer"]:
        wanted["buffer_name"] = None
    beside = INCIDENTAL | BESIDE | stage.indifferent
    return {
        name: (made[name], value)
        for name, value in wanted.items()
        if name not in beside and value is not None and name in made and made[name] != value
    }


def _prefix(stage: Stage, wanted: dict[str, Any]) -> Path:
    folders = stage.folders
    if wanted.get("buffer_dir") is not None:
        folders = type(folders)(wanted["buffer_dir"], folders.env_id, folders.seed)
    return folders.buffer(wanted["buffer_name"])


@functools.lru_cache(maxsize=100_000)
def _transitions(record: Path) -> int | None:
    """How many transitions a batch has, None where it is not there (any more)."""
    try:
        return read_json(record).get("transitions")
    except InputError:
        return None
