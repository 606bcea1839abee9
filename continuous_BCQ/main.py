"""Continuous BCQ in three stages: train a behavioural policy, save a batch of it, learn offline.

    python main.py --train_behavioral --gaussian_std 0.1
    python main.py --generate_buffer --max_timesteps 100000
    python main.py                                   (BCQ; --algorithm names a baseline)
    python main.py --buffer_name Clinic              (a batch imported without --env: no simulator)

Source: Fujimoto, Meger, Precup, ICML 2019, sections 3 and 5 and supplementary.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# The repository is run in place, never installed: its root must be importable from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import InputError, end_quietly, require_renderer, run

if __name__ == "__main__":
    end_quietly()
    require_renderer()

import gymnasium as gym
import numpy as np

from common import arguments
from common.agent import learners
from common.data.batch_files import column_path, file_digest
from common.data.replay import GrowingBatch
from common.environment import rollout
from common.environment.doors import is_rescaled, taken
from common.environment.simulator import Snapshots
from common.files import Folders
from common.precision import use_precision
from common.resume.checkpoint import Checkpoint
from common.resume.parts import OTHER_BATCH, OTHER_POLICY, Unchanged
from common.run import acting, flags, logs, playing, stages
from common.run.collecting import collect
from common.run.normalised import NormalisedStates
from common.run.offline import learn
from common.run.online import Behaviour, learn_online
from common.run.record import (
    EstimateRecorder,
    Recorder,
    announce_part,
    batch_record,
    require_env,
)
from common.run.stages import require_made, show_settings
from common.run.true_values import ValueEstimates
from DDPG import DDPG
from utils import ReplayBuffer, dimensions, make_env

ALGORITHMS = learners("BCQ", "DDPG", "BC", "VAE_BC", "DQN", "TD3_BC", "BEAR")
RESCALED = (
    "{env} takes actions {actions}, which a batch has scaled to [-1, 1]: import_dataset.py does it"
)
CONCURRENT_SEED = 10_000  # added to --seed by --concurrent
KIND = "continuous"  # of the actions
BEHAVIOURAL = "DDPG"  # what stages 1 and 2 are about
DEFAULTS = {
    "algorithm": "BCQ",
    "env": "Hopper-v4",
    "seed": 0,
    "buffer_name": "Robust",
    "max_timesteps": int(1e6),
    "eval_freq": 5000,
    "eval_episodes": 10,
    "batch_size": None,  # the algorithm's own
    "discount": 0.99,
    "tau": 0.005,
}


def make_parser() -> argparse.ArgumentParser:
    """All flags; the defaults are the released code's."""

    def shown(_: str) -> str:
        return f" (default: {flags.own_batch_sizes(ALGORITHMS)})"

    first_line = __doc__.splitlines()[0]
    parser = flags.parser_with_common_flags(first_line, list(ALGORITHMS), DEFAULTS, shown)
    add = parser.add_argument
    # Differs from the paper: 1,000 there; the released code takes 25,000.
    add(
        "--start_timesteps",
        type=arguments.whole,
        default=25000,
        help="stage 1: first steps, with uniform actions and no learning",
    )
    add(
        "--rand_action_p",
        type=arguments.probability,
        default=0.3,
        help="stage 2: probability of a uniform action",
    )
    add(
        "--gaussian_std",
        type=arguments.nonnegative,
        default=0.3,
        help="σ of the exploration noise, in units of max_action (stages 1 and 2)",
    )
    add(
        "--concurrent",
        action="store_true",
        help="stage 3: at iteration t sample from the first start_timesteps + t transitions alone, "
        "those that the behavioural agent had then seen",
    )
    flags.add_learners_flags(parser, ALGORITHMS)
    return parser


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, with the mini-batch of the stage's learner where none was asked for."""
    args = make_parser().parse_args(argv)
    online = args.train_behavioral or args.generate_buffer
    learner = ALGORITHMS[BEHAVIOURAL if online else args.algorithm]
    args.batch_size = args.batch_size or learner.batch_size
    return args


class NoisyPolicy:
    """The behavioural policy as stages 1 and 2 use it: a uniform action, or clip(π(s) + noise).

    The noise is N(0, (gaussian_std·m)²) in every dimension. Differs from the DDPG paper, which has
    Ornstein-Uhlenbeck noise; the BCQ paper has this one.
    """

    def __init__(self, agent: DDPG, env: gym.Env, gaussian_std: float, seed: int) -> None:
        self.agent, self.uniform = agent, env.action_space
        self.uniform.seed(seed)
        self.max_action = dimensions(env)[2]
        self.gaussian_std = gaussian_std
        self.generator = np.random.default_rng(seed)

    def __call__(self, state: np.ndarray, uniform: bool) -> np.ndarray:
        """(S,) -> (A,) float32, in [−m, m]."""
        if uniform:
            return self.uniform.sample()
        action = self.agent.select_action(state)
        noise = self.generator.normal(0, self.gaussian_std * self.max_action, action.shape)
        return (action + noise).clip(-self.max_action, self.max_action).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """The two generators."""
        uniform = self.uniform.np_random.bit_generator.state
        return {"uniform": uniform, "noise": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw on from there."""
        self.uniform.np_random.bit_generator.state = state["uniform"]
        self.generator.bit_generator.state = state["noise"]


def make_agent(args: argparse.Namespace, env: gym.Env) -> Any:
    """`--algorithm`, sized for the environment, with the flags that are its hyper-parameters."""
    kind: Any = ALGORITHMS[args.algorithm]
    agent = kind(*dimensions(env), **flags.hyper_parameters(kind, args))
    agent = use_precision(agent, args.precision)
    return NormalisedStates(agent, dimensions(env)[0]) if args.normalize_states else agent


def environment(args: argparse.Namespace, **options: Any) -> gym.Env:
    """An environment as the flags describe it; `options` come before what they say."""
    return make_env(args.env, **(flags.environment_options(args) | options))


def evaluator(agent: Any, args: argparse.Namespace) -> Callable[[], list[float]]:
    """The evaluation of all stages: returns of `eval_episodes` episodes without noise."""
    envs = [environment(args) for _ in range(args.eval_episodes)]
    return lambda: rollout.evaluate(agent.select_action, envs, args.seed)


def train_behavioral(args: argparse.Namespace, folders: Folders, checkpoint: Checkpoint) -> None:
    """Stage 1: DDPG online, one update a step from `start_timesteps` on; saves the policy."""
    batch = args.buffer_name if args.save_buffer else None
    env = environment(args)
    checkpoint.claim("behavioral", folders.run_files("behavioral"), batch)
    agent = make_agent(args, env)
    args.buffer_size = args.buffer_size or stages.ONLINE_BUFFER_SIZE
    kept = min(args.buffer_size, args.max_timesteps)
    replay_buffer = ReplayBuffer(*dimensions(env)[:2], args.device, kept)
    snapshots = Snapshots(env, range(args.max_timesteps - kept, args.max_timesteps), args.seed)
    noisy = NoisyPolicy(agent, env, args.gaussian_std, args.seed)
    evaluate = evaluator(agent, args)
    title = "Stage 1: train the behavioural policy"
    shown = ["start_timesteps", "gaussian_std", "buffer_size", "batch_size"]
    show_settings(title, DDPG, args, *shown)
    model = folders.model("behavioral")
    recorder = Recorder(folders.results("behavioral"), args, "timesteps", model)

    def act(state: np.ndarray, timestep: int) -> np.ndarray:
        snapshots.keep(timestep)
        return noisy(state, uniform=timestep < args.start_timesteps)

    def save_batch(episodes: list[rollout.Episode]) -> None:
        record = batch_record(args, model, episodes, replay_buffer, recorder)
        states = snapshots.rows(replay_buffer)
        replay_buffer.save(folders.buffer(args.buffer_name), record, states, checkpoint.permit)

    checkpoint.hold(noisy=noisy, snapshots=snapshots)
    behaviour = Behaviour(snapshots, act, agent, replay_buffer)
    learn_online(behaviour, args, evaluate, recorder, save_batch, checkpoint)
    recorder.finish()
    checkpoint.leave()


def generate_buffer(args: argparse.Namespace, folders: Folders, checkpoint: Checkpoint) -> None:
    """Stage 2: `max_timesteps` transitions of the trained policy with its noise; nothing learns."""
    prefix = folders.buffer(args.buffer_name)
    label = f"buffer_performance_{args.buffer_name}"
    agent, env, model = behaviour(args, folders)
    checkpoint.claim(label, [], args.buffer_name)
    checkpoint.hold(policy=Unchanged(file_digest(model), OTHER_POLICY))
    replay_buffer = ReplayBuffer(*dimensions(env)[:2], args.device, args.max_timesteps)
    snapshots = Snapshots(env, range(args.max_timesteps), args.seed)
    noisy = NoisyPolicy(agent, env, args.gaussian_std, args.seed)
    title = "Stage 2: generate a batch"
    shown = [*stages.policy_flags(args), "gaussian_std", "rand_action_p"]
    kind = ALGORITHMS[args.algorithm]
    show_settings(title, kind, args, "buffer_name", *shown)
    recorder = Recorder(folders.results(label), args, "timesteps")

    def act(state: np.ndarray, timestep: int) -> np.ndarray:
        snapshots.keep(timestep)
        return noisy(state, uniform=noisy.generator.random() < args.rand_action_p)

    checkpoint.hold(agent=agent, recorder=recorder, noisy=noisy, snapshots=snapshots)
    episodes = collect(
        snapshots, act, replay_buffer, args.max_timesteps, args.seed, checkpoint=checkpoint
    )
    record = batch_record(args, model, episodes, replay_buffer, recorder)
    replay_buffer.save(prefix, record, snapshots.rows(replay_buffer), checkpoint.permit)
    with checkpoint.interruptible():
        returns = evaluator(agent, args)()
    recorder.add(args.max_timesteps, returns, {})
    recorder.finish(batch=record)


def behaviour(args: argparse.Namespace, folders: Folders) -> tuple[Any, gym.Env, Path]:
    """The policy that stage 2 plays, --model or what stage 1 saved; its environment; its file."""
    if args.model:
        return saved_agent(args, folders)
    env = environment(args)
    model = stages.behavioural_policy(args)
    agent = make_agent(args, env)
    agent.load(model, to_act=True)
    return agent, env, model


def learn_offline(args: argparse.Namespace, folders: Folders, checkpoint: Checkpoint) -> None:
    """Stage 3: `max_timesteps` iterations of `--algorithm` on a saved batch; saves the agent."""
    label = f"{args.algorithm}_{args.buffer_name}"
    # Before the name is claimed: a batch of the other kind of actions is sent to the other variant,
    # whatever there is already under this name.
    env = logs.environment(args, partial(environment, args), KIND)
    checkpoint.claim(label, folders.run_files(label))
    prefix = stages.batch_prefix(args)
    replay_buffer = load_batch(args, prefix, env)
    batch = batch_in_use(replay_buffer)
    checkpoint.hold(batch=Unchanged(replay_buffer.record["digest"], OTHER_BATCH))
    seen: ReplayBuffer | GrowingBatch = replay_buffer
    if args.concurrent:
        start = first_update(args, batch, replay_buffer.size)
        # As many iterations as the policy had made updates.
        args.max_timesteps = min(args.max_timesteps, replay_buffer.size - start)
        seen = GrowingBatch(replay_buffer, start)
        checkpoint.hold(seen=seen)
        # Of the behaviour's seed, DDPG would draw its weights and its batches: it would become that
        # agent again, weight for weight.
        rollout.seed_generators(args.seed + CONCURRENT_SEED)

    agent = make_agent(args, env)
    more: dict[str, Any] = {"batch": batch}
    estimate = None
    if hasattr(agent, "value"):  # cloning has no values
        make = partial(environment, args, max_episode_steps=-1)
        estimate = ValueEstimates(agent, args, prefix, replay_buffer, make)
        more["value_pairs"] = estimate.record
    kind = ALGORITHMS[args.algorithm]
    shown = ["buffer_name", "buffer_size", "concurrent", "batch_size", "true_value"]
    show_settings("Stage 3: learn offline", kind, args, *shown)
    if getattr(agent, "warm_up", 0) >= args.max_timesteps:
        print(
            f"{args.algorithm} clones the batch for its first {agent.warm_up:,} iterations, and "
            f"this run ends after {args.max_timesteps:,}: a smaller --warm_up learns from rewards"
        )
    model = folders.model(label)
    record = Recorder if args.env else EstimateRecorder
    recorder = record(folders.results(label), args, "iterations", model, **more)
    evaluate: Callable[[], Any]
    if args.env:
        evaluate = evaluator(agent, args)
    else:
        evaluate, seen = logs.held_out(agent, env, args, replay_buffer)
        checkpoint.hold(held_out=evaluate)
    learn(agent, seen, args, evaluate, recorder, checkpoint, estimate)
    recorder.finish()
    checkpoint.leave()


def evaluate_policy(args: argparse.Namespace, folders: Folders) -> None:
    """Play `eval_episodes` episodes of a saved agent without noise, and tell what it earned."""
    agent, _, model = saved_agent(args, folders)
    show_settings(f"Evaluate {model}", ALGORITHMS[args.algorithm], args)
    playing.save_policy(args, agent, model)
    playing.play(args, folders, model, agent.select_action, partial(environment, args))


def estimate_policy(args: argparse.Namespace, folders: Folders) -> None:
    """Judge a saved agent by a batch alone."""
    agent, env, model = saved_agent(args, folders)
    replay_buffer = load_batch(args, stages.batch_prefix(args), env)
    show_settings(f"Estimate {model}", ALGORITHMS[args.algorithm], args, "buffer_name")
    logs.estimate(agent, env, args, replay_buffer)


def act(args: argparse.Namespace, folders: Folders) -> None:
    """Write what a saved agent does in the states of --act."""
    acting.require_output(args)
    agent, env, _ = saved_agent(args, folders)
    acting.act(args, agent.select_action, env)


def load_policy(model: str | Path, env: str | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """A saved policy as a function of states, (n, S) -> (n, A) in the units that were logged.

    The record of its run must lie beside it or where it was made. `env`: the environment's id,
    where there is one.
    """
    args = parse_args(["--act", "states.csv", "--model", str(model)])
    folders = acting.prepare(args, env)
    agent, made, _ = saved_agent(args, folders, typed={"env"})
    return acting.in_units(agent.select_action, made, **flags.environment_options(args))


def saved_agent(
    args: argparse.Namespace, folders: Folders, typed: set[str] | None = None
) -> tuple[Any, gym.Env, Path]:
    """The agent of --model, or that of stage 3; the environment it is for; its file.

    `typed`: the flags that go before the record's (those on the command line unless given).
    """
    typed = flags.typed(make_parser()) if typed is None else typed
    model = playing.saved_policy(args, folders, ALGORITHMS, typed)
    env = logs.environment(args, partial(environment, args), KIND)
    try:
        agent = make_agent(args, env)
    except ValueError as error:  # a kernel that does not exist, say
        raise InputError(f"the record of {model} does not fit: {error}") from error
    agent.load(model, to_act=True)
    return agent, env, model


def batch_in_use(replay_buffer: ReplayBuffer) -> dict[str, Any]:
    """The batch's record, its digest alone where it has none; of a part, with its episodes."""
    record = dict(replay_buffer.record)
    announce_part(record)
    if record.get("transitions", replay_buffer.size) != replay_buffer.size:
        returns = replay_buffer.episode_returns()
        mean = float(np.mean(returns)) if returns else None
        record |= {
            "transitions": replay_buffer.size, "episodes": len(returns), "mean_return": mean
        }  # fmt: skip
    return record


def first_update(args: argparse.Namespace, batch: dict[str, Any], size: int) -> int:
    """The transition after which the policy of a batch of `size` began to learn, for --concurrent.

    Raises: InputError for a batch that is not a training run from its first step on.
    """
    start = batch.get("arguments", {}).get("start_timesteps")
    if batch.get("stage") != "train_behavioral" or batch.get("dropped", 0) or start is None:
        raise InputError(
            f"--concurrent needs every transition of a training run, in order; batch "
            f"{args.buffer_name} is none: make it by --train_behavioral --save_buffer"
        )
    if size <= start:
        raise InputError(
            f"--concurrent: the policy began to learn at step {start:,} and batch "
            f"{args.buffer_name} has {size:,} transitions: use a longer one"
        )
    return start


def load_batch(args: argparse.Namespace, prefix: Path, env: gym.Env) -> ReplayBuffer:
    """The named batch, checked against the environment. Raises: InputError for another's."""
    state_dim, action_dim, max_action = dimensions(env)
    state_file = column_path(prefix, "state")
    if args.env:
        require_made(state_file, "batch", args, "--generate_buffer")
    require_env(prefix, args)
    replay_buffer = ReplayBuffer(state_dim, action_dim, args.device, max_size=1)
    replay_buffer.load(prefix, args.buffer_size)
    args.buffer_size = replay_buffer.size
    scaled = is_rescaled(env)
    beyond = replay_buffer.action.abs().max(1).values > max_action * (1 + 1e-6)
    if beyond.any():
        raise InputError(
            f"{column_path(prefix, 'action')}: {int(beyond.sum())} actions lie outside "
            f"[-{max_action:g}, {max_action:g}], the first is number {int(beyond.nonzero()[0])} "
            "from the oldest (0); was the batch made for another environment? "
            + (RESCALED.format(env=args.env, actions=taken(env)) if scaled else "")
        )
    if scaled and not Path(f"{prefix}.json").exists():
        print(f"{prefix}_*.npy have no record. {RESCALED.format(env=args.env, actions=taken(env))}")
    return replay_buffer


def main() -> None:
    """Run the stage that the flags name."""
    mine = stages.Stages(
        train_behavioral, generate_buffer, learn_offline, evaluate_policy, estimate_policy, act
    )
    stages.run_stage(parse_args(), BEHAVIOURAL, mine, flags.typed(make_parser()))


if __name__ == "__main__":
    run(main)
