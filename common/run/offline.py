"""The offline stage, the same for every algorithm: learn, evaluate, record, go on."""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from common.agent import Mean, require_finite
from common.files import best_path
from common.resume.checkpoint import Checkpoint
from common.run.record import Recorder

CHUNK = 100  # iterations between two looks at the losses and the progress bar


def learn(
    agent: Any,
    replay_buffer: Any,
    args: argparse.Namespace,
    evaluate: Callable[[], Any],
    recorder: Recorder,
    checkpoint: Checkpoint,
    estimate_value: Callable[[], dict[str, float | None]] | None = None,
) -> None:
    """`max_timesteps` gradient steps, an evaluation after each `eval_freq` and after the last.

    Raises: InputError where a loss is no longer finite, naming it and the iteration.
    """
    iterations, course = args.max_timesteps, Course()
    assert recorder.model is not None
    best = best_path(recorder.model)
    checkpoint.hold(agent=agent, recorder=recorder, course=course)
    checkpoint.resume()
    with tqdm(total=iterations, initial=course.done, unit="it", disable=None) as progress:
        while recorder.evaluated < iterations:
            end = min(recorder.evaluated + args.eval_freq, iterations)
            while course.done < end:
                chunk = min(CHUNK, end - course.done)
                if chunk < CHUNK and end % args.eval_freq:  # a longer run has a whole one here
                    checkpoint.close(best)
                figures = agent.train(replay_buffer, chunk, args.batch_size)
                require_finite(figures, course.done + chunk)
                course.add(figures, chunk)
                progress.update(chunk)
                checkpoint.save_if_due()
            if end % args.eval_freq:  # a longer run has no evaluation here
                checkpoint.close(best)
            with checkpoint.interruptible():
                value = estimate_value() if estimate_value else None
                recorder.add(end, evaluate(), course.figures.means(), agent, value)
            course.figures.take()
    checkpoint.close()


class Course:
    """How far the offline stage is: iterations done, and the figures since the last evaluation."""

    def __init__(self) -> None:
        self.done, self.figures = 0, Mean()

    def add(self, figures: dict[str, float], iterations: int) -> None:
        """Count so many iterations, whose mean figures these are."""
        self.done += iterations
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
        self.figures.add(exact, iterations)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {"done": self.done, "figures": self.figures.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All of it."""
        self.done = state["done"]
        self.figures.load_state_dict(state["figures"])
