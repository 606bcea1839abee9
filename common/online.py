"""The behavioural stage, the same for both variants: interact, learn, evaluate, record."""

import argparse
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from common.networks import Mean
from common.offline import require_finite
from common.record import Recorder
from common.rollout import Episode, interact


def learn_online(
    env: gym.Env,
    act: Callable[[np.ndarray, int], Any],
    agent: Any,
    replay_buffer: Any,
    args: argparse.Namespace,
    evaluate: Callable[[], list[float]],
    recorder: Recorder,
    save_batch: Callable[[list[Episode]], None],
    train_freq: int = 1,
) -> None:
    """`max_timesteps` steps of `act`, from `start_timesteps` on an update every `train_freq`.

    An evaluation after each `eval_freq` steps and after the last. With --save_buffer
    `save_batch(finished episodes)` is called at the end, also where the stage ends before its time.

    Raises: InputError where a loss, a state or a reward is no longer finite.
    """
    figures = Mean()
    episodes: list[Episode] = []
    steps = interact(env, act, args.max_timesteps, args.seed)
    try:
        for step in tqdm(steps, total=args.max_timesteps, unit="step", disable=None):
            replay_buffer.add(*step.transition)
            episodes += step.finished
            done = step.timestep + 1
            if step.timestep >= args.start_timesteps and done % train_freq == 0:
                figures.add(agent.update(replay_buffer.sample(args.batch_size)))
            if done % args.eval_freq == 0 or done == args.max_timesteps:
                means = figures.take()
                require_finite(means, done)
                recorder.add(done, evaluate(), means, agent)
    finally:
        if args.save_buffer and replay_buffer.size:
            save_batch(episodes)
