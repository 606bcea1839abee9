"""What every agent is built from: layers, the target update, mean figures, saved state."""

import io
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import InputError
from common.files import replacing

Figures = dict[str, Tensor]

ONEDNN_ROWS = 256  # below, converting costs more than oneDNN's faster product saves


class MLP(nn.Sequential):
    """Layers one after another, by the faster of torch's two CPU libraries.

    Without gradients, large float32 inputs pass through the layers in oneDNN's tensor layout, so
    that every product is oneDNN's: equal to rounding, and on an AMD EPYC 7 to 23 % faster than the
    default (MKL) for BCQ's decoder on 1,000 target candidates. Else this is `nn.Sequential`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        large = x.device.type == "cpu" and x.dtype == torch.float32 and len(x) >= ONEDNN_ROWS
        if large and not torch.is_grad_enabled() and torch.backends.mkldnn.is_available():
            return super().forward(x.to_mkldnn()).to_dense()
        return super().forward(x)


def mlp(inputs: int, hidden: list[int], outputs: int) -> MLP:
    """Linear layers with ReLU between and none at the end; torch's default initialisation.

    Shapes: (B, inputs) -> (B, outputs). Draws its weights from torch's generator, in order.
    """
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for width_in, width_out in zip(widths, hidden, strict=False):
        # In place is safe: the gradient of ReLU needs its output only, that of Linear its input.
        layers += [nn.Linear(width_in, width_out), nn.ReLU(inplace=True)]
    return MLP(*layers, nn.Linear(widths[-1], outputs))


class SoftUpdate:
    """Polyak averaging of one network into its target: θ' <- τ θ + (1 − τ) θ', in place.

    For small networks, whose parameters take as long to list as to average: they are listed once.

    Raises: ValueError where the two networks differ in their number of parameters; RuntimeError,
    when called, where they differ in shapes.
    """

    def __init__(self, source: nn.Module, target: nn.Module) -> None:
        self.weights: list[Tensor] = list(source.parameters())
        self.targets: list[Tensor] = list(target.parameters())
        if len(self.weights) != len(self.targets):
            raise ValueError(
                f"source has {len(self.weights)} parameters, target has {len(self.targets)}"
            )

    @torch.no_grad()
    def __call__(self, tau: float) -> None:
        """Move the target by the rate τ."""
        torch._foreach_lerp_(self.targets, self.weights, tau)


def soft_update(source: nn.Module, target: nn.Module, tau: float) -> None:
    """One `SoftUpdate`. Raises: as that does."""
    SoftUpdate(source, target)(tau)


class Mean:
    """The running mean of every figure, kept on the device: it is read once, by `take`.

    A figure that some updates do not give is the mean over those that do.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """`device`: where a saved state's sums are put back."""
        self.device = device
        self.totals: Figures = {}
        self.counts: dict[str, int] = {}

    def add(self, figures: Figures) -> None:
        """Count one update's figures."""
        for name, value in figures.items():
            if name in self.totals:
                self.totals[name] += value
                self.counts[name] += 1
            else:
                # A copy, summed in place: thousands of small tensors kept would fragment the heap.
                self.totals[name], self.counts[name] = value.clone(), 1

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


def state_of(agent: object) -> dict[str, Any]:
    """The `state_dict` of every network and optimiser among the agent's attributes, by its name."""
    parts = vars(agent).items()
    return {
        name: part.state_dict() for name, part in parts if isinstance(part, nn.Module | Optimizer)
    }


def load_state(agent: Any, state: dict[str, Any]) -> None:
    """Put what an agent's `state_dict` gave back into one of the same algorithm and sizes.

    Raises: InputError where names or sizes differ; the agent then stays as it was.
    """
    differing = ", ".join(sorted(agent.state_dict().keys() ^ state.keys()))
    if differing:
        raise InputError(f"saved by another algorithm than {type(agent).__name__}: see {differing}")
    parts = {k: v for k, v in vars(agent).items() if isinstance(v, nn.Module | Optimizer)}
    before = deepcopy(state_of(agent))
    for name, part in parts.items():
        try:
            # A copy: an optimiser goes on with the tensors it is given, which may be another's.
            part.load_state_dict(deepcopy(state[name]))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            for changed, content in before.items():
                parts[changed].load_state_dict(content)
            reason = str(error).strip().splitlines()[-1].strip()
            raise InputError(
                f"{name} does not fit this environment or algorithm: {reason}"
            ) from error


def load_agent(agent: Any, path: str | Path) -> None:
    """`load_state_dict` from a file. Raises: InputError naming it; the agent stays as it was."""
    state = read_state(path, agent.device)
    try:
        agent.load_state_dict(state)
    except (ValueError, TypeError) as error:  # InputError, or a counter that is no number
        raise InputError(f"{path}: {error}; train it again or name another") from error


def _tensors(state: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from _tensors(part)


def save_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write an agent's state as one file, whole or not at all.

    Raises: InputError where it cannot be written.
    """
    with replacing(path) as [temporary]:
        write_state(temporary, state)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """torch.save to this name, in place. Raises: OSError where it cannot be written."""
    # Through memory: on a full disk torch's own writer ends in a RuntimeError.
    content = io.BytesIO()
    torch.save(state, content)
    path.write_bytes(content.getbuffer())


def read_state(path: str | Path, device: torch.device | str) -> dict[str, Any]:
    """Read what `save_state` wrote, onto the device; never runs code from the file.

    Raises: InputError where the file is missing or damaged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on a foreign file; the error below says it
            with zipfile.ZipFile(path) as archive:  # its checksums, which torch does not look at
                if archive.testzip():
                    raise ValueError("a checksum differs")
            state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except Exception as error:  # torch raises nearly anything on a damaged file
        raise InputError(
            f"{path} is damaged or no saved agent ({type(error).__name__}); train it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise InputError(f"{path} holds no saved agent; train it again")
    if not all(torch.isfinite(tensor).all() for tensor in _tensors(state)):
        raise InputError(f"{path} holds NaN or infinity: its training diverged; train it again")
    return state
