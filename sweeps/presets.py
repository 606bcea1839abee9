"""The papers' experiments as stages; every command is one of the variants' READMEs.

Runs lie where a hand's run would: results/, models/ and buffers/ of the output folder. What would
have the name of another run has a folder below sweep/: the final buffer's behaviour (its own noise)
and BCQ's settings of the trade-off.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import ROOT
from sweeps.graph import Choice, Graph
from sweeps.stage import GENERATE, LEARN, TRAIN, Stage
from sweeps.variants import algorithms, defaults

CONTINUOUS, DISCRETE = "continuous_BCQ", "discrete_BCQ"
MUJOCO = ("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4")  # ICML 5
PHIS, CANDIDATES = (0, 0.05, 0.25, 1), (1, 10, 100)
STEP_COUNTS = ("max_timesteps", "eval_freq", "start_timesteps", "warm_up", "eps_decay_period")
ATARI_TIMESTEPS = int(1e7)  # discrete paper, section 4; the released code's default is 1e6


@dataclass(frozen=True)
class Settings:
    """What the command line says of a sweep."""

    envs: tuple[str, ...]
    seeds: tuple[int, ...]
    algorithms: tuple[str, ...]
    output_dir: Path = ROOT
    scale: float = 1.0
    true_value: bool = True
    behavioral_seeds: int | None = None
    behavioral_policy: str = "last"
    threads: int = 1
    more: tuple[str, ...] = ()  # flags of every command, as the user gave them


@dataclass(frozen=True)
class Preset:
    """A sweep's name: what it is, what it runs on unless told otherwise, and its stages."""

    title: str
    variant: str
    envs: tuple[str, ...]
    seeds: tuple[int, ...]
    build: Callable[["Task"], None]
    algorithms: tuple[str, ...] | None = None  # None: all that the variant has


@dataclass
class Task:
    """Makes the stages of one environment and puts them into the graph."""

    settings: Settings
    variant: str
    env: str
    graph: Graph

    def _words(self, kind: str, seed: int, own: dict[str, Any]) -> tuple[str, ...]:
        """The flags: those that the stage is about, then step counts where they are scaled."""
        words = [] if kind == LEARN else [kind]
        counts = {**self._counts(kind, str(own.get("algorithm", ""))), **own}
        for flag, value in ({"env": self.env, "seed": seed} | counts).items():
            if value is True:
                words.append(f"--{flag}")
            elif value is not False and value is not None:
                text = f"{value:g}" if isinstance(value, float) else str(value)
                words += [f"--{flag}", text]
        return (*words, "--threads", str(self.settings.threads), *self.settings.more)

    def _counts(self, kind: str, algorithm: str) -> dict[str, Any]:
        """The step counts of a stage that differ from main.py's defaults."""
        usual = vars(defaults(self.variant, self.env))
        used = {"max_timesteps", "eval_freq"} if kind != GENERATE else {"max_timesteps"}
        if kind == TRAIN:
            used |= {"start_timesteps", "eps_decay_period"}
        if algorithm == "BEAR":
            used.add("warm_up")
        base = {flag: usual[flag] for flag in STEP_COUNTS if flag in used and usual.get(flag)}
        if self.variant == DISCRETE and usual["train_freq"] > 1:  # Atari's
            base["max_timesteps"] = ATARI_TIMESTEPS
        counts = {flag: self.scaled(value) for flag, value in base.items()}
        return {flag: value for flag, value in counts.items() if value != usual[flag]}

    def scaled(self, steps: int) -> int:
        """A step count of the papers at this sweep's scale, 1 at least."""
        return max(1, round(steps * self.settings.scale))

    def _stage(
        self,
        kind: str,
        seed: int,
        label: str,
        root: Path,
        needs: list[Stage],
        indifferent: frozenset[str] = frozenset(),
        **own: Any,
    ) -> Stage:
        words = self._words(kind, seed, own)
        names = tuple(stage.name for stage in needs)
        stage = Stage(self.variant, kind, self.env, seed, label, words, root, names, indifferent)
        self.graph.add([stage])
        return stage

    def behaviour(self, seed: int, root: Path, reads_batch: bool = True, **own: Any) -> Stage:
        """Stage 1."""
        unread = frozenset() if reads_batch else frozenset({"save_buffer", "buffer_name"})
        return self._stage(TRAIN, seed, "behavioral", root, [], unread, **own)

    def batch(self, policy: Stage, seed: int, name: str | None = None, **own: Any) -> Stage:
        """Stage 2, of the policy that `policy` trained."""
        name = name or defaults(self.variant, self.env).buffer_name
        usual = defaults(self.variant, self.env)
        own |= {
            "buffer_name": name if name != usual.buffer_name else None,
            "behavioral_seed": policy.seed if policy.seed != seed else None,
            "behavioral_policy": self.settings.behavioral_policy
            if self.settings.behavioral_policy != usual.behavioral_policy
            else None,
        }
        return self._stage(
            GENERATE, seed, f"buffer_performance_{name}", policy.root, [policy], **own
        )

    def learn(self, batch: Stage, algorithm: str, name: str | None = None, **own: Any) -> Stage:
        """Stage 3, on the batch that `batch` makes."""
        usual = defaults(self.variant, self.env)
        name = name or usual.buffer_name
        root = own.pop("root", batch.root)
        assert isinstance(root, Path)
        own = {
            "algorithm": algorithm if algorithm != usual.algorithm else None,
            "buffer_name": name if name != usual.buffer_name else None,
            **own,
        }
        if self.variant == CONTINUOUS and self.settings.true_value:
            own.setdefault("true_value", True)
        return self._stage(LEARN, batch.seed, f"{algorithm}_{name}", root, [batch], **own)

    def learners(self, batch: Stage, name: str | None = None, **own: Any) -> None:
        """Stage 3 of every learner of the sweep."""
        for algorithm in self.settings.algorithms:
            self.learn(batch, algorithm, name, **own)

    def policies(
        self,
        behaviour: Callable[[int], Stage],
        follow: Callable[["Task", Stage, int], None],
        is_batch: bool = False,
    ) -> None:
        """Train the policies, then what follows each, called with the seed of its batch.

        With --behavioral_seeds it follows the best ones alone; `is_batch` where the training itself
        is the batch: the policy of the best evaluation then made but a part of it.
        """
        settings = self.settings
        if settings.behavioral_seeds is None:
            for seed in settings.seeds:
                follow(self, behaviour(seed), seed)
            return
        candidates = tuple(behaviour(seed) for seed in range(settings.behavioral_seeds))
        by_seed = {stage.seed: stage for stage in candidates}

        def stages(kept: list[int]) -> list[Stage]:
            graph = Graph({stage.name: stage for stage in candidates})
            later = Task(settings, self.variant, self.env, graph)
            for policy, seed in zip(kept, settings.seeds, strict=False):
                follow(later, by_seed[policy], seed)
            return [stage for stage in graph.stages.values() if stage not in candidates]

        best = settings.behavioral_policy == "best" and not is_batch
        self.graph.choices.append(Choice(candidates, len(settings.seeds), best, stages))


def final_buffer(task: Task) -> None:
    """All transitions of a training with much noise."""
    root = task.settings.output_dir / "sweep" / "FinalBuffer"
    own: dict[str, Any] = {"gaussian_std": 0.5, "save_buffer": True, "buffer_name": "FinalBuffer"}
    task.policies(
        lambda seed: task.behaviour(seed, root, **own),
        lambda then, policy, _: then.learners(policy, "FinalBuffer"),
        is_batch=True,
    )


def _trained(task: Task, reads_batch: bool) -> Callable[[int], Stage]:
    """The behaviour of the other three batches: one training, whose transitions are one of them."""
    own: dict[str, Any] = {"gaussian_std": 0.1, "save_buffer": True, "buffer_name": "Concurrent"}
    return lambda seed: task.behaviour(seed, task.settings.output_dir, reads_batch, **own)


def concurrent(task: Task) -> None:
    """What the behavioural agent sees, as it sees it."""
    task.policies(
        _trained(task, reads_batch=True),
        lambda then, policy, _: then.learners(policy, "Concurrent", concurrent=True),
        is_batch=True,
    )


def imitation(task: Task) -> None:
    """A trained policy without noise."""

    def follow(then: Task, policy: Stage, seed: int) -> None:
        batch = then.batch(policy, seed, "Imitation", gaussian_std=0.0, rand_action_p=0.0)
        then.learners(batch, "Imitation")

    task.policies(_trained(task, reads_batch=False), follow)


def imperfect_batch(task: Task, policy: Stage, seed: int) -> Stage:
    """A tenth of the transitions, noise 0.3 and 30% uniform actions: main.py's own defaults."""
    tenth = defaults(task.variant, task.env).max_timesteps // 10
    return task.batch(policy, seed, max_timesteps=task.scaled(tenth))


def imperfect(task: Task) -> None:
    """Demonstrations with two kinds of noise."""
    task.policies(
        _trained(task, reads_batch=False),
        lambda then, policy, seed: then.learners(imperfect_batch(then, policy, seed)),
    )


def tradeoff(task: Task) -> None:
    """Between imitation and Q-learning: BCQ over Φ and the number of candidates."""

    def follow(then: Task, policy: Stage, seed: int) -> None:
        batch = imperfect_batch(then, policy, seed)
        for phi, n in itertools.product(PHIS, CANDIDATES):
            root = task.settings.output_dir / "sweep" / f"phi{phi:g}_n{n}"
            own: dict[str, Any] = {
                "phi": float(phi),
                "target_candidates": n,
                "acting_candidates": n,
            }
            then.learn(batch, "BCQ", root=root, buffer_dir=batch.root, **own)

    task.policies(_trained(task, reads_batch=False), follow)


def icml2019(task: Task) -> None:
    """The four batches of the ICML paper."""
    for build in (final_buffer, concurrent, imitation, imperfect):
        build(task)


def discrete2019(task: Task) -> None:
    """One partially trained policy with noise, and every learner on its batch."""

    def follow(then: Task, policy: Stage, seed: int) -> None:
        then.learners(then.batch(policy, seed))

    task.policies(lambda seed: task.behaviour(seed, task.settings.output_dir), follow)


def quick(task: Task) -> None:
    """What `make quickstart` runs."""
    online = {"max_timesteps": 6000, "start_timesteps": 2000, "eval_freq": 1000}
    online = {flag: task.scaled(steps) for flag, steps in online.items()}
    offline = {"max_timesteps": task.scaled(3000), "eval_freq": task.scaled(500)}

    def follow(then: Task, policy: Stage, seed: int) -> None:
        noise: dict[str, Any] = {"gaussian_std": 0.0, "rand_action_p": 0.0}
        steps = {"max_timesteps": task.scaled(10_000)}
        batch = then.batch(policy, seed, "Imitation", **noise, **steps)
        then.learners(batch, "Imitation", true_value=False, **offline)

    own: dict[str, Any] = {"gaussian_std": 0.1, **online}
    task.policies(lambda seed: task.behaviour(seed, task.settings.output_dir, **own), follow)


_ICML = (CONTINUOUS, MUJOCO, (0, 1, 2, 3, 4))
PRESETS = {
    "quick": Preset(
        "Pendulum-v1 in minutes", CONTINUOUS, ("Pendulum-v1",), (0,), quick, ("BCQ", "DDPG")
    ),
    "final_buffer": Preset("ICML: the final buffer", *_ICML, final_buffer),
    "concurrent": Preset("ICML: concurrent", *_ICML, concurrent),
    "imitation": Preset("ICML: imitation", *_ICML, imitation),
    "imperfect": Preset("ICML: imperfect demonstrations", *_ICML, imperfect),
    "tradeoff": Preset("ICML: BCQ over phi and candidates", *_ICML, tradeoff, ("BCQ",)),
    "icml2019": Preset("the four batches of the ICML paper", *_ICML, icml2019),
    "discrete2019": Preset(
        "the discrete paper", DISCRETE, ("PongNoFrameskip-v0",), (0, 1, 2), discrete2019
    ),
}


def graph(preset: Preset, settings: Settings) -> Graph:
    """All stages of a sweep."""
    made = Graph()
    for env in settings.envs:
        preset.build(Task(settings, preset.variant, env, made))
    return made


def choices(preset: Preset) -> tuple[str, ...]:
    """The learners that a preset can run, from the variant's own list."""
    return tuple(algorithms(preset.variant))
