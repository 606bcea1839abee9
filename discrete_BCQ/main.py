"""Discrete BCQ in three stages: train a behavioural policy, save a batch of it, learn offline.

    python main.py --train_behavioral
    python main.py --generate_buffer
    python main.py --buffer_name Clinic              (a batch imported without --env: no simulator)
    python main.py                                   (BCQ; --algorithm names a baseline)

Source: Fujimoto, Conti, Ghavamzadeh, Pineau, "Benchmarking Batch Deep Reinforcement Learning
Algorithms", 2019, section 4 and appendix.
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
from gymnasium.wrappers import ClipReward

from common import arguments
from common.agent import learners
from common.data.batch_files import column_path, file_digest
from common.environment import rollout
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
from DQN import DQN
from utils import Buffer, dimensions, is_atari, make_buffer, make_env, shows_frames

ALGORITHMS = learners("BCQ", "DQN", "QRDQN", "REM", "KL_Control", "BC")
# What the paper sets for Atari, and the released code for all else. `tau` is the rate at which the
# target network moves every `target_update_freq` updates: 1 is a full copy.
ATARI: dict[str, Any] = {
    "start_timesteps": 20_000,
    "initial_eps": 1.0,
    "end_eps": 0.01,
    "eps_decay_period": 250_000,
    "train_freq": 4,
    "batch_size": 32,
    "lr": 6.25e-5,
    "adam_eps": 1.5e-4,
    "tau": 1.0,
    "target_update_freq": 8000,
    "eval_freq": 50_000,
    "eval_eps": 0.001,
}
# The MinAtar paper's, with Adam at the step size of its RMSprop, ε and `eval_eps` those of ATARI.
IMAGE: dict[str, Any] = ATARI | {
    "start_timesteps": 5000,
    "end_eps": 0.1,
    "eps_decay_period": 100_000,
    "train_freq": 1,
    "lr": 2.5e-4,
    "target_update_freq": 1000,
    "eval_freq": 10_000,
}
IMAGE_BUFFER_SIZE = 100_000  # transitions that stage 1 keeps of them by default
VECTOR: dict[str, Any] = {
    "start_timesteps": 1000,
    "initial_eps": 0.1,
    "end_eps": 0.1,
    "eps_decay_period": 1,
    "train_freq": 1,
    "batch_size": 64,
    "lr": 3e-4,
    "adam_eps": 1e-8,
    "tau": 0.005,
    "target_update_freq": 1,
    "eval_freq": 5000,
    "eval_eps": 0.0,
}
KIND = "discrete"  # of the actions
BEHAVIOURAL = "DQN"  # what stages 1 and 2 are about
DEFAULTS = {
    "algorithm": "BCQ",
    "env": "PongNoFrameskip-v0",
    "seed": 0,
    "buffer_name": "Default",
    "max_timesteps": int(1e6),
    "eval_freq": None,
    "eval_episodes": 10,
    "batch_size": None,
    "discount": 0.99,
    "tau": None,
}


def make_parser() -> argparse.ArgumentParser:
    """All flags; those that are None afterwards depend on the environment (`resolve_by_kind`)."""

    def shown(flag: str) -> str:
        kinds = {"Atari": ATARI, "vectors": VECTOR, "small images": IMAGE}
        values = ", ".join(f"{name} {kind[flag]:g}" for name, kind in kinds.items())
        return f" (default: {values})"

    first_line = __doc__.splitlines()[0]
    parser = flags.parser_with_common_flags(first_line, list(ALGORITHMS), DEFAULTS, shown)

    def by_kind(flag: str, kind: Callable[[str], Any], text: str) -> None:
        parser.add_argument(f"--{flag}", type=kind, default=None, help=text + shown(flag))

    by_kind(
        "start_timesteps", arguments.whole, "stage 1: first steps, uniform actions and no learning"
    )
    by_kind("initial_eps", arguments.probability, "stage 1: ε, the probability of a uniform action")
    by_kind("end_eps", arguments.probability, "stage 1: ε after --eps_decay_period updates")
    by_kind("eps_decay_period", arguments.count, "stage 1: updates from --initial_eps to --end_eps")
    by_kind("train_freq", arguments.count, "stage 1: environment steps an update")
    by_kind("eval_eps", arguments.probability, "ε while evaluating")
    by_kind("lr", arguments.nonnegative, "Adam's learning rate")
    by_kind("adam_eps", arguments.nonnegative, "Adam's ε, added to the denominator")
    by_kind("target_update_freq", arguments.count, "updates between two of the target network")
    add = parser.add_argument
    add(
        "--low_noise_p",
        type=arguments.probability,
        default=0.2,
        help="stage 2: probability that an episode is played with the ε of evaluations",
    )
    add(
        "--rand_action_p",
        type=arguments.probability,
        default=0.2,
        help="stage 2: ε of the other episodes",
    )
    flags.add_learners_flags(parser, ALGORITHMS)
    return parser


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return make_parser().parse_args(argv)


def defaults_by_kind(env: gym.Env) -> dict[str, Any]:
    """What the kind of environment decides."""
    if is_atari(env):
        return ATARI
    return IMAGE if shows_frames(env) else VECTOR


def resolve_by_kind(args: argparse.Namespace, env: gym.Env) -> None:
    """Give every flag that was not set the value for this kind of environment."""
    for flag, value in defaults_by_kind(env).items():
        if vars(args)[flag] is None:
            setattr(args, flag, value)


class NoisyPolicy:
    """The behavioural policy as stages 1 and 2 use it: ε-greedy."""

    def __init__(self, agent: DQN, num_actions: int, seed: int) -> None:
        self.agent, self.num_actions = agent, num_actions
        self.generator = np.random.default_rng(seed)
        self.eps = 0.0  # stage 2: that of the episode under way

    def __call__(self, state: np.ndarray, eps: float) -> int:
        """(*S) -> an action, uniform with probability `eps`."""
        if self.generator.random() < eps:
            return int(self.generator.integers(self.num_actions))
        return self.agent.select_action(state)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state, and the episode's ε."""
        return {"noise": self.generator.bit_generator.state, "eps": self.eps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw on from there."""
        self.generator.bit_generator.state, self.eps = state["noise"], state["eps"]


def epsilon(updates: int, args: argparse.Namespace) -> float:
    """ε of stage 1: linear in the updates from `initial_eps` to `end_eps`, then constant."""
    progress = min(1.0, updates / args.eps_decay_period)
    return args.initial_eps + progress * (args.end_eps - args.initial_eps)


def make_agent(args: argparse.Namespace, env: gym.Env) -> Any:
    """`--algorithm`, sized for the environment, with the flags that are its hyper-parameters."""
    kind: Any = ALGORITHMS[args.algorithm]
    if args.normalize_states and shows_frames(env):
        raise InputError("--normalize_states is for vectors: an image's pixels share one range")
    agent = use_precision(
        kind(*dimensions(env), **flags.hyper_parameters(kind, args)), args.precision
    )
    return NormalisedStates(agent, dimensions(env)[0][0]) if args.normalize_states else agent


def evaluated(agent: Any, eps: float, num_actions: int) -> Callable[[np.ndarray], np.ndarray]:
    """The agent as evaluations play it: ε-greedy, (B, *S) -> (B,)."""

    def act(states: np.ndarray) -> np.ndarray:
        # numpy's global generator: the evaluation seeds it and puts it back.
        explore = np.random.random(len(states)) < eps
        uniform = np.random.randint(num_actions, size=len(states))
        return np.where(explore, uniform, agent.select_action(states))

    return act


def environment(args: argparse.Namespace, **options: Any) -> gym.Env:
    """An environment as the flags describe it; `options` come before what they say."""
    return make_env(args.env, **(flags.environment_options(args) | options))


def evaluator(agent: Any, args: argparse.Namespace, env: gym.Env) -> Callable[[], list[float]]:
    """The evaluation of all stages: returns of `eval_episodes` episodes with ε `eval_eps`."""
    act = evaluated(agent, args.eval_eps, dimensions(env)[1])
    envs = [environment(args) for _ in range(args.eval_episodes)]
    return lambda: rollout.evaluate(act, envs, args.seed)


def train_behavioral(args: argparse.Namespace, folders: Folders, checkpoint: Checkpoint) -> None:
    """Stage 1: DQN online, one update every `train_freq` steps; saves the policy."""
    batch = args.buffer_name if args.save_buffer else None
    env = environment(args)
    checkpoint.claim("behavioral", folders.run_files("behavioral"), batch)
    resolve_by_kind(args, env)
    agent = make_agent(args, env)
    usual = IMAGE_BUFFER_SIZE if defaults_by_kind(env) is IMAGE else stages.ONLINE_BUFFER_SIZE
    args.buffer_size = args.buffer_size or usual
    kept = min(args.buffer_size, args.max_timesteps)
    replay_buffer = make_buffer(env, args.device, kept)
    held = range(args.max_timesteps - kept, args.max_timesteps) if args.save_buffer else range(0)
    snapshots = Snapshots(env, held, args.seed)
    noisy = NoisyPolicy(agent, dimensions(env)[1], args.seed)
    evaluate = evaluator(agent, args, env)
    schedule = ["start_timesteps", "initial_eps", "end_eps", "eps_decay_period", "train_freq"]
    title = "Stage 1: train the behavioural policy"
    show_settings(title, DQN, args, "eval_eps", *schedule, "buffer_size", "batch_size")
    model = folders.model("behavioral")
    recorder = Recorder(folders.results("behavioral"), args, "timesteps", model)

    def act(state: np.ndarray, timestep: int) -> int:
        snapshots.keep(timestep)
        uniform = timestep < args.start_timesteps
        return noisy(state, 1.0 if uniform else epsilon(agent.updates, args))

    def save_batch(episodes: list[rollout.Episode]) -> None:
        record = batch_record(args, model, episodes, replay_buffer, recorder)
        prefix, states = folders.buffer(args.buffer_name), snapshots.rows(replay_buffer)
        replay_buffer.save(prefix, record, states, checkpoint.permit)

    checkpoint.hold(noisy=noisy, snapshots=snapshots)
    behaviour = Behaviour(snapshots, act, agent, replay_buffer, args.train_freq)
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
    replay_buffer = make_buffer(env, args.device, args.max_timesteps)
    snapshots = Snapshots(env, range(args.max_timesteps), args.seed)
    noisy = NoisyPolicy(agent, dimensions(env)[1], args.seed)
    title = "Stage 2: generate a batch"
    shown = [*stages.policy_flags(args), "low_noise_p", "rand_action_p"]
    kind = ALGORITHMS[args.algorithm]
    show_settings(title, kind, args, "eval_eps", "buffer_name", *shown)
    recorder = Recorder(folders.results(label), args, "timesteps")

    def begin_episode() -> None:
        low_noise = noisy.generator.random() < args.low_noise_p
        noisy.eps = args.eval_eps if low_noise else args.rand_action_p

    def act(state: np.ndarray, timestep: int) -> int:
        snapshots.keep(timestep)
        return noisy(state, noisy.eps)

    checkpoint.hold(agent=agent, recorder=recorder, noisy=noisy, snapshots=snapshots)
    episodes = collect(
        snapshots, act, replay_buffer, args.max_timesteps, args.seed, begin_episode, checkpoint
    )
    record = batch_record(args, model, episodes, replay_buffer, recorder)
    replay_buffer.save(prefix, record, snapshots.rows(replay_buffer), checkpoint.permit)
    with checkpoint.interruptible():
        returns = evaluator(agent, args, env)()
    recorder.add(args.max_timesteps, returns, {})
    recorder.finish(batch=record)


def behaviour(args: argparse.Namespace, folders: Folders) -> tuple[Any, gym.Env, Path]:
    """The policy that stage 2 plays, --model or what stage 1 saved; its environment; its file."""
    if args.model:
        return saved_agent(args, folders)
    env = environment(args)
    resolve_by_kind(args, env)
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
    resolve_by_kind(args, env)
    replay_buffer = load_batch(args, prefix, env)
    checkpoint.hold(batch=Unchanged(replay_buffer.record["digest"], OTHER_BATCH))

    agent = make_agent(args, env)
    more: dict[str, Any] = {"batch": batch_in_use(replay_buffer)}
    estimate = None
    if hasattr(agent, "value"):  # cloning has no values
        make = partial(as_learned_from, args.env, **flags.environment_options(args))
        estimate = ValueEstimates(agent, args, prefix, replay_buffer, make)
        more["value_pairs"] = estimate.record
    kind = ALGORITHMS[args.algorithm]
    shown = ["buffer_name", "buffer_size", "batch_size", "true_value"]
    shown = ["eval_eps", *shown] if args.env else shown
    show_settings("Stage 3: learn offline", kind, args, *shown)
    record, model = Recorder if args.env else EstimateRecorder, folders.model(label)
    recorder = record(folders.results(label), args, "iterations", model, **more)
    evaluate: Callable[[], Any]
    seen: Any = replay_buffer
    if args.env:
        evaluate = evaluator(agent, args, env)
    else:
        evaluate, seen = logs.held_out(agent, env, args, replay_buffer)
        checkpoint.hold(held_out=evaluate)
    learn(agent, seen, args, evaluate, recorder, checkpoint, estimate)
    recorder.finish()
    checkpoint.leave()


def as_learned_from(env_id: str, **options: Any) -> gym.Env:
    """The environment whose returns a critic estimates: no time limit, rewards of Atari clipped."""
    env = make_env(env_id, **(options | {"max_episode_steps": -1}))
    return ClipReward(env, -1, 1) if is_atari(env) else env


def evaluate_policy(args: argparse.Namespace, folders: Folders) -> None:
    """Play `eval_episodes` episodes of a saved agent with ε `eval_eps`, and tell what it earned."""
    agent, env, model = saved_agent(args, folders)
    show_settings(f"Evaluate {model}", ALGORITHMS[args.algorithm], args, "eval_eps")
    act = evaluated(agent, args.eval_eps, dimensions(env)[1])
    playing.save_policy(args, agent, model)
    playing.play(args, folders, model, act, partial(environment, args))


def estimate_policy(args: argparse.Namespace, folders: Folders) -> None:
    """Judge a saved agent, acting greedily, by a batch alone."""
    agent, env, model = saved_agent(args, folders)
    if shows_frames(env):
        raise InputError("--estimate serves vectors, not frames")
    replay_buffer = load_batch(args, stages.batch_prefix(args), env)
    show_settings(f"Estimate {model}", ALGORITHMS[args.algorithm], args, "buffer_name")
    logs.estimate(agent, env, args, replay_buffer)


def act(args: argparse.Namespace, folders: Folders) -> None:
    """Write what a saved agent, acting greedily, does in the states of --act."""
    acting.require_output(args)
    agent, env, _ = saved_agent(args, folders)
    acting.act(args, agent.select_action, env)


def load_policy(model: str | Path, env: str | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """A saved policy as a function of states, (n, S) -> (n,), acting greedily.

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
    resolve_by_kind(args, env)
    agent = make_agent(args, env)
    agent.load(model, to_act=True)
    return agent, env, model


def batch_in_use(replay_buffer: Buffer) -> dict[str, Any]:
    """The batch's record, its digest alone where it has none; a part's episodes are unknown."""
    record = dict(replay_buffer.record)
    announce_part(record)
    if record.get("transitions", replay_buffer.size) != replay_buffer.size:
        unknown = {"episodes": None, "mean_return": None}
        record |= {"transitions": replay_buffer.size} | unknown
    return record


def load_batch(args: argparse.Namespace, prefix: Path, env: gym.Env) -> Buffer:
    """The named batch, checked against the environment. Raises: InputError for another's."""
    action_file = column_path(prefix, "action")
    if args.env:
        require_made(action_file, "batch", args, "--generate_buffer")
    require_env(prefix, args)
    replay_buffer = make_buffer(env, args.device, 1)
    replay_buffer.load(prefix, args.buffer_size)
    num_actions = dimensions(env)[1]
    outside = (replay_buffer.action < 0) | (replay_buffer.action >= num_actions)
    if outside.any():
        row = int(outside.nonzero()[0, 0])
        raise InputError(
            f"{action_file}: row {row} holds action {int(replay_buffer.action[row])}; "
            f"{args.env or args.buffer_name} has {num_actions} actions, 0 to {num_actions - 1}: "
            "was the batch made for another environment?"
        )
    args.buffer_size = replay_buffer.size
    return replay_buffer


def main() -> None:
    """Run the stage that the flags name."""
    mine = stages.Stages(
        train_behavioral, generate_buffer, learn_offline, evaluate_policy, estimate_policy, act
    )
    stages.run_stage(parse_args(), BEHAVIOURAL, mine, flags.typed(make_parser()))


if __name__ == "__main__":
    run(main)
