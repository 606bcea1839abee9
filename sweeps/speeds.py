"""How fast this machine is: CPU seconds of one step, update and evaluation of each learner.

    python -m sweeps.speeds continuous_BCQ Hopper-v4 BCQ DDPG

prints them as json. A process of its own, so that one thread and one variant are all there is in
it; CPU time, which other work on the machine hardly changes.
"""

import io
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from sweeps.variants import entry, resolved

BUDGET = 1.0  # CPU seconds a figure is measured for, three blocks of a third
ROWS = 2000  # of the made-up batch
EPISODES, PAIRS = 10, 100  # states acted in at once: in an evaluation, and for true values


def per_call(call: Callable[[], Any]) -> float:
    """CPU seconds of one call, the fastest of three blocks after a first call."""
    call()
    began, calls = time.process_time(), 0
    while time.process_time() - began < BUDGET / 10:
        call()
        calls += 1
    blocks = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(3 * calls):
            call()
        blocks.append((time.process_time() - began) / (3 * calls))
    return min(blocks)


def filled(main: Any, env: Any) -> Any:
    """A replay buffer of made-up transitions of this environment's sizes."""
    make = getattr(main, "make_buffer", None)
    buffer = make(env, "cpu", ROWS) if make else main.ReplayBuffer(
        *main.dimensions(env)[:2], "cpu", ROWS
    )  # fmt: skip
    state, _ = env.reset(seed=0)
    for _ in range(ROWS):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        buffer.add(state, action, following, float(reward), terminated, truncated)
        state = env.reset()[0] if terminated or truncated else following
    return buffer


def stepping(env: Any) -> float:
    """CPU seconds of a random step, resets included."""

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    env.reset(seed=0)
    return per_call(step)


def saved_bytes(agent: Any) -> int:
    """The size of its model file."""
    file = io.BytesIO()
    torch.save(agent.state_dict(), file)
    return len(file.getvalue())


def measure(variant: str, env_id: str, algorithms: list[str]) -> dict[str, Any]:
    """`step` and `states`, bytes of a `row` of the batch; per learner `update`, `act`, `values`."""
    main = entry(variant)
    start = time.process_time()  # all imports
    torch.set_num_threads(1)
    env = main.make_env(env_id)
    buffer = filled(main, env)
    states = buffer.sample(PAIRS).state.numpy()
    frames = states.ndim > 2  # of which a row has one
    numbers = 2 * states[0].size + int(np.prod(env.action_space.shape)) + 2
    row = states[0, -1].size if frames else 4 * numbers
    limit = env.spec.max_episode_steps or 1000
    found: dict[str, Any] = {
        "start": start, "step": stepping(env), "row": row, "episode": limit, "learners": {}
    }  # fmt: skip
    for name in algorithms:
        args = resolved(variant, ("--env", env_id, "--algorithm", name, "--device", "cpu"))
        agent = main.make_agent(args, env)

        found["learners"][name] = {
            "update": per_call(partial(agent.train, buffer, 1, args.batch_size)),
            "act": per_call(partial(agent.select_action, states[0])),
            "evaluate": per_call(partial(agent.select_action, states[:EPISODES])),
            "values": per_call(partial(agent.select_action, states)),
            "bytes": saved_bytes(agent),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sys.argv[3:])))
