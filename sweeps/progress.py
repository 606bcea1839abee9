"""One live table of a sweep: what is running, done, failed, and the time left."""

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from common.errors import InputError
from common.files import read_json
from sweeps.stage import DONE, FAILED, NOT_RUN, Outcome, Stage

EVERY = 2.0  # seconds between two tables
SHOWN = 12  # running stages shown


def share_done(stage: Stage) -> float:
    """How much of a running stage its record shows, 0 to 1."""
    try:
        record = read_json(stage.record)
        return min(1.0, record["x"][-1] / record["arguments"]["max_timesteps"])
    except (InputError, KeyError, IndexError, TypeError, ZeroDivisionError):
        return 0.0


def clock(seconds: float) -> str:
    """Seconds as `1 d 02:03`, `2:03:04`, `3:04`."""
    whole = int(seconds)
    days, hours, minutes, rest = (
        whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    )  # fmt: skip
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Board:
    """The table; where the screen is none, a line a run as it ends.

    `weight` is what a stage is expected to cost, in any unit: the time left goes by what the
    finished and half-finished stages have taken of it.
    """

    def __init__(
        self, weight: Callable[[Stage], float], workers: int, screen: TextIO | None = None
    ) -> None:
        self.weight, self.workers = weight, workers
        self.screen = screen or sys.stdout
        self.live = self.screen.isatty()
        self.stages: dict[str, Stage] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.skipped = 0
        self.began: dict[str, float] = {}  # running stages, and since when
        self._resumed: dict[str, float] = {}  # the share that a running stage began with
        self._started, self._drawn, self._lines = time.monotonic(), 0.0, 0
        self._worked = 0.0  # weight that this sweep itself has done

    def expect(self, stages: Iterable[Stage]) -> None:
        """These belong to the sweep."""
        self.stages |= {stage.name: stage for stage in stages}

    def skip(self, outcomes: Iterable[Outcome]) -> None:
        """These were there already."""
        found = {outcome.name: outcome for outcome in outcomes}
        self.outcomes |= found
        self.skipped += len(found)

    def start(self, stage: Stage) -> None:
        """It runs now."""
        if stage.name not in self.began:
            self.began[stage.name] = time.monotonic()
            self._resumed[stage.name] = share_done(stage)

    def end(self, outcome: Outcome) -> None:
        """It has ended."""
        stage = self.stages[outcome.name]
        self.began.pop(outcome.name, None)
        resumed = self._resumed.pop(outcome.name, 0.0)
        self.outcomes[outcome.name] = outcome
        if outcome.status == DONE:
            self._worked += self.weight(stage) * (1 - resumed)
        if outcome.status in (FAILED, NOT_RUN):
            self._print(f"{outcome.status}: {stage.short}: {outcome.why}")
        elif not self.live:
            counted = f"[{len(self.outcomes)}/{len(self.stages)}]"
            self._print(f"{counted} {outcome.status}: {stage.short} ({clock(outcome.seconds)})")

    def left(self) -> float | None:
        """Seconds to the end; None before there is anything to tell it by."""
        shares = {name: share_done(self.stages[name]) for name in self.began}
        worked = self._worked + sum(
            self.weight(self.stages[name]) * max(0.0, share - self._resumed[name])
            for name, share in shares.items()
        )
        if not worked:
            return None
        remaining = sum(
            self.weight(stage) * (1 - shares.get(name, 0.0))
            for name, stage in self.stages.items()
            if name not in self.outcomes
        )
        return remaining * (time.monotonic() - self._started) / worked

    def summary(self) -> str:
        """The counts in a line."""
        count = {
            status: sum(outcome.status == status for outcome in self.outcomes.values())
            for status in (DONE, FAILED, NOT_RUN)
        }
        waiting = len(self.stages) - len(self.outcomes) - len(self.began)
        parts = [f"{len(self.began)} running", f"{count[DONE]} done", f"{waiting} waiting"]
        parts += [f"{count[FAILED]} failed"] if count[FAILED] else []
        parts += [f"{count[NOT_RUN]} not run"] if count[NOT_RUN] else []
        left = self.left() if waiting or self.began else 0.0
        spent = clock(time.monotonic() - self._started)
        ahead = f", {clock(left)} left" if left else ""
        return f"{', '.join(parts)} of {len(self.stages)}; {spent} so far{ahead}"

    def tick(self) -> None:
        """Draw the table anew where it is time for it."""
        if self.live and time.monotonic() - self._drawn > EVERY:
            self._clear()
            lines = [self.summary()]
            now = time.monotonic()
            running = sorted(self.began.items(), key=lambda pair: pair[1])
            for name, since in running[:SHOWN]:
                stage = self.stages[name]
                share = f"{100 * share_done(stage):3.0f} %"
                lines.append(f"  {share}  {clock(now - since):>8}  {stage.short}")
            if len(running) > SHOWN:
                lines.append(f"  and {len(running) - SHOWN} more")
            width = shutil.get_terminal_size().columns - 1
            self.screen.write("".join(f"{line[:width]}\n" for line in lines))
            self.screen.flush()
            self._lines, self._drawn = len(lines), now

    def _clear(self) -> None:
        if self._lines:
            self.screen.write(f"\x1b[{self._lines}A\x1b[J")
            self._lines = 0

    def _print(self, line: str) -> None:
        if self.live:
            self._clear()
        self.screen.write(line + "\n")
        self.screen.flush()
        self._drawn = 0.0

    def close(self) -> int:
        """The end: the counts, every failure with its last lines; the exit status."""
        if self.live:
            self._clear()
        print(self.summary(), file=self.screen)
        if self.skipped:
            print(f"{self.skipped} were finished before", file=self.screen)
        bad = [one for one in self.outcomes.values() if one.status != DONE]
        for outcome in bad:
            stage = self.stages[outcome.name]
            print(f"\n{outcome.status}: {stage.short}: {outcome.why}", file=self.screen)
            if outcome.status == FAILED:
                print(f"  {stage.command}", file=self.screen)
            for line in outcome.tail:
                print(f"  | {line}", file=self.screen)
        unfinished = len(self.outcomes) < len(self.stages)
        return 1 if bad or unfinished else 0
