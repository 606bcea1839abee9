"""A sweep as a graph of stages: behaviour -> batch -> learners, some of it chosen while it runs."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import InputError
from common.files import read_array, replacing, write_json
from plotting.runs import FINAL, last
from sweeps.stage import Outcome, Stage


@dataclass(frozen=True)
class Choice:
    """The best `keep` of several behavioural policies, and the stages that go on from them.

    Source: the authors trained some 15 policies and kept the best 5 to 10.
    """

    candidates: tuple[Stage, ...]
    keep: int
    best: bool  # whether a policy is that of its best evaluation, or the last
    stages: Callable[[list[int]], list[Stage]]  # of the kept policies' seeds, the best first

    def ready(self, outcomes: dict[str, Outcome]) -> bool:
        """Whether every candidate has ended, one way or another."""
        return all(stage.name in outcomes for stage in self.candidates)

    def returns(self, stage: Stage) -> float | None:
        """What ranks a policy: best evaluation, or mean of its last ones; None for none."""
        try:
            evaluations = read_array(stage.results)
        except InputError:
            return None
        return float(evaluations.max() if self.best else evaluations[last(len(evaluations))].mean())

    def decide(self, outcomes: dict[str, Outcome]) -> list[Stage]:
        """The stages of the best policies that were trained; writes which they are.

        Equals are taken by their seeds. A candidate that failed cannot be kept; where fewer than
        `keep` are left, those are.
        """
        ranks = {
            stage.seed: value
            for stage in self.candidates
            if outcomes[stage.name].status == "done" and (value := self.returns(stage)) is not None
        }
        kept = sorted(ranks, key=lambda seed: (-ranks[seed], seed))[: self.keep]
        first = self.candidates[0]
        name = f"kept_{'best' if self.best else 'last'}_{first.results.stem.rsplit('_', 1)[0]}"
        path = first.results.with_name(f"{name}.json")
        rank = "best evaluation" if self.best else f"mean of {FINAL}"
        content = {"env": first.env, "rank": rank, "kept": kept, "returns": ranks}
        with replacing(path) as [temporary]:
            write_json(temporary, json.loads(json.dumps(content)))
        return self.stages(kept)

    def assumed(self) -> list[Stage]:
        """As many stages as there will be, as if the first policies were the best."""
        return self.stages([stage.seed for stage in self.candidates[: self.keep]])


@dataclass
class Graph:
    """Stages by name, each after those that it needs, and the choices still to be made."""

    stages: dict[str, Stage] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)

    def add(self, stages: Iterable[Stage]) -> None:
        """Put stages in; one that is there already is the same run, used by both.

        Raises: InputError where two different commands have one name, or one needs an unknown one.
        """
        for stage in stages:
            known = self.stages.get(stage.name)
            if known and (known.words, known.variant) != (stage.words, stage.variant):
                raise InputError(
                    f"two different runs would be {stage.results}: `{known.command}` and "
                    f"`{stage.command}`"
                )
            missing = set(stage.needs) - self.stages.keys()
            if missing:
                raise InputError(f"{stage.name} needs {', '.join(map(str, sorted(missing)))}")
            if not known or known.indifferent - stage.indifferent:  # somebody reads what it changes
                self.stages[stage.name] = stage

    def decide(self, outcomes: dict[str, Outcome]) -> list[Stage]:
        """Make the choices that can be made now; the stages that they bring."""
        before = set(self.stages)
        for choice in [choice for choice in self.choices if choice.ready(outcomes)]:
            self.choices.remove(choice)
            self.add(choice.decide(outcomes))
        return [stage for name, stage in self.stages.items() if name not in before]

    def whole(self) -> "Graph":
        """The graph as it will be, with assumed policies where they are still to be chosen."""
        graph = Graph(dict(self.stages))
        for choice in self.choices:
            graph.add(choice.assumed())
        return graph

    def folders(self) -> list[Path]:
        """Every output folder of the sweep."""
        return list(dict.fromkeys(stage.root for stage in self.stages.values()))
