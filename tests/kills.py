"""Runs in processes of their own, killed at random moments and started again."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from conftest import run_main, snapshot

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}  # what touches a file


def forked(main: ModuleType, argv: list[str], kill_at: int = 0, count: Path | None = None) -> int:
    """Start this command line in a copy of this process; its process id.

    It kills itself at its `kill_at`-th operation on a file, or writes their number to `count`.
    """
    process = os.fork()
    if process:
        return process
    seen = 0

    def hook(event: str, _arguments: Any) -> None:
        nonlocal seen
        if event in EVENTS:
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    status = 70
    try:
        sys.addaudithook(hook)
        outcome = run_main(main, *argv)
        if outcome.status:
            os.write(2, outcome.err.encode())
        if count:
            total = seen
            count.write_text(str(total))
        status = outcome.status
    finally:
        os._exit(status)


def ended(process: int) -> int:
    """Wait for it: its exit status, or the negative number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def reference(main: ModuleType, argv: list[str], folder: Path) -> tuple[int, float]:
    """Run to the end in `folder`: how many operations on files it took, and seconds."""
    begun = time.monotonic()
    count = folder.with_suffix(".count")
    assert ended(forked(main, [*argv, "--output_dir", str(folder)], count=count)) == 0
    return int(count.read_text()), time.monotonic() - begun


def killed_and_finished(
    main: ModuleType,
    argv: list[str],
    folder: Path,
    measured: tuple[int, float],
    kills: int,
    generator: np.random.Generator,
) -> int:
    """Kill the run `kills` times at random operations, once at a random time, then let it finish.

    Returns: how often it was killed.
    """
    events, seconds = measured
    argv = [*argv, "--output_dir", str(folder)]
    for _ in range(kills):
        # No kill can use up more operations than this, so that all of them meet a run alive.
        at = int(generator.integers(1, events // (kills + 1) + 1))
        assert ended(forked(main, argv, kill_at=at)) == -signal.SIGKILL
    process = forked(main, argv)
    time.sleep(generator.uniform(0, seconds))
    os.kill(process, signal.SIGKILL)
    in_time = ended(process) == -signal.SIGKILL
    if in_time:
        pending = any(folder.glob("checkpoints/*/state.pt"))
        # Without a state it may have ended just before it was killed, and is refused as finished.
        assert ended(forked(main, argv)) == 0 or not pending
    return kills + in_time


def comparable(folder: Path) -> dict[str, Any]:
    """Every file's content by name; of a record all but the seconds, and the code's commit."""
    content: dict[str, Any] = dict(snapshot(folder))
    for name in content:
        if name.endswith(".json"):
            record = json.loads(content[name])
            for changing in ("seconds", "commit", "source", "code_changes"):
                record.pop(changing, None)
            content[name] = json.dumps(record)  # with the order of its keys
    return content


def differing(one: Path, other: Path) -> list[str]:
    """The files that are not byte for byte the same in both folders."""
    first, second = comparable(one), comparable(other)
    return sorted(n for n in first.keys() | second.keys() if first.get(n) != second.get(n))
