"""Running one stage as a process of its own, which does not outlive the one that started it."""

import ctypes
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common.files import ROOT
from sweeps.stage import DONE, FAILED, Outcome, Stage

POLL = 0.25  # seconds between two looks at a running stage
TAIL = 5  # lines of a log that are shown of a failed run
PATIENCE = 120  # seconds that a run has to reach its next checkpoint when it is told to stop
BUSY = "is being made by"  # common/resume/lock.py: another process has the run's name
_PR_SET_PDEATHSIG = 1


class Killed(Exception):
    """A signal from outside ended a stage: the same command goes on where it was."""


def _tied_to_parent() -> Callable[[], None]:
    """What the child does before it is the stage: let the system end it with its parent.

    So a worker that is killed leaves no run behind that would hold the run's lock; what the run had
    not saved since its last checkpoint is made again. Ray's workers block Ctrl-C for
    their children.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if platform.system() == "Linux" else None

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if libc:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it went before the line above
                os._exit(137)

    return prepare


def run_stage(
    stage: Stage, threads: int = 1, tick: Callable[[], None] = lambda: None, patience: int = 60
) -> Outcome:
    """Run the stage's command to its end; its output is appended to its log.

    A name that another process has is waited for, `patience` seconds: a run whose worker was killed
    may take a moment to go. On Ctrl-C the run is told to stop and waited for.

    Raises: Killed where a signal ended the run; KeyboardInterrupt.
    """
    began = time.monotonic()
    while True:
        status, said = _once(stage, threads, tick)
        busy = status == 1 and any(BUSY in line for line in said[-1:])
        if not busy or time.monotonic() - began > patience:
            break
        time.sleep(2)
    seconds = time.monotonic() - began
    if status == 0:
        return Outcome(stage.name, DONE, seconds)
    if status < 0 or status in (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGKILL):
        raise Killed(f"ended by signal {-status if status < 0 else status - 128}")
    why = f"exit status {status}; its log is {stage.log}"
    return Outcome(stage.name, FAILED, seconds, why, tuple(said[-TAIL:]))


def _once(stage: Stage, threads: int, tick: Callable[[], None]) -> tuple[int, list[str]]:
    """The exit status, and the lines that this start has printed."""
    stage.log.parent.mkdir(parents=True, exist_ok=True)
    # numpy's own threads; torch's are set by --threads, in the run's process. Ray sets this to 1
    # for tasks of one CPU and not for others.
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with stage.log.open("ab") as log:
        log.write(
            f"--- {time.strftime('%F %T')} on {socket.gethostname()}: {stage.command}\n".encode()
        )
        log.flush()
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, *stage.argv],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C of the terminal is ours to hand on
            preexec_fn=_tied_to_parent(),
        )
        try:
            status = _wait(process, tick)
        except BaseException:
            _stop(process)
            raise
    return status, _lines(stage.log, begin)


def _wait(process: subprocess.Popen, tick: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            tick()


def _stop(process: subprocess.Popen) -> None:
    """SIGTERM, on which the run saves where it is; a second interrupt does not wait for that."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _lines(log: Path, begin: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]
