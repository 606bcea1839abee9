"""reproduce.py on a real Ray: the serial run's bytes, through lost workers, nodes and drivers."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from sweep_stages import stub

from common.errors import InputError
from sweeps import on_ray, serial
from sweeps.graph import Graph
from sweeps.presets import PRESETS, Settings, graph
from sweeps.progress import Board
from sweeps.stage import DONE, FAILED, LEARN, NOT_RUN, Stage

pytestmark = [
    pytest.mark.slow,
    # Ray's own: files and sockets that it leaves to the end of the process.
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::FutureWarning"),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]
ENDLESS = 300.0  # seconds after which a test gives up


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test no process of Ray or of a stage is there that was not there before."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")  # workers' too
    before = processes()
    yield
    wait_for(lambda: not processes() - before, 60)
    assert not processes() - before


def processes() -> set[str]:
    """Lines of `ps` about Ray's processes and runs of main.py or of stubs."""
    listed = subprocess.run(
        ["ps", "-eo", "pid,args", "--no-headers"], capture_output=True, text=True, check=True
    )
    ours = ("raylet", "gcs_server", "ray::", "/tmp/bcq-", "stub.py", str(ROOT / "reproduce.py"))
    return {
        line.strip()[:200]
        for line in listed.stdout.splitlines()
        if any(word in line for word in ours) and "pytest" not in line
    }


def wait_for(there: Callable[[], Any], seconds: float = ENDLESS) -> None:
    """Until `there` is true, or so long."""
    deadline = time.monotonic() + seconds
    while not there() and time.monotonic() < deadline:
        time.sleep(0.2)


def tiny(root: Path) -> Graph:
    """Twelve runs of main.py: three policies of Pendulum, a batch of each, BCQ and DDPG on them."""
    more = ("--eval_episodes", "1", "--batch_size", "8", "--acting_candidates", "5")
    settings = Settings(
        ("Pendulum-v1",), (0, 1, 2), ("BCQ", "DDPG"), root, scale=0.02, more=more
    )  # fmt: skip
    return graph(PRESETS["quick"], settings)


def board_of(some: Graph) -> Board:
    """A board that expects all of it."""
    board = Board(lambda _: 1.0, 2, io.StringIO())
    board.expect(some.stages.values())
    return board


def said(board: Board) -> str:
    """What the table has shown."""
    assert isinstance(board.screen, io.StringIO)
    return board.screen.getvalue()


def results(root: Path) -> dict[str, bytes]:
    """The arrays of results/ and buffers/, by their names."""
    return {p.name: p.read_bytes() for k in ("results", "buffers") for p in root.glob(f"{k}/*.npy")}


def learned(root: Path) -> dict[str, Any]:
    """What the records say, but for seconds."""
    found = {}
    for path in root.glob("results/*.json"):
        record = json.loads(path.read_text())
        assert record.pop("finished")
        found[path.name] = record | {"seconds": 0}
    return found


@contextlib.contextmanager
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes on this machine, and a third connection: ours."""
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": on_ray.OBJECTS, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **options})
    try:
        cluster.add_node(num_cpus=1, object_store_memory=on_ray.OBJECTS)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def one_after_another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of the twelve runs without Ray."""
    root = tmp_path_factory.mktemp("serial")
    some = tiny(root)
    assert len(some.stages) == 12
    board = board_of(some)
    serial.run(some, board, 1)
    assert board.close() == 0, said(board)
    return root


def test_a_lost_worker_and_a_lost_node_change_no_byte_of_the_results(
    one_after_another: Path, tmp_path: Path
) -> None:
    some = tiny(tmp_path)
    board, lost = board_of(some), list[str]()
    with two_nodes() as cluster, on_ray.instance(cluster.address, 1, False) as ray:
        on_ray.require_shared(ray, some.folders())
        assert not list(tmp_path.glob(".seen*"))
        other = next(iter(cluster.worker_nodes))

        def disturb() -> None:
            """Kill a worker when a run is under way, later take a node away."""
            done = sum(outcome.status == DONE for outcome in board.outcomes.values())
            if board.began and not lost:
                found = subprocess.run(
                    ["pgrep", "-f", "ray::_task"], capture_output=True, text=True
                )
                if found.stdout.split():
                    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
                    lost.append("worker")
            if done >= 4 and lost == ["worker"]:
                cluster.remove_node(other, allow_graceful=False)
                lost.append("node")

        board.tick = disturb  # type: ignore[method-assign]
        on_ray.run(some, board, ray, 1)
    assert lost == ["worker", "node"]
    assert board.close() == 0, said(board)
    assert results(tmp_path) == results(one_after_another)
    assert learned(tmp_path) == learned(one_after_another)
    again = [log for log in tmp_path.glob("logs/*.log") if log.read_text().count("\n--- ") >= 1]
    assert again  # something was started twice


def test_a_failing_run_is_reported_and_the_others_finish(tmp_path: Path) -> None:
    good, bad = stub(tmp_path, "good"), stub(tmp_path, "bad", "0", "fail")
    after, last = stub(tmp_path, "after", needs=(bad,)), stub(tmp_path, "last", needs=(good,))
    some = Graph()
    some.add([bad, after, good, last])
    board = board_of(some)
    with on_ray.instance("local", 2, False) as ray:
        on_ray.run(some, board, ray, 1)
    status = {outcome.name: outcome.status for outcome in board.outcomes.values()}
    assert status == {good.name: DONE, bad.name: FAILED, after.name: NOT_RUN, last.name: DONE}
    assert board.close() == 1
    assert "| error: the last line" in said(board)


def test_a_run_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    stage = stub(tmp_path, "long", "60")
    after = stub(tmp_path, "after", needs=(stage,))
    some = Graph()
    some.add([stage, after])
    board, killed = board_of(some), []

    def kill() -> None:
        if subprocess.run(["pkill", "-KILL", "-f", f"{tmp_path}/stub.py"]).returncode == 0:
            killed.append(1)

    board.tick = kill  # type: ignore[method-assign]
    with on_ray.instance("local", 2, False) as ray:
        on_ray.run(some, board, ray, 1, retries=1)
    assert board.outcomes[stage.name].status == FAILED and len(killed) == 2
    assert "--retries" in board.outcomes[stage.name].why
    assert board.outcomes[after.name].status == NOT_RUN


def test_a_folder_that_a_node_does_not_see_is_found_before_anything_runs(
    tmp_path: Path, monkeypatch: Any
) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    real = on_ray._look_at

    def look(folders: list[str], token: str, node: str) -> str:
        return real([elsewhere], token, node)

    with on_ray.instance("local", 1, False) as ray:
        on_ray.require_shared(ray, [tmp_path / "out"])
        monkeypatch.setattr(on_ray, "_look_at", look)
        with pytest.raises(InputError, match=r"node .* does not share .*elsewhere.*--output_dir"):
            on_ray.require_shared(ray, [tmp_path / "out"])


def test_somebody_elses_instance_is_not_joined_by_accident(monkeypatch: Any) -> None:
    with two_nodes() as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        with on_ray.instance("local", 3, False) as ray:
            assert len(ray.nodes()) == 1 and ray.cluster_resources()["CPU"] == 3
            assert ray._private.worker.global_worker.node.session_name not in str(cluster.head_node)


def sweep(root: Path, *more: str) -> subprocess.Popen[str]:
    """reproduce.py as a process: six runs of Pendulum that take a while."""
    words = [
        str(ROOT / "reproduce.py"), "quick", "--workers", "2", "--output_dir", str(root),
        "--seeds", "0-1", "--algorithms", "DDPG", "--scale", "0.3", *more,
        "--", "--eval_episodes", "1", "--batch_size", "8", "--checkpoint_minutes", "0.02",
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def under_way(root: Path) -> bool:
    """A learner has been evaluated, and is not at its end."""
    learning = [path for path in root.glob("results/DDPG_*.npy") if "value" not in path.stem]
    return any(len(np.load(path)) < 4 for path in learning)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_sweep_whose_driver_was_stopped_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    driver = sweep(stopped)
    wait_for(lambda: under_way(stopped))
    assert under_way(stopped)
    driver.send_signal(how)
    told = driver.communicate(timeout=ENDLESS)[0]
    assert driver.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[how]
    if how != signal.SIGKILL:
        assert "goes on" in told
    wait_for(lambda: str(stopped) not in " ".join(processes()), 60)
    assert str(stopped) not in " ".join(processes())
    again = sweep(stopped)
    assert again.communicate(timeout=ENDLESS)[0] and again.returncode == 0
    logs = "".join(log.read_text() for log in stopped.glob("logs/*.log"))
    assert "goes on where it stopped" in logs
    whole = sweep(tmp_path / "whole")
    assert whole.communicate(timeout=ENDLESS)[0] and whole.returncode == 0
    assert results(stopped) == results(tmp_path / "whole")


def test_every_learners_result_is_where_a_hand_would_put_it(one_after_another: Path) -> None:
    learners = [s for s in tiny(one_after_another).stages.values() if s.kind == LEARN]
    for stage in learners:
        assert len(np.load(stage.results)) >= 1
    assert isinstance(learners[0], Stage)
