"""Milliseconds an update of discrete BCQ and DQN: this repository's, and as plain code.

Atari's and LunarLander's sizes on made-up transitions, on the CPU. Both run short blocks in turn
(A B A B …), so that whatever else the machine does falls on both; the ratio is taken block against
neighbouring block. Times are the process's CPU time, on one thread what a core that does nothing
else would take. The last lines are the time to put a batch of Atari states together.

    python benchmarks/discrete_speed.py
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
SIZES: dict[str, tuple[tuple[int, ...], int, int]] = {  # state_shape, actions, batch
    "atari": ((4, 84, 84), 6, 32),
    "vectors": ((8,), 4, 64),
}
HYPER: dict[str, dict[str, Any]] = {
    "atari": {"tau": 1.0, "target_update_freq": 8000},
    "vectors": {"tau": 0.005, "target_update_freq": 1},
}


def made_up_batch(kind: str) -> Any:
    """A batch as the buffers give it: bytes on Atari, float32 vectors else."""
    from common.replay import Batch

    shape, actions, size = SIZES[kind]
    if kind == "atari":
        window = torch.randint(0, 256, (size, shape[0] + 1, *shape[1:]), dtype=torch.uint8)
        state, next_state = window[:, :-1], window[:, 1:]
    else:
        state, next_state = torch.randn(size, *shape), torch.randn(size, *shape)
    action = torch.randint(actions, (size, 1))
    return Batch(state, action, next_state, torch.randn(size, 1), torch.ones(size, 1))


def contenders(algorithm: str, kind: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """One update of ours, and one of the plain code, on the same batch and of equal size."""
    from eager_discrete import EagerDiscrete  # type: ignore[import-not-found]

    import BCQ  # type: ignore[import-not-found]
    import DQN  # type: ignore[import-not-found]

    shape, actions, _ = SIZES[kind]
    hyper = HYPER[kind]
    agent_class = BCQ.BCQ if algorithm == "BCQ" else DQN.DQN
    ours = agent_class(shape, actions, "cpu", **hyper)
    plain = EagerDiscrete(
        shape, actions, algorithm == "BCQ", hyper["tau"], hyper["target_update_freq"]
    )
    counts = [sum(p.numel() for p in one.network.parameters()) for one in (ours, plain)]
    if counts[0] != counts[1]:
        raise SystemExit(f"{algorithm} on {kind}: {counts[0]} parameters against {counts[1]}")
    batch = made_up_batch(kind)
    return lambda: ours.update(batch), lambda: plain.update(*batch)


def seconds(work: Callable[[], Any], times: int) -> float:
    """CPU seconds of one call, over `times` calls."""
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times


def spread(values: list[float], digits: int) -> str:
    """`median (lowest to highest)`."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def compare(algorithm: str, kind: str, rounds: int, block: int) -> None:
    """Print milliseconds an update of both, and how many times as fast ours is."""
    ours, plain = contenders(algorithm, kind)
    seconds(ours, 3), seconds(plain, 3)  # first calls allocate
    times = [(seconds(ours, block), seconds(plain, block)) for _ in range(rounds)]
    ratio = spread([slow / fast for fast, slow in times], 2)
    fast, slow = (spread([1e3 * t for t in column], 2) for column in zip(*times, strict=True))
    print(f"{kind:8} {algorithm:4} ours {fast:24} plain {slow:24} plain / ours {ratio}", flush=True)


def sampling(rounds: int) -> None:
    """Print the milliseconds to sample 32 states and successors, from memory and from files."""
    import tempfile

    from common.frames import FrameBuffer

    buffer = FrameBuffer((4, 84, 84), "cpu", 20_000)
    frames = np.random.default_rng(0).integers(0, 256, (5, 84, 84), dtype=np.uint8)
    for step in range(20_000):
        buffer.add(frames[:4], 0, frames[1:], 0.0, step % 1000 == 999, False)
    with tempfile.TemporaryDirectory() as folder:
        buffer.save(f"{folder}/batch")
        loaded = FrameBuffer((4, 84, 84), "cpu", 1)
        loaded.load(f"{folder}/batch")
        for name, one in (("memory", buffer), ("files", loaded)):
            times = [1e3 * seconds(partial(one.sample, 32), 20) for _ in range(rounds)]
            print(f"sampling 32 Atari transitions from {name:6} {spread(times, 3)} ms", flush=True)


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (1)")
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each (15)")
    arguments = parser.parse_args()
    sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "discrete_BCQ"), str(ROOT)]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{arguments.threads} thread(s); milliseconds: median (lowest to highest)"
    )
    for kind, block in (("vectors", 50), ("atari", 4)):
        for algorithm in ("BCQ", "DQN"):
            compare(algorithm, kind, arguments.rounds, block)
    sampling(arguments.rounds)


if __name__ == "__main__":
    main()
