"""A finished run goes on to a larger --max_timesteps: what it leaves for that, beside its model.

Its model, its record and, in stage 1, its batch hold nearly all of its last checkpoint; the rest,
some kilobytes, is `models/…_end.pt`. A run whose length is no multiple of `eval_freq` ends with an
evaluation that a longer one does not have. Of that the last checkpoint which both come by is kept,
the agent and, where the last evaluation was the best, the best one before it included.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch

from common.errors import InputError
from common.files import best_path, replacing
from common.saving import write_sealed


def leave(path: Path, last: dict[str, Any], parts: dict[str, Any], batch: Path) -> None:
    """Keep of a finished run's last checkpoint what `take_up` needs.

    Raises: InputError where it cannot be written.
    """
    recorder, kept = parts["recorder"], dict(last["parts"])
    del kept["recorder"]
    if "best" not in last:  # it is of the last evaluation, as the model is
        del kept["agent"]
    if "rows" in kept:
        kept["rows"] = parts["rows"].as_batch(batch)
    best = last.get("best", {}) if recorder.last_is_best else {}
    files = [one for one in recorder.files if not (best and one == best_path(recorder.model))]
    content = {"arguments": last["arguments"], "parts": kept, "best": best}
    write_sealed(path, _rebuilt(content | {"files": {one.name: _digest(one) for one in files}}))


def take_up(end: dict[str, Any], parts: dict[str, Any], batch: Path, eval_freq: int) -> set[str]:
    """Put back what the run's own files hold. Returns: the names of the parts that are done.

    Raises: InputError where one of the files is not what the run left.
    """
    recorder = parts["recorder"]
    for file in recorder.files:
        if end["files"].get(file.name) not in {None, _digest(file)}:
            raise InputError(f"{file} is not what the finished run left")
    recorder.take_up(eval_freq)
    done = {"recorder"}
    if "agent" not in end["parts"]:
        parts["agent"].load(recorder.model)
        done.add("agent")
    if "rows" in end["parts"]:
        parts["rows"].take_up(batch, end["parts"]["rows"])
        done.add("rows")
    best = best_path(recorder.model)
    if end["best"]:
        with replacing(best) as [temporary]:
            temporary.write_bytes(end["best"]["file"].numpy())
    elif not recorder.evaluated:  # it is of the evaluation that a longer run does not have
        best.unlink(missing_ok=True)
    return done


def as_it_is(best: Path) -> dict[str, Any]:
    """The best agent's file to the byte, for a part of a checkpoint; nothing where there is none.

    Its content, read and written again, would share other objects: the same numbers, other bytes.
    """
    if not best.exists():
        return {}
    return {"file": torch.frombuffer(bytearray(best.read_bytes()), dtype=torch.uint8)}


def _rebuilt(content: Any) -> Any:
    """The same, no text or list of it shared but all equal texts: then the same bytes are written.

    What was read from a file shares other objects than what a run has made.
    """
    if isinstance(content, dict):
        return {_rebuilt(name): _rebuilt(part) for name, part in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_rebuilt(part) for part in content)
    return sys.intern(content) if type(content) is str else content


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"
