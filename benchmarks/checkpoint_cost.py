"""What checkpoints cost at the defaults: the seconds of one, as a share of the time between two.

    python benchmarks/checkpoint_cost.py

Each line is a stage at its default sizes, on one thread: updates a second, the median seconds of a
checkpoint, the seconds between two (an evaluation's steps, at most 5 minutes), and their share of
the running time. Environments and evaluations take no time here, so the real share is smaller. The
last line is a buffer of 1e6 Hopper transitions, whose checkpoints write the 5,000 newest.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
UPDATES, WRITES = 200, 11


def median_seconds(function: Callable[[], Any], times: int) -> float:
    """Of so many calls."""
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def show(what: str, seconds_an_update: float, seconds: float, steps: int) -> None:
    """One line of the table."""
    between = min(steps * seconds_an_update, 300)
    share = seconds / (seconds + between)
    rate = 1 / seconds_an_update
    print(f"{what:<36}{rate:>10.1f}{seconds:>10.3f}{between:>10.1f}{share:>9.2%}", flush=True)


def measure(variant: str, folder: Path) -> None:
    """The lines of one variant."""
    sys.path[:0] = [str(ROOT), str(ROOT / variant)]
    import main  # type: ignore[import-not-found]
    from common.files import Folders
    from common.resume.checkpoint import Checkpoint
    from common.resume.parts import Rows
    from common.run.flags import hyper_parameters

    env_id = "Hopper-v4" if variant == "continuous_BCQ" else "LunarLander-v3"
    args = main.parse_args(["--env", env_id, "--device", "cpu"])
    env = main.make_env(env_id)
    if variant == "discrete_BCQ":
        main.resolve_by_kind(args, env)
        buffer = main.make_buffer(env, "cpu", 1_000_000)
    else:
        buffer = main.ReplayBuffer(*main.dimensions(env)[:2], "cpu", 1_000_000)
    for column in buffer._columns:
        column.zero_()
    buffer.size = buffer.added = 1_000_000

    def checkpoint_of(label: str, **parts: Any) -> Checkpoint:
        checkpoint = Checkpoint(args, Folders(folder, env_id, 0))
        checkpoint.claim(label, [])
        checkpoint.hold(**parts)
        return checkpoint

    for name in ("BCQ", main.BEHAVIOURAL):
        kind = main.ALGORITHMS[name]
        agent = kind(*main.dimensions(env), **hyper_parameters(kind, args))
        agent.train(buffer, 20, args.batch_size)
        update = median_seconds(partial(agent.train, buffer, 10, args.batch_size), UPDATES // 10)
        checkpoint = checkpoint_of(name, agent=agent)
        checkpoint.resume()
        seconds = median_seconds(checkpoint.save, WRITES)
        show(f"{name} offline, {env_id}", update / 10, seconds, args.eval_freq)

    checkpoint = checkpoint_of("online", agent=agent)
    checkpoint.hold(rows=Rows(buffer, checkpoint.folder))
    first = median_seconds(checkpoint.resume, 1)

    def after_an_evaluation() -> None:
        buffer.added += args.eval_freq  # as if so many had come in since
        checkpoint.save()

    seconds = median_seconds(after_an_evaluation, WRITES)
    show(f"{name} online, {env_id}, buffer 1e6", update / 10, seconds, args.eval_freq)
    print(f"  (the first checkpoint of 1e6 transitions at once: {first:.2f} s)")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as name:
            measure(sys.argv[1], Path(name))
    else:
        print(f"{'':<36}{'updates/s':>10}{'s each':>10}{'s between':>10}{'share':>9}", flush=True)
        for variant in ("continuous_BCQ", "discrete_BCQ"):
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, __file__, variant], check=True, env=environment)
