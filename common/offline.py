"""The offline stage, the same for every algorithm: learn, evaluate, record."""

import argparse
import math
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from common.errors import InputError
from common.record import Recorder

CHUNK = 100  # iterations between two looks at the losses and the progress bar


def learn(
    agent: Any,
    replay_buffer: Any,
    args: argparse.Namespace,
    evaluate: Callable[[], list[float]],
    recorder: Recorder,
    estimate_value: Callable[[], dict[str, float | None]] | None = None,
) -> None:
    """`max_timesteps` gradient steps, an evaluation after each `eval_freq` and after the last.

    Raises: InputError where a loss is no longer finite, naming it and the iteration.
    """
    iterations, done = args.max_timesteps, 0
    with tqdm(total=iterations, unit="it", disable=None) as progress:
        while done < iterations:
            block = min(args.eval_freq, iterations - done)
            totals: dict[str, float] = {}
            for start in range(0, block, CHUNK):
                chunk = min(CHUNK, block - start)
                figures = agent.train(replay_buffer, chunk, args.batch_size)
                require_finite(figures, done + start + chunk)
                for name, value in figures.items():
                    totals[name] = totals.get(name, 0.0) + value * chunk / block
                progress.update(chunk)
            done += block
            value = estimate_value() if estimate_value else None
            recorder.add(done, evaluate(), totals, agent, value)


def require_finite(figures: dict[str, float], step: int) -> None:
    """Raises: InputError naming the first figure that is NaN or infinite."""
    for name, value in figures.items():
        if not math.isfinite(value):
            raise InputError(
                f"{name} became {value} by step {step:,}: training diverged; look at the rewards "
                "and the hyper-parameters"
            )
