"""What every learner is: training on sampled mini-batches, mean figures, and its saved state."""

import importlib
import math
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.arguments import Flag
from common.data.replay import Batch
from common.errors import InputError
from common.saving import read_state, save_state

Figures = dict[str, Tensor]
TO_LEARN = ("target", "optimizer")  # in the names of the parts that acting does without


class Agent:
    """A learner. Its own file has the networks, the losses, `update`, `select_action` and `value`.

    Networks and optimisers are attributes; with a counter `updates`, if there is one, they are all
    that acting and learning on need. `batch_size` is the B of the learner's paper. `FLAGS` are the
    hyper-parameters it has on the command line, by their names in its constructor, where their
    defaults are.
    """

    batch_size: ClassVar[int] = 100
    FLAGS: ClassVar[dict[str, Flag]] = {}
    device: torch.device

    def select_action(self, state: Any) -> Any:
        """One action a state: of one state, or of a row of them."""
        raise NotImplementedError

    def update(self, batch: Batch) -> Figures:
        """One gradient step on this batch; its figures as tensors, read by nobody yet."""
        raise NotImplementedError

    def train(
        self, replay_buffer: Any, iterations: int, batch_size: int | None = None
    ) -> dict[str, float]:
        """`iterations` updates on sampled batches of `batch_size`; the mean of each figure."""
        size = batch_size or self.batch_size
        return mean_figures(self.update(replay_buffer.sample(size)) for _ in range(iterations))

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, optimisers and the number of updates: all that learning on needs."""
        state: dict[str, Any] = {name: part.state_dict() for name, part in self._parts().items()}
        return state | ({"updates": self.updates} if hasattr(self, "updates") else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave.

        Raises: InputError where `state` is of another algorithm or of other sizes; the agent then
        stays as it was.
        """
        before = deepcopy(self.state_dict())
        differing = ", ".join(sorted(before.keys() ^ state.keys()))
        if differing:
            name = type(self).__name__
            raise InputError(f"saved by another algorithm than {name}: see {differing}")
        updates = int(state.get("updates", 0))
        for name, part in self._parts().items():
            try:
                # A copy: an optimiser goes on with the tensors it is given, which may be another's.
                part.load_state_dict(deepcopy(state[name]))
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                for changed, former in self._parts().items():
                    former.load_state_dict(before[changed])
                reason = str(error).strip().splitlines()[-1].strip()
                raise InputError(
                    f"{name} does not fit this environment or algorithm: {reason}"
                ) from error
        if "updates" in state:
            self.updates = updates

    def save(self, path: str | Path) -> None:
        """Write the agent as one file. Raises: InputError where it cannot be written."""
        save_state(path, self.state_dict())

    def load(self, path: str | Path, to_act: bool = False) -> None:
        """Act and learn on as the saved agent would.

        `to_act`: the part `acting_part` of its state is enough; it then acts, and learns no more.

        Raises: InputError naming the file where it is none of this agent's; it stays as it was.
        """
        state = read_state(path, self.device)
        if to_act:
            own = self.state_dict()
            state = {name: own[name] for name in own.keys() - acting_part(own).keys()} | state
        try:
            self.load_state_dict(state)
        except (ValueError, TypeError) as error:  # InputError, or a counter that is no number
            raise InputError(f"{path}: {error}; train it again or name another") from error

    def _parts(self) -> dict[str, Any]:
        kinds = (nn.Module, Optimizer)
        return {name: part for name, part in vars(self).items() if isinstance(part, kinds)}


def acting_part(state: dict[str, Any]) -> dict[str, Any]:
    """What acting needs of an agent's state: all but its targets and optimisers."""
    return {n: part for n, part in state.items() if not any(word in n for word in TO_LEARN)}


def learners(*names: str) -> dict[str, type[Agent]]:
    """The learners of the variant being run, each of the file that has its name."""
    return {name: getattr(importlib.import_module(name), name) for name in names}


class Mean:
    """The running mean of every figure, kept on the device: it is read once, by `take`.

    A figure that some updates do not give is the mean over those that do.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """`device`: where a saved state's sums are put back."""
        self.device = device
        self.totals: Figures = {}
        self.counts: dict[str, int] = {}

    def add(self, figures: Figures, updates: int = 1) -> None:
        """Count the figures of one update, or the mean ones of several."""
        for name, value in figures.items():
            if name not in self.totals:
                self.totals[name], self.counts[name] = torch.zeros_like(value), 0
            # In place: thousands of small tensors kept would fragment the heap.
            self.totals[name] += value if updates == 1 else value * updates
            self.counts[name] += updates

    def means(self) -> dict[str, float]:
        """The means so far, {} before the first update."""
        return {name: float(total) / self.counts[name] for name, total in self.totals.items()}

    def take(self) -> dict[str, float]:
        """The means so far; starts anew."""
        means = self.means()
        self.totals, self.counts = {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        """The sums and their numbers."""
        return {"totals": self.totals, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.totals = {name: total.to(self.device) for name, total in state["totals"].items()}
        self.counts = state["counts"]


def mean_figures(figures: Iterable[Figures]) -> dict[str, float]:
    """The mean of each figure over the updates that give it; {} for none."""
    mean = Mean()
    for one in figures:
        mean.add(one)
    return mean.take()


def require_finite(figures: dict[str, float], step: int) -> None:
    """Raises: InputError naming the first figure that is NaN or infinite."""
    for name, value in figures.items():
        if not math.isfinite(value):
            raise InputError(
                f"{name} became {value} by step {step:,}: training diverged; look at the rewards "
                "and the hyper-parameters"
            )
