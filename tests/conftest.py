"""What the tests share: loading a variant's modules, running its command line, small batches."""

import contextlib
import functools
import importlib
import io
import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process a core for the whole suite, none beside this one for the files that are named."""
    named = [argument.split("::")[0] for argument in config.args]
    if all(Path(config.invocation_params.dir, path).is_file() for path in named):
        return 0
    return min(4, os.cpu_count() or 1)  # each takes half a GB


def module_names(folder: Path) -> list[str]:
    """The modules of a folder, by bare name."""
    return sorted(path.stem for path in folder.glob("*.py"))


@functools.cache
def load_variant(name: str) -> SimpleNamespace:
    """A variant's modules (`.main`, `.BCQ`, …), imported as its own folder sees them.

    Several folders hold modules of the same name: while one is loaded the others' are hidden.
    """
    every = {module for folder in ROOT.glob("*_BCQ") for module in module_names(folder)}
    hidden: dict[str, ModuleType] = {m: sys.modules.pop(m) for m in every if m in sys.modules}
    path = sys.path[:]
    sys.path.insert(0, str(ROOT / name))
    try:
        return SimpleNamespace(
            **{module: importlib.import_module(module) for module in module_names(ROOT / name)}
        )
    finally:
        for module in every:
            sys.modules.pop(module, None)
        sys.modules.update(hidden)
        sys.path[:] = path


class Outcome(NamedTuple):
    """What a command line left: its exit status, and what it printed."""

    status: int
    out: str
    err: str


def run_main(main: ModuleType, *argv: str) -> Outcome:
    """Run a variant's command line inside this process, as a shell would see it."""
    from common.errors import run

    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["main.py", *argv]
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            run(main.main)
    except SystemExit as end:
        # sys.exit("text") prints the text on stderr and ends with status 1.
        status = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            err.write(end.code + "\n")
    finally:
        sys.argv = before
    return Outcome(status, out.getvalue(), err.getvalue())


def done(outcome: Outcome) -> str:
    """What a command that must succeed, without a word on stderr, has printed."""
    assert outcome.status == 0 and outcome.err == "", outcome.err
    return outcome.out


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content, hidden and temporary ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Within the block no file can grow beyond `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Harmful:
    """Makes a folder, `marker`, when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def weights(agent: Any) -> dict[str, torch.Tensor]:
    """A copy of every tensor of an agent's networks, targets included."""
    return {
        f"{name}.{key}": value.clone()
        for name, part in vars(agent).items()
        if isinstance(part, torch.nn.Module)
        for key, value in part.state_dict().items()
    }


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two such copies agree bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def random_batch(
    rows: int, state_dim: int = 3, action_dim: int = 2, max_action: float = 1.0, seed: int = 0
) -> Any:
    """A `Batch` of random transitions, a fifth of them terminal."""
    from common.data.replay import Batch

    draw = np.random.default_rng(seed)
    columns = (
        draw.normal(size=(rows, state_dim)),
        draw.uniform(-max_action, max_action, size=(rows, action_dim)),
        draw.normal(size=(rows, state_dim)),
        draw.normal(size=(rows, 1)),
        draw.random((rows, 1)) > 0.2,
    )
    return Batch(*(torch.as_tensor(column, dtype=torch.float32) for column in columns))


def without_digests(prefix: Path) -> Path:
    """Make a saved batch one of older code, or made by hand, whose files may be changed."""
    path = Path(f"{prefix}.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in record.items() if k not in {"digest", "files"}}))
    return prefix


def fill(buffer: Any, batch: Any) -> Any:
    """Add a batch's rows to a replay buffer, one after the other."""
    for state, action, next_state, reward, not_done in zip(*batch, strict=True):
        buffer.add(
            state.numpy(), action.numpy(), next_state.numpy(), float(reward), not not_done, False
        )
    return buffer


def each_with_the_next(names: Iterable[str]) -> list[tuple[str, str]]:
    """Every name with the one after it, the last with the first."""
    every = list(names)
    return list(zip(every, every[1:] + every[:1], strict=True))


def pytest_configure() -> None:
    """Hear signals: started in the background or by nohup, all that the tests start would not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def continuous() -> SimpleNamespace:
    """The modules of continuous_BCQ."""
    return load_variant("continuous_BCQ")
