"""The behavioural stage, the same for both variants: interact, learn, evaluate, record."""

import argparse
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from common.agent import Mean, require_finite
from common.environment.rollout import Episode, interact
from common.resume.checkpoint import Checkpoint
from common.resume.parts import BetweenEpisodes, Rows
from common.run.collecting import Progress
from common.run.record import Recorder


def learn_online(
    env: gym.Env,
    act: Callable[[np.ndarray, int], Any],
    agent: Any,
    replay_buffer: Any,
    args: argparse.Namespace,
    evaluate: Callable[[], list[float]],
    recorder: Recorder,
    save_batch: Callable[[list[Episode]], None],
    checkpoint: Checkpoint,
    train_freq: int = 1,
) -> None:
    """`max_timesteps` steps of `act`, from `start_timesteps` on an update every `train_freq`.

    An evaluation after each `eval_freq` steps and after the last. With --save_buffer
    `save_batch(finished episodes)` is called at the end, also where the stage ends before its time.

    Checkpoints are written between episodes, where an environment has little to remember.

    Raises: InputError where a loss, a state or a reward is no longer finite.
    """
    figures, played, evaluated = Mean(agent.device), Progress(), False
    checkpoint.hold(
        agent=agent,
        recorder=recorder,
        figures=figures,
        played=played,
        environment=BetweenEpisodes(env),
        rows=Rows(replay_buffer, checkpoint.folder),
    )
    checkpoint.resume()
    first, steps = played.timesteps, args.max_timesteps
    interaction = interact(env, act, steps, args.seed, first=first)
    try:
        for step in tqdm(interaction, total=steps, initial=first, unit="step", disable=None):
            replay_buffer.add(*step.transition)
            played.add(step)
            done = played.timesteps
            if step.timestep >= args.start_timesteps and done % train_freq == 0:
                figures.add(agent.update(replay_buffer.sample(args.batch_size)))
            if done % args.eval_freq == 0 or done == steps:
                means = figures.take()
                require_finite(means, done)
                recorder.add(done, evaluate(), means, agent)
                evaluated = True
            if step.finished:
                require_finite(figures.means(), done)
                checkpoint.save_if_due(due=evaluated)
                evaluated = False
    finally:
        if args.save_buffer and replay_buffer.size:
            save_batch(played.episodes)
