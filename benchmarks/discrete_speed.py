"""Milliseconds an update of discrete BCQ and DQN: this repository's, and as plain code.

Atari's and LunarLander's sizes on made-up transitions, on the CPU. Each is a process of its own,
kept alive, and both run short blocks in turn (A B A B …), so that whatever else the machine does
falls on both; the ratio is taken block against neighbouring block. On one thread the time is the
process's own (CPU time), on more it is the clock's. The last lines are the time to put a batch of
Atari states together.

    python benchmarks/discrete_speed.py
"""

import argparse
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
SIZES: dict[str, tuple[tuple[int, ...], int, int]] = {  # state_shape, actions, batch
    "atari": ((4, 84, 84), 6, 32),
    "vectors": ((8,), 4, 64),
}
TARGET = {"atari": (1.0, 8000), "vectors": (0.005, 1)}  # tau, target_update_freq
PATHS = [str(Path(__file__).parent), str(ROOT / "discrete_BCQ"), str(ROOT)]


def made_up_batch(kind: str) -> Any:
    """A batch as the buffers give it: bytes on Atari, float32 vectors else."""
    from common.data.replay import Batch

    shape, actions, size = SIZES[kind]
    if kind == "atari":
        window = torch.randint(0, 256, (size, shape[0] + 1, *shape[1:]), dtype=torch.uint8)
        state, next_state = window[:, :-1], window[:, 1:]
    else:
        state, next_state = torch.randn(size, *shape), torch.randn(size, *shape)
    action = torch.randint(actions, (size, 1))
    return Batch(state, action, next_state, torch.randn(size, 1), torch.ones(size, 1))


def contender(name: str, algorithm: str, kind: str) -> tuple[Callable[[], Any], int]:
    """One update of `ours` or of the `plain` code, and its number of parameters."""
    from eager_discrete import EagerDiscrete  # type: ignore[import-not-found]

    import BCQ  # type: ignore[import-not-found]
    import DQN  # type: ignore[import-not-found]

    shape, actions, _ = SIZES[kind]
    tau, freq = TARGET[kind]
    batch = made_up_batch(kind)
    agent: Any
    if name == "ours":
        agent_class = BCQ.BCQ if algorithm == "BCQ" else DQN.DQN
        agent = agent_class(shape, actions, "cpu", tau=tau, target_update_freq=freq)
        update = partial(agent.update, batch)
    else:
        agent = EagerDiscrete(shape, actions, algorithm == "BCQ", tau, freq)
        update = partial(agent.update, *batch)
    return update, sum(weight.numel() for weight in agent.network.parameters())


def seconds(work: Callable[[], Any], times: int, clock: Callable[[], float]) -> float:
    """Of one call, over `times` calls."""
    start = clock()
    for _ in range(times):
        work()
    return (clock() - start) / times


def serve(name: str, algorithm: str, kind: str, threads: int, pipe: Connection) -> None:
    """A contender's process: for each number received, the seconds of one of so many updates."""
    sys.path[:0] = PATHS
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    update, parameters = contender(name, algorithm, kind)
    pipe.send(parameters)
    clock = time.process_time if threads == 1 else time.perf_counter
    while times := pipe.recv():
        pipe.send(seconds(update, times, clock))


def spread(values: list[float], digits: int) -> str:
    """`median (lowest to highest)`."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def compare(algorithm: str, kind: str, threads: int, rounds: int, block: int) -> None:
    """Print milliseconds an update of both, and how many times as fast ours is."""
    context = multiprocessing.get_context("spawn")
    pipes, workers = {}, []
    for name in ("ours", "plain"):
        pipes[name], theirs = context.Pipe()
        arguments = (name, algorithm, kind, threads, theirs)
        workers.append(context.Process(target=serve, args=arguments, daemon=True))
        workers[-1].start()
    counts = {name: pipe.recv() for name, pipe in pipes.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"{algorithm} on {kind}: parameters differ: {counts}")

    times: dict[str, list[float]] = {name: [] for name in pipes}
    for repeat in range(-1, rounds):
        for name, pipe in pipes.items():
            pipe.send(block)
            value = 1e3 * pipe.recv()
            if repeat >= 0:  # the first block's calls allocate
                times[name].append(value)
    for pipe, worker in zip(pipes.values(), workers, strict=True):
        pipe.send(0)
        worker.join()
    ours, plain = (spread(times[name], 2) for name in pipes)
    ratio = spread([b / a for a, b in zip(*times.values(), strict=True)], 2)
    print(
        f"{kind:8} {algorithm:4} ours {ours:24} plain {plain:24} plain / ours {ratio}", flush=True
    )


def sampling(rounds: int) -> None:
    """Print the milliseconds to sample 32 states and successors, from memory and from files."""
    import tempfile

    from common.data.frames import FrameBuffer

    buffer = FrameBuffer((4, 84, 84), "cpu", 20_000)
    frames = np.random.default_rng(0).integers(0, 256, (5, 84, 84), dtype=np.uint8)
    for step in range(20_000):
        buffer.add(frames[:4], 0, frames[1:], 0.0, step % 1000 == 999, False)
    with tempfile.TemporaryDirectory() as folder:
        buffer.save(f"{folder}/batch")
        loaded = FrameBuffer((4, 84, 84), "cpu", 1)
        loaded.load(f"{folder}/batch")
        for name, one in (("memory", buffer), ("files", loaded)):
            sample = partial(one.sample, 32)
            times = [1e3 * seconds(sample, 20, time.process_time) for _ in range(rounds)]
            print(f"sampling 32 Atari transitions from {name:6} {spread(times, 3)} ms", flush=True)


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (1)")
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each (15)")
    arguments = parser.parse_args()
    sys.path[:0] = PATHS
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{arguments.threads} thread(s); milliseconds: median (lowest to highest)"
    )
    for kind, block in (("vectors", 50), ("atari", 4)):
        for algorithm in ("BCQ", "DQN"):
            compare(algorithm, kind, arguments.threads, arguments.rounds, block)
    sampling(arguments.rounds)


if __name__ == "__main__":
    main()
