"""Runs put into panels, one for an environment and a batch, and what is averaged there.

Averaged are runs that differ in the seed alone. A run that differs in anything else that could
change what is learned is a curve of its own, named by the difference; one whose batch differs in
more than the seed is in another panel.
"""

import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.arguments import INCIDENTAL
from common.errors import InputError
from common.files import file_part
from plotting.runs import FOREIGN, GENERATED, OFFLINE, ONLINE, Run, say

# Panels and legends in the papers' order, anything else after it.
BATCHES = ("", "FinalBuffer", "Concurrent", "Imitation", "Robust")
LEARNERS = (
    "BCQ", "DDPG", "BC", "VAE_BC", "DQN", "TD3_BC", "BEAR", "QRDQN", "REM", "KL_Control"
)  # fmt: skip

# Arguments that may differ between runs that are averaged: what changes nothing that is learned,
# what tells experts apart as a seed does, and what decides a run's panel and label already.
AVERAGED_OVER = INCIDENTAL | {
    "seed", "true_value", "behavioral_seed", "save_buffer", "env", "buffer_name", "algorithm",
    "concurrent",
}  # fmt: skip
# Arguments of the stage that made it, in which batches of one name may differ.
OF_THE_BATCH = (
    "gaussian_std", "rand_action_p", "low_noise_p", "behavioral_policy", "max_timesteps"
)  # fmt: skip
DIGITS = 8  # of a batch's digest, where that alone tells two apart
RESAMPLES = 2000  # of the bootstrap


@dataclass(frozen=True)
class Panel:
    """What belongs to one environment and batch; every list of runs differs in the seed alone.

    `batch` is its name, and what tells it from others of that name.

    `online` is stage 1 of the agents whose transitions are the batch, `generated` the evaluation
    of stage 2 of the policies that made it. `batch_returns` (batches,) are the batches' averages.
    """

    env: str
    batch: str
    learners: dict[str, list[Run]]
    online: dict[str, list[Run]]
    generated: dict[str, list[Run]]
    batch_returns: np.ndarray


def differing(runs: list[Run]) -> list[str]:
    """The arguments in which `runs` differ; one that a record does not know is no difference."""
    facts = [_facts(run) for run in runs]
    keys = sorted({key for known in facts for key in known})
    return [k for k in keys if len({_sortable(known[k]) for known in facts if k in known}) > 1]


def _sortable(value: Any) -> tuple[int, float, str]:
    """Numbers in their order and before anything else; 0 and 0.0 are equal."""
    return (0, value, "") if isinstance(value, int | float) else (1, 0, repr(value))


def _facts(run: Run) -> dict[str, Any]:
    """All that must agree between seeds of one experiment."""
    if run.stage == GENERATED:  # nothing learns, so the learners' flags mean nothing
        return _batch_facts(run)
    return {k: v for k, v in run.arguments.items() if k not in AVERAGED_OVER}


def _batch_facts(run: Run) -> dict[str, Any]:
    """What is known of how the run's batch was made; {} where nothing is."""
    made = run.batch_record.get("arguments") or (run.arguments if run.stage == GENERATED else {})
    return {key: made[key] for key in OF_THE_BATCH if key in made}


def by_batch(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs on batches of one name, by what tells each batch from the others; "" for one alone.

    Batches are the same where they were made alike, and, for one seed, where their digests agree.
    """
    known = [_batch_facts(run) for run in runs]
    keys = [k for k in OF_THE_BATCH if len({_sortable(f[k]) for f in known if k in f}) > 1]
    alike: dict[str, list[Run]] = defaultdict(list)
    for run, facts in zip(runs, known, strict=True):
        alike[", ".join(f"{k} {facts[k]}" for k in keys if k in facts)].append(run)
    told: dict[str, list[Run]] = defaultdict(list)
    for name, here in alike.items():
        digests = {(run.seed, digest) for run in here if (digest := _digest(run))}
        several = len(digests) > len({seed for seed, _ in digests})
        for run in here:
            digest = f"digest {_digest(run)[:DIGITS]}" if several and _digest(run) else ""
            told[", ".join(filter(None, [name, digest]))].append(run)
    return dict(told)


def _digest(run: Run) -> str:
    """That of the run's batch; "" where its record is older than digests."""
    return str(run.batch_record.get("digest") or "")


def same_batch(one: Run, other: Run) -> bool:
    """Whether the batches of two runs of one name and seed may be the same."""
    return len(by_batch([one, other])) == 1


def experiments(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs by experiment: those of one learner that differ in the seed alone, cut to one length.

    The name is the learner's, with what tells it from its other experiments.

    Raises: InputError where one seed has two different runs.
    """
    groups: dict[str, dict[Any, Run]] = defaultdict(dict)
    for learner in sorted({run.learner for run in runs}, key=place_in(LEARNERS)):
        same = [run for run in runs if run.learner == learner]
        keys = differing(same)
        for run in sorted(same, key=lambda run: [_sortable(_facts(run).get(k)) for k in keys]):
            facts = _facts(run)
            name = ", ".join([learner, *(f"{k} {facts[k]}" for k in keys if k in facts)])
            twin = groups[name].setdefault(run.seed, run)
            if twin is not run:
                if not np.array_equal(twin.y, run.y, equal_nan=True):
                    raise InputError(
                        f"{twin.path} and {run.path} are two runs of {name}, seed {run.seed}: "
                        "name one of them"
                    )
                if run.stage == OFFLINE:  # every --output_dir of a sweep has its copy of the others
                    say(f"{run.path}: a copy of {twin.path}, used once")
    return {name: cut(list(seeds.values())) for name, seeds in groups.items()}


def cut(runs: list[Run]) -> list[Run]:
    """The runs at the evaluations that all of them have; a line tells of what is left out.

    An unfinished seed is not left out instead: the seeds that stop early may be the bad ones.

    Raises: InputError where they were evaluated after other numbers of steps.
    """
    length = min(len(run.y) for run in runs)
    shortest = next(run for run in runs if len(run.y) == length)
    for run in runs:
        if np.any(run.x[:length] != runs[0].x[:length]):
            raise InputError(
                f"{runs[0].path} and {run.path} differ in the x axis: they cannot be averaged; "
                "plot them apart"
            )
        if len(run.y) > length:
            say(
                f"{run.path}: {length} of its {len(run.y)} evaluations used, as many as "
                f"{shortest.path.name} has"
            )
    return [
        replace(
            run,
            x=run.x[:length],
            y=run.y[:length],
            values=None if run.values is None else run.values[:length],
        )
        for run in runs
    ]


def behaviour_of(learner: Run, runs: list[Run]) -> Run | None:
    """The run among `runs` that evaluated the policy behind a learner's batch.

    Stage 1 where its transitions are the batch, else stage 2. Of several folders' runs of one name
    it is the one beside the learner.
    """
    if learner.batch_record.get("stage") == "train_behavioral":
        policy = str(learner.batch_record.get("policy")).removesuffix("_best")
        fitting = [run for run in runs if run.stage == ONLINE and _policy(run) == policy]
    else:
        place = (learner.env, learner.batch.removesuffix(", concurrent"), learner.seed)
        fitting = [
            run
            for run in runs
            if run.stage == GENERATED
            and (run.env, run.batch, run.seed) == place
            and same_batch(run, learner)
        ]
    beside = [run for run in fitting if run.path.parent == learner.path.parent]
    return next(iter(beside or fitting), None)


def meanwhile(behaviour: Run, learner: Run) -> Run | None:
    """The behaviour's evaluations after as many updates as a concurrent learner's, None for none.

    Of any other learner's behaviour all evaluations: its batch was there from the beginning.
    """
    if behaviour.stage != ONLINE or not learner.arguments.get("concurrent"):
        return behaviour
    updates = behaviour.x - behaviour.arguments.get("start_timesteps", 0)
    chosen = (updates > 0) & (updates <= learner.x[-1])
    return replace(behaviour, x=behaviour.x[chosen], y=behaviour.y[chosen]) if any(chosen) else None


def _policy(run: Run) -> str:
    return f"behavioral_{file_part(run.env)}_{run.seed}"


def panels(runs: list[Run]) -> list[Panel]:
    """All panels, by environment and batch.

    The behavioural training that no batch's panel shows has panels of its own, with batch "".

    Raises: InputError where one seed has two different runs.
    """
    made: list[Panel] = []
    shown: set[Path] = set()
    places = {(run.env, run.batch) for run in runs if run.stage != ONLINE}
    found = {
        (env, ", ".join(filter(None, [batch, told]))): here
        for env, batch in sorted(places)
        for told, here in by_batch([r for r in runs if (r.env, r.batch) == (env, batch)]).items()
    }
    for (env, batch), here in found.items():
        learners = [run for run in here if run.stage in {OFFLINE, FOREIGN}]
        behaviours = [behaviour_of(run, runs) for run in learners if run.stage == OFFLINE]
        online = {run.path: run for run in behaviours if run and run.stage == ONLINE}
        shown |= online.keys()
        returns = {
            (run.seed, run.batch_record["mean_return"])
            for run in here
            if run.batch_record.get("mean_return") is not None
        }
        made.append(
            Panel(
                env,
                batch,
                experiments(learners),
                experiments(list(online.values())),
                experiments([run for run in here if run.stage == GENERATED]),
                np.array([mean for _, mean in sorted(returns, key=repr)], dtype=float),
            )
        )
    alone = [run for run in runs if run.stage == ONLINE and run.path not in shown]
    for env in sorted({run.env for run in alone}):
        online_here = experiments([run for run in alone if run.env == env])
        made.append(Panel(env, "", {}, online_here, {}, np.array([])))
    # Files without a record have no environment: they come last.
    return sorted(made, key=lambda p: (p.env == "", p.env, place_in(BATCHES)(p.batch)))


def place_in(order: tuple[str, ...]) -> Any:
    """A sorting key: the place in `order`, then by name."""
    return lambda name: (order.index(name) if name in order else len(order), name)


def interval(values: np.ndarray, kind: str, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper edge about the mean over seeds: (seeds, ...) -> (...), (...).

    `sd`: mean ± spread·σ, σ with divisor n. `bootstrap`: the percentile bootstrap's 95% interval of
    the mean, from generator 0 (the same files give the same figure). One seed has no width.
    """
    mean = values.mean(0)
    if len(values) == 1:
        return mean, mean
    if kind == "sd":
        width = spread * values.std(0)
        return mean - width, mean + width
    from scipy.stats import bootstrap  # a second to import, and needed here alone

    with warnings.catch_warnings(action="ignore"):  # of NaN, whose interval is NaN
        # Not the default BCa: it is undefined where all seeds agree, and n is small.
        found = bootstrap(
            (values,), np.mean, axis=0, n_resamples=RESAMPLES, method="percentile", rng=0, batch=100
        ).confidence_interval
    return found.low, found.high
