"""Evaluation and stages 1 and 2 as loops: ours, and as they are written plainly."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from conftest import load_variant

from benchmarks.eager_bcq import EagerBCQ
from benchmarks.products import products
from common.data.replay import ReplayBuffer
from common.environment import rollout
from common.precision import use_precision

EPISODES, STEPS, CANDIDATES = 10, 20, 100
Labelled = tuple[str, dict[str, Callable[[], Any]]]


def never_ending(steps: int) -> gym.Env:
    """Hopper whose episodes all have so many steps."""
    return gym.make("Hopper-v4", terminate_when_unhealthy=False, max_episode_steps=steps)


def plainly(agent: EagerBCQ, env: gym.Env) -> None:
    """Ten episodes one after the other, a state at a time, as the algorithm reads."""
    for _ in range(EPISODES):
        state, _ = env.reset()
        done = False
        while not done:
            with torch.no_grad():
                states = torch.FloatTensor(state.reshape(1, -1)).repeat(CANDIDATES, 1)
                actions = agent.perturb(agent.actor, states, agent.generate(states))
                q1 = agent.critic[0](torch.cat([states, actions], 1))
                action = actions[q1.argmax(0)].numpy().flatten()
            state, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated


def played(choose: Callable[[], None], env: gym.Env) -> None:
    """The steps of ten episodes, and the products that choose the actions, nothing else."""
    for _ in range(EPISODES):
        env.reset(seed=0)
        for _ in range(STEPS):
            env.step(np.zeros(3, np.float32))
    for _ in range(STEPS):
        choose()


def evaluations(precisions: list[str]) -> Iterator[Labelled]:
    """Ten episodes of BCQ; what a step takes does not depend on how many there are."""
    kind = load_variant("continuous_BCQ").BCQ.BCQ
    works: dict[str, Callable[[], Any]] = {}
    for precision in precisions:
        agent = use_precision(kind(11, 3, 1.0, "cpu"), precision)
        envs = [never_ending(STEPS) for _ in range(EPISODES)]
        works[precision] = partial(rollout.evaluate, agent.select_action, envs, 0)
        one = products("BCQ acting", precision, onednn=precision == "float32")
        works[f"floor {precision}"] = partial(played, one, never_ending(STEPS))
    plain, env = EagerBCQ(11, 3), never_ending(STEPS)
    works["plain"] = lambda: plainly(plain, env)
    yield f"ten episodes of {STEPS}, BCQ", works


def stages() -> Iterator[Labelled]:
    """Stage 1's step beside its update alone, stage 2's beside the bare environment's."""
    variant, steps = load_variant("continuous_BCQ"), 200
    env, bare = never_ending(1000), never_ending(1000)
    agent = variant.DDPG.DDPG(11, 3, 1.0, "cpu")
    noisy = variant.main.NoisyPolicy(agent, env, 0.1, 0)
    buffer = ReplayBuffer(11, 3, "cpu", 10_000)

    def act(state: np.ndarray, _timestep: int) -> np.ndarray:
        return noisy(state, uniform=False)

    def generate() -> None:
        for step in rollout.interact(env, act, steps, 0):
            buffer.add(*step.transition)

    def learn() -> None:
        for step in rollout.interact(env, act, steps, 0):
            buffer.add(*step.transition)
            agent.update(buffer.sample(100))

    generate()
    batch, chosen = buffer.sample(100), buffer.rows(range(steps)).action.numpy()

    def update() -> None:
        for _ in range(steps):
            agent.update(batch)

    def step(choose: Callable[[], None] = lambda: None) -> None:
        bare.reset(seed=0)
        for action in chosen:  # a step's contacts, and so its cost, hang on the actions
            choose()
            bare.step(action)

    yield f"{steps} steps of stage 1, DDPG", {"float32": learn, "update alone": update}
    works = {"float32": generate, "bare environment": step}
    works["floor float32"] = partial(step, products("DDPG acting", "float32"))
    yield f"{steps} steps of stage 2", works
