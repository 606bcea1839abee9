"""The behavioural stage, the same for both variants: interact, learn, evaluate, record."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from common.agent import Mean, require_finite
from common.environment.rollout import Episode, EpisodeUnderWay, interact
from common.files import best_path
from common.resume.checkpoint import Checkpoint
from common.resume.parts import Rows
from common.run.collecting import Progress
from common.run.record import Recorder


class Behaviour(NamedTuple):
    """Who learns online: `act(state, timestep)` plays in `env`, and `replay_buffer` keeps it.

    An update of the agent every `train_freq` steps.
    """

    env: gym.Env
    act: Callable[[np.ndarray, int], Any]
    agent: Any
    replay_buffer: Any
    train_freq: int = 1


def learn_online(
    behaviour: Behaviour,
    args: argparse.Namespace,
    evaluate: Callable[[], list[float]],
    recorder: Recorder,
    save_batch: Callable[[list[Episode]], None],
    checkpoint: Checkpoint,
) -> None:
    """`max_timesteps` steps of the behaviour, which learns from `start_timesteps` on.

    An evaluation after each `eval_freq` steps and after the last. With --save_buffer
    `save_batch(finished episodes)` is called at the end, also where the stage ends before its time.

    Checkpoints are written between episodes, where an environment has little to remember, and
    within one that goes on for long.

    Raises: InputError where a loss, a state or a reward is no longer finite.
    """
    env, act, agent, replay_buffer, train_freq = behaviour
    if args.start_timesteps >= args.max_timesteps:
        print(
            f"nothing will be learned: the first {args.start_timesteps:,} steps are uniform "
            "actions; lower --start_timesteps",
            flush=True,
        )
    figures, played, evaluated = Mean(agent.device), Progress(), False
    episode, rows = EpisodeUnderWay(env), Rows(replay_buffer, checkpoint.folder)
    checkpoint.hold(
        agent=agent,
        recorder=recorder,
        figures=figures,
        played=played,
        environment=episode,
        rows=rows,
    )
    checkpoint.resume()
    first, steps = played.timesteps, args.max_timesteps
    interaction = interact(
        env, act, steps, args.seed, first=first, episode=episode, give_up=rows.cut
    )

    def owed() -> bool:
        return played.timesteps % args.eval_freq == 0 and recorder.evaluated < played.timesteps

    def add_evaluation() -> None:
        means = figures.means()
        require_finite(means, played.timesteps)
        with checkpoint.interruptible(before=False):
            returns = evaluate()
        figures.take()
        recorder.add(played.timesteps, returns, means, agent)

    try:
        if owed():  # a signal ended it
            add_evaluation()
        for step in tqdm(interaction, total=steps, initial=first, unit="step", disable=None):
            replay_buffer.add(*step.transition)
            played.add(step)
            done = played.timesteps
            if step.timestep >= args.start_timesteps and done % train_freq == 0:
                figures.add(agent.update(replay_buffer.sample(args.batch_size)))
            if owed():
                add_evaluation()
                evaluated = True
            if step.finished or checkpoint.overdue:
                require_finite(figures.means(), done)
                checkpoint.save_if_due(due=evaluated)
                evaluated = False
        if recorder.evaluated < steps:  # where a longer run has no evaluation
            checkpoint.close(best_path(recorder.model) if recorder.model else None)
            add_evaluation()
        checkpoint.close()
    finally:
        if args.save_buffer and replay_buffer.size:
            save_batch(played.episodes)
