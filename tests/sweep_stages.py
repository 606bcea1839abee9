"""Stages whose command is a few lines of python: what runs them is tested without learning."""

import json
from pathlib import Path

from common.files import write_json
from sweeps.finished import resolved
from sweeps.stage import LEARN, Stage

# Waits, then writes what main.py would: evaluations and a record. `fail` ends it badly.
STUB = """
import json, sys, time
from pathlib import Path
import numpy as np
words = sys.argv[1:]
target = Path(words[0])
print("begins")
for _ in range(int(10 * float(words[1]))):
    time.sleep(0.1)
if "fail" in words:
    print("first line of the end")
    sys.exit("error: the last line")
target.parent.mkdir(parents=True, exist_ok=True)
np.save(target, np.arange(3.0))
target.with_suffix(".json").write_text(json.dumps({"finished": True, "arguments": {}}))
"""


class StubStage(Stage):
    """A stage that runs STUB with its words."""

    @property
    def argv(self) -> list[str]:
        stub = self.root / "stub.py"
        self.root.mkdir(parents=True, exist_ok=True)
        stub.write_text(STUB, encoding="utf-8")
        return [str(stub), str(self.results), *self.words]


def stub(root: Path, label: str, *words: str, needs: tuple[Stage, ...] = ()) -> StubStage:
    """One that takes `words[0]` seconds (0)."""
    names = tuple(stage.name for stage in needs)
    return StubStage(
        "continuous_BCQ", LEARN, "Toy-v0", 0, label, words or ("0",), root, names
    )  # fmt: skip


def pretend(stage: Stage, finished: bool = True, **other: object) -> None:
    """The record that the stage's command would leave, with `other` arguments."""
    arguments = vars(resolved(stage.variant, stage.words)) | other
    arguments = json.loads(json.dumps(arguments, default=str))
    stage.record.parent.mkdir(parents=True, exist_ok=True)
    write_json(stage.record, {"arguments": arguments, "finished": finished, "x": [1], "batch": {}})
