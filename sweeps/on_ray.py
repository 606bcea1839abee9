"""A sweep on Ray: a private instance on this machine, or a cluster that is there.

Ray does what is to be done here: it queues the tasks, starts one when those it needs have ended and
a CPU is free, and starts it again where its worker or node has gone. What a task does is run one
main.py command (process.py), and that goes on from its own checkpoint.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import ROOT
from sweeps.finished import finished
from sweeps.graph import Graph
from sweeps.process import PATIENCE, Killed, run_stage
from sweeps.progress import Board
from sweeps.stage import FAILED, Outcome, Stage, blocked

OBJECTS = 80 * 2**20  # bytes of Ray's object store: outcomes are small, batches lie in files
LOOK = 1.0  # seconds between two looks at the cluster
INSTALL = "pip install -r requirements-ray.txt"


def load_ray() -> Any:
    """The package. Raises: InputError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise InputError(
            f"several runs at once need Ray: {INSTALL}; --workers 1 runs them one after another"
        ) from None
    return ray


@contextmanager
def instance(address: str, cpus: int, dashboard: bool) -> Iterator[Any]:
    """Ray, connected. `local` is an instance of our own, gone without a trace at the end.

    RAY_ADDRESS is not looked at: another instance is joined where --address names it, and only
    there. Token authentication stays as Ray has it: on for `local`.
    """
    ray = load_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    folder = None
    try:
        if address == "local":
            # A path of few letters: sockets lie below it.
            folder = tempfile.mkdtemp(prefix="bcq-", dir="/tmp" if os.path.isdir("/tmp") else None)
            ray.init(
                address="local", num_cpus=cpus, include_dashboard=dashboard, _temp_dir=folder,
                object_store_memory=OBJECTS, **quiet,
            )  # fmt: skip
        else:
            try:
                ray.init(address=address, **quiet)
            except Exception as error:
                reason = str(error).strip().splitlines()[0]
                raise InputError(f"--address {address}: no Ray there ({reason})") from error
        yield ray
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _look_at(folders: list[str], token: str, node: str) -> str:
    """On a node: read what the driver wrote and answer beside it. "" or what is wrong."""
    if not (ROOT / "reproduce.py").exists():
        return f"the repository is not at {ROOT}"
    for folder in folders:
        try:
            found = Path(folder, f".seen-{token}").read_text(encoding="utf-8")
            Path(folder, f".seen-{token}-{node}").write_text(found, encoding="utf-8")
        except OSError as error:
            return f"{folder}: {error.strerror}"
    return ""


def require_shared(ray: Any, folders: list[Path]) -> None:
    """Read and write a file in every output folder on every node.

    Raises: InputError naming the node that does not see them.
    """
    token = uuid.uuid4().hex
    nodes = [node for node in ray.nodes() if node["Alive"]]
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f".seen-{token}").write_text(token, encoding="utf-8")
        answers = {
            node["NodeID"]: ray.remote(num_cpus=0, max_retries=0)(_look_at)
            .options(scheduling_strategy=strategy(node["NodeID"], soft=False))
            .remote([str(folder) for folder in folders], token, node["NodeID"])
            for node in nodes
        }
        for node in nodes:
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            try:
                wrong = ray.get(answers[node["NodeID"]], timeout=120)
            except Exception as error:
                wrong = str(error).strip().splitlines()[-1]
            unseen = [f for f in folders if not (f / f".seen-{token}-{node['NodeID']}").exists()]
            if wrong or unseen:
                wrong = wrong or f"{unseen[0]}: what it writes there is not seen here"
                raise InputError(
                    f"node {name} does not share the sweep's folders: {wrong}; choose an "
                    "--output_dir that all nodes see, and the repository at one path on all"
                )
    finally:
        for folder in folders:
            for path in folder.glob(f".seen-{token}*"):
                path.unlink(missing_ok=True)


def _task(stage: Stage, threads: int, *needed: Outcome) -> Outcome:
    """One stage on a worker; `needed` have been waited for by Ray."""
    outcome = blocked(stage, list(needed))
    return outcome or run_stage(stage, threads)


class Submitted:
    """The tasks of a sweep, by the names of their stages."""

    def __init__(self, ray: Any, threads: int, gpus: float, retries: int) -> None:
        self.ray, self.threads = ray, threads
        self.task = ray.remote(
            num_cpus=threads, num_gpus=gpus, max_retries=retries, retry_exceptions=[Killed]
        )(_task)
        self.refs: dict[str, Any] = {}
        self.logs: dict[str, int] = {}  # sizes when they were submitted: a log that grows is a run

    def add(self, stages: list[Stage], outcomes: dict[str, Outcome]) -> None:
        """Submit what is still to be run."""
        for stage in stages:
            if stage.name in outcomes:
                continue
            needed = [self.refs.get(need, outcomes.get(need)) for need in stage.needs]
            self.logs[stage.name] = _size(stage.log)
            self.refs[stage.name] = self.task.remote(stage, self.threads, *needed)

    def ended(self, pending: list[str]) -> Iterator[Outcome]:
        """Those of `pending` that have ended, after a second at most."""
        refs = {self.refs[name]: name for name in pending}
        if not refs:
            return
        ready, _ = self.ray.wait(list(refs), num_returns=len(refs), timeout=LOOK, fetch_local=False)
        for ref in (
            ref for ref in refs if ref in set(ready)
        ):  # what is needed before what needs it
            try:
                yield self.ray.get(ref)
            except Exception as error:  # the worker is gone, more often than it may be
                reason = str(error).strip().splitlines()[-1]
                ours = isinstance(error, self.ray.exceptions.RayTaskError)
                if isinstance(error, Killed) or not ours:
                    reason += ": started as often as --retries says; the same command goes on"
                yield Outcome(refs[ref], FAILED, why=reason)

    def running(self, pending: list[str], stages: dict[str, Stage]) -> Iterator[Stage]:
        """Those of `pending` whose logs have grown since they were submitted."""
        for name in pending:
            if _size(stages[name].log) > self.logs[name]:
                yield stages[name]

    def stop(self, pending: list[str]) -> None:
        """Call off what waits, and have what runs save and end; waits for that."""
        refs = [self.refs[name] for name in pending]
        for ref in refs:
            self.ray.cancel(ref)
        self.ray.wait(refs, num_returns=len(refs), timeout=PATIENCE)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def run(
    graph: Graph,
    board: Board,
    ray: Any,
    threads: int,
    gpus: float = 0.0,
    retries: int = 3,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Every stage on the connected instance; `board` holds what was finished before.

    Raises: KeyboardInterrupt; all that was running has then saved where it is.
    """
    submitted = Submitted(ray, threads, gpus, retries)
    outcomes, added, pending = board.outcomes, list(graph.stages.values()), []
    try:
        while True:
            submitted.add(added, outcomes)
            pending = [name for name in graph.stages if name not in outcomes]
            if not (pending or graph.choices):
                return
            startable = [
                name for name in pending if all(n in outcomes for n in graph.stages[name].needs)
            ]
            for stage in submitted.running(startable, graph.stages):
                board.start(stage)
            for outcome in submitted.ended(pending):
                needed = [outcomes[need] for need in graph.stages[outcome.name].needs]
                board.end(blocked(graph.stages[outcome.name], needed) or outcome)
            board.tick()
            added = graph.decide(outcomes)
            board.expect(added)
            board.skip(filter(None, map(finished, added)))
    except KeyboardInterrupt:
        note("stopping: every run saves where it is; once more ends them at once")
        submitted.stop(pending)
        raise
