"""Iterations a second of BCQ: this repository's, d3rlpy's, and the same formulas as plain code.

Hopper's sizes on made-up transitions, on the CPU. Each contender is a process of its own, kept
alive, and told to run one short block after another, in turn (A B C A B C …), so that whatever else
the machine does falls on all of them; ratios are of neighbouring blocks. Two figures each: `update`
is one update on a batch at hand, `train` draws the batch too, as a user's run does.

d3rlpy needs an environment of its own, since it pins an old gymnasium; `make bench` makes both:
    python -m venv .venv-d3rlpy
    .venv-d3rlpy/bin/pip install -r benchmarks/requirements-d3rlpy.txt
    python benchmarks/continuous_speed.py --d3rlpy-python .venv-d3rlpy/bin/python
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
STATE_DIM, ACTION_DIM, BATCH_SIZE = 11, 3, 100  # Hopper
TRANSITIONS = 10_000
MODES = ("update", "train")
# Parameters of what learns; the targets are copies. Typed out from the layer sizes, so that a
# contender built with other sizes is refused.
EXPECTED_PARAMETERS = {"actor": 127_203, "critic": 253_202, "vae": 1_162_515}

Runs = dict[str, Callable[[int], Any]]  # by mode: run so many iterations
Sizes = dict[str, int]


def transitions() -> dict[str, Any]:
    """Made-up Hopper transitions, float32 columns, the same for every contender."""
    import numpy as np

    rng = np.random.default_rng(0)
    columns = {
        "state": rng.standard_normal((TRANSITIONS, STATE_DIM)),
        "action": rng.uniform(-1, 1, (TRANSITIONS, ACTION_DIM)),
        "next_state": rng.standard_normal((TRANSITIONS, STATE_DIM)),
        "reward": rng.standard_normal((TRANSITIONS, 1)),
        "not_done": np.ones((TRANSITIONS, 1)),
    }
    return {name: column.astype(np.float32) for name, column in columns.items()}


def parameters(*modules: Any) -> int:
    """The number of parameters of the modules."""
    return sum(weight.numel() for module in modules for weight in module.parameters())


def filled_buffer() -> Any:
    """This repository's replay buffer, holding `transitions()`."""
    from common.data.replay import ReplayBuffer

    buffer = ReplayBuffer(STATE_DIM, ACTION_DIM, "cpu", TRANSITIONS)
    data = transitions()
    for state, action, next_state, reward, _ in zip(*data.values(), strict=True):
        buffer.add(state, action, next_state, float(reward[0]), False, False)
    return buffer


def repeat(iteration: Callable[[], Any]) -> Callable[[int], None]:
    """The function that calls `iteration` so many times."""

    def run(iterations: int) -> None:
        for _ in range(iterations):
            iteration()

    return run


def ours() -> tuple[Runs, Sizes]:
    """`continuous_BCQ/BCQ.py`."""
    sys.path[:0] = [str(ROOT / "continuous_BCQ"), str(ROOT)]
    from BCQ import BCQ  # type: ignore[import-not-found]  # mypy sees one folder at a time

    agent, buffer = BCQ(STATE_DIM, ACTION_DIM, 1.0, "cpu"), filled_buffer()
    batch = buffer.sample(BATCH_SIZE)
    sizes = {name: parameters(getattr(agent, name)) for name in EXPECTED_PARAMETERS}
    return {
        "update": repeat(lambda: agent.update(batch)),
        "train": lambda iterations: agent.train(buffer, iterations, BATCH_SIZE),
    }, sizes


def eager() -> tuple[Runs, Sizes]:
    """`eager_bcq.py`, sampling from this repository's buffer."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.eager_bcq import EagerBCQ

    agent, buffer = EagerBCQ(STATE_DIM, ACTION_DIM), filled_buffer()
    batch = buffer.sample(BATCH_SIZE)
    sizes = {name: parameters(getattr(agent, name)) for name in EXPECTED_PARAMETERS}
    return {
        "update": repeat(lambda: agent.update(*batch)),
        "train": repeat(lambda: agent.update(*buffer.sample(BATCH_SIZE))),
    }, sizes


def d3rlpy_bcq() -> tuple[Runs, Sizes]:
    """BCQ of d3rlpy with the same sizes, rates and number of target candidates."""
    import d3rlpy

    data = transitions()
    ends = (data["not_done"][:, 0] * 0).copy()
    ends[999::1000] = 1  # d3rlpy stores episodes; these end by a time limit, not a terminal state
    dataset = d3rlpy.dataset.MDPDataset(
        data["state"], data["action"], data["reward"], terminals=ends * 0, timeouts=ends
    )
    small = d3rlpy.models.VectorEncoderFactory(hidden_units=[400, 300])
    agent = d3rlpy.algos.BCQConfig(
        actor_encoder_factory=small,
        critic_encoder_factory=small,
        imitator_encoder_factory=d3rlpy.models.VectorEncoderFactory(hidden_units=[750, 750]),
        batch_size=BATCH_SIZE,
        n_action_samples=10,  # d3rlpy has one number for target and acting; nothing acts here
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        imitator_learning_rate=1e-3,
    ).create(device="cpu:0")
    agent.build_with_dataset(dataset)
    batch = dataset.sample_transition_batch(BATCH_SIZE)
    modules = agent.impl.modules
    sizes = {
        "actor": parameters(modules.policy),
        "critic": parameters(modules.q_funcs),
        "vae": parameters(modules.vae_encoder, modules.vae_decoder),
    }
    return {
        "update": repeat(lambda: agent.update(batch)),
        "train": repeat(lambda: agent.update(dataset.sample_transition_batch(BATCH_SIZE))),
    }, sizes


CONTENDERS = {"ours": ours, "d3rlpy": d3rlpy_bcq, "eager": eager}


def work(name: str, threads: int) -> None:
    """A contender's process: for each line `MODE N` on stdin, N iterations and their seconds."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not reach the replies
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    runs, sizes = CONTENDERS[name]()

    def reply(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=replies, flush=True)

    reply({"parameters": sizes, "torch": torch.__version__})
    for line in sys.stdin:
        mode, iterations = line.split()
        start = time.perf_counter()
        runs[mode](int(iterations))
        reply({"seconds": time.perf_counter() - start})


class Contender:
    """A worker process and what it has measured: iterations a second, by mode, one value a round.

    Raises: SystemExit where it does not start or is built with other sizes than stated above.
    """

    def __init__(self, name: str, python: str, threads: int) -> None:
        command = [python, __file__, "--worker", name, "--threads", str(threads)]
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, open as long as the process
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        hello = self._read()
        self.torch, self.parameters = hello["torch"], hello["parameters"]
        if self.parameters != EXPECTED_PARAMETERS:
            raise SystemExit(f"{name} has {self.parameters} parameters, not {EXPECTED_PARAMETERS}")
        self.speeds: dict[str, list[float]] = {mode: [] for mode in MODES}

    @staticmethod
    def _open(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def _read(self) -> dict[str, Any]:
        line = self._open(self.process.stdout).readline()
        if not line:
            self.errors.seek(0)
            reason = " ".join(self.errors.read().strip().splitlines()[-1:])
            raise SystemExit(f"{self.name} stopped: {reason or 'without a message'}")
        return json.loads(line)

    def run(self, mode: str, iterations: int) -> float:
        """Iterations a second over one block."""
        stdin = self._open(self.process.stdin)
        print(mode, iterations, file=stdin, flush=True)
        return iterations / self._read()["seconds"]

    def close(self) -> None:
        """End the worker."""
        self._open(self.process.stdin).close()
        self.process.wait()
        self.errors.close()


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def spread(values: list[float], digits: int) -> str:
    """`median (lowest to highest)`."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def measure(pythons: dict[str, str], threads: int, rounds: int, iterations: int) -> None:
    """Run all contenders in turn and print their speeds and the ratios of ours to each."""
    contenders = [Contender(name, python, threads) for name, python in pythons.items()]
    for one in contenders:
        for mode in MODES:
            one.run(mode, 5)  # first calls allocate
    for _ in range(rounds):
        for mode in MODES:
            for one in contenders:
                one.speeds[mode].append(one.run(mode, iterations))
    print(
        f"\n{threads} thread{'s' if threads > 1 else ''}, iterations/s: median (lowest to highest)"
    )
    for one in contenders:
        counts = ", ".join(f"{name} {count:,}" for name, count in one.parameters.items())
        print(f"  {one.name:8} parameters: {counts}; torch {one.torch}")
    for mode in MODES:
        for one in contenders:
            line = f"  {mode:6} {one.name:8} {spread(one.speeds[mode], 1):24}"
            if one.name != "ours":
                pairs = zip(contenders[0].speeds[mode], one.speeds[mode], strict=True)
                line += f"  ours / {one.name}: {spread([a / b for a, b in pairs], 2)}"
            print(line.rstrip(), flush=True)
    for one in contenders:
        one.close()


def main() -> None:
    """Parse the arguments; measure at each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d3rlpy-python", type=Path, help="python of an environment with d3rlpy")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="counts (1 2)")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each contender (9)")
    parser.add_argument("--iterations", type=int, default=25, help="iterations a block (25)")
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.threads[0])

    pythons = {name: sys.executable for name in CONTENDERS}
    pythons["d3rlpy"] = str(arguments.d3rlpy_python)
    if arguments.d3rlpy_python is None or not arguments.d3rlpy_python.exists():
        missing = arguments.d3rlpy_python or "--d3rlpy-python"
        print(f"without d3rlpy ({missing} not found); what follows is the rest")
        del pythons["d3rlpy"]
    print(
        f"BCQ, Hopper sizes (S={STATE_DIM}, A={ACTION_DIM}), batch {BATCH_SIZE}, 10 target "
        f"candidates; {processor()}, {os.cpu_count()} cores; {arguments.rounds} rounds of "
        f"{arguments.iterations} iterations"
    )
    for threads in arguments.threads:
        measure(pythons, threads, arguments.rounds, arguments.iterations)
    return None


if __name__ == "__main__":
    main()
