"""Milliseconds an update of discrete BCQ and DQN, ours and as plain code; of all learners by DQN's.

Atari's and LunarLander's sizes on made-up transitions, on the CPU. Each is a process of its own,
kept alive, and all run short blocks in turn (A B A B …), so that whatever else the machine does
falls on all; the ratio is taken block against neighbouring block. On one thread the time is the
process's own (CPU time), on more it is the clock's. The last lines are the time to put a batch of
Atari states together.

    python benchmarks/discrete_speed.py
    python benchmarks/discrete_speed.py --only learners
"""

import argparse
import importlib
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
LEARNERS = ("DQN", "BCQ", "QRDQN", "REM", "KL_Control", "BC")  # DQN first: the others' measure
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
    shape, actions, _ = SIZES[kind]
    tau, freq = TARGET[kind]
    batch = made_up_batch(kind)
    agent: Any
    if name == "ours":
        agent_class = getattr(importlib.import_module(algorithm), algorithm)
        target = {} if algorithm == "BC" else {"tau": tau, "target_update_freq": freq}
        agent = agent_class(shape, actions, "cpu", **target)
        update = partial(agent.update, batch)
    else:
        from eager_discrete import EagerDiscrete  # type: ignore[import-not-found]

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


def measure(
    contenders: list[tuple[str, str]], kind: str, threads: int, rounds: int, block: int
) -> tuple[list[list[float]], list[int]]:
    """Of each (name, algorithm): milliseconds an update in every round; and its parameters."""
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for name, algorithm in contenders:
        pipe, theirs = context.Pipe()
        arguments = (name, algorithm, kind, threads, theirs)
        workers.append(context.Process(target=serve, args=arguments, daemon=True))
        workers[-1].start()
        pipes.append(pipe)
    counts = [pipe.recv() for pipe in pipes]
    times: list[list[float]] = [[] for _ in pipes]
    for repeat in range(-1, rounds):
        for pipe, values in zip(pipes, times, strict=True):
            pipe.send(block)
            value = 1e3 * pipe.recv()
            if repeat >= 0:  # the first block's calls allocate
                values.append(value)
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(0)
        worker.join()
    return times, counts


def compare(algorithm: str, kind: str, threads: int, rounds: int, block: int) -> None:
    """Print milliseconds an update of both, and how many times as fast ours is."""
    contenders = [("ours", algorithm), ("plain", algorithm)]
    times, counts = measure(contenders, kind, threads, rounds, block)
    if len(set(counts)) != 1:
        raise SystemExit(f"{algorithm} on {kind}: parameters differ: {counts}")
    ours, plain = (spread(values, 2) for values in times)
    ratio = spread([b / a for a, b in zip(*times, strict=True)], 2)
    print(
        f"{kind:8} {algorithm:4} ours {ours:24} plain {plain:24} plain / ours {ratio}", flush=True
    )


def learners(kind: str, threads: int, rounds: int, block: int) -> None:
    """Print milliseconds an update of every learner, and how many times DQN's that is."""
    contenders = [("ours", algorithm) for algorithm in LEARNERS]
    times, counts = measure(contenders, kind, threads, rounds, block)
    for algorithm, values, count in zip(LEARNERS, times, counts, strict=True):
        ratio = spread([a / b for a, b in zip(values, times[0], strict=True)], 2)
        print(
            f"{kind:8} {algorithm:10} {spread(values, 2):24} / DQN {ratio:20} {count:,} parameters",
            flush=True,
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
    parser.add_argument("--only", choices=["plain", "learners"], help="one of the two tables")
    arguments = parser.parse_args()
    sys.path[:0] = PATHS
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{arguments.threads} thread(s); milliseconds: median (lowest to highest)"
    )
    threads, rounds = arguments.threads, arguments.rounds
    for kind, block in (("vectors", 50), ("atari", 4)):
        if arguments.only != "learners":
            for algorithm in ("BCQ", "DQN"):
                compare(algorithm, kind, threads, rounds, block)
        if arguments.only != "plain":
            learners(kind, threads, rounds, block)
    if arguments.only is None:
        sampling(rounds)


if __name__ == "__main__":
    main()
