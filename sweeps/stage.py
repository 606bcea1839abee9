"""One run of a sweep: a main.py command, what it needs, and what became of it."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from common.files import ROOT, Folders

TRAIN, GENERATE, LEARN = "--train_behavioral", "--generate_buffer", "learn"


@dataclass(frozen=True)
class Stage:
    """A command that a person could type: `python {variant}/main.py {words}`.

    `words` are its flags without the output folder, `root` is that folder and `label` the name of
    its results there (common/files.py). `needs` are the names of the stages whose files it reads.
    `indifferent` are arguments that may be other ones in a run made by hand: what they change is
    read by nobody here.
    """

    variant: str
    kind: str  # TRAIN, GENERATE or LEARN
    env: str
    seed: int
    label: str
    words: tuple[str, ...]
    root: Path
    needs: tuple[str, ...] = ()
    indifferent: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def name(self) -> str:
        """The run's own among all of a sweep: its results, as a path without a suffix."""
        return str(self.results.with_suffix(""))

    @property
    def short(self) -> str:
        """The name as the table shows it: with the folder where that is one of a setting."""
        within = f"{self.root.name}/" if self.root.parent.name == "sweep" else ""
        return within + self.results.stem

    @property
    def folders(self) -> Folders:
        """Where its files lie."""
        return Folders(self.root, self.env, self.seed)

    @property
    def results(self) -> Path:
        """Its evaluations."""
        return self.folders.results(self.label)

    @property
    def record(self) -> Path:
        """What is said of them."""
        return self.results.with_suffix(".json")

    @property
    def log(self) -> Path:
        """What the run prints."""
        return self.root / "logs" / f"{self.results.stem}.log"

    @property
    def argv(self) -> list[str]:
        """The words after `python`, by which the run is started in the repository's root."""
        folder = [] if self.root == ROOT else ["--output_dir", str(self.root)]
        return [f"{self.variant}/main.py", *self.words, *folder]

    @property
    def command(self) -> str:
        """What to type in the repository's root."""
        return shlex.join(["python", *self.argv])


DONE, FAILED, NOT_RUN, STOPPED = "done", "failed", "not run", "stopped"


@dataclass(frozen=True)
class Outcome:
    """What became of a stage. `why` says it in a line, `tail` holds its log's last lines."""

    name: str
    status: str
    seconds: float = 0.0
    why: str = ""
    tail: tuple[str, ...] = ()


def blocked(stage: Stage, needed: list[Outcome]) -> Outcome | None:
    """That a stage cannot run, where one that it needs is not done."""
    missing = [outcome.name for outcome in needed if outcome.status != DONE]
    if not missing:
        return None
    shown = Path(missing[0]).name
    return Outcome(stage.name, NOT_RUN, why=f"needs {shown}, which is not done")
