"""What every agent is built from: layers, and the update of its targets."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ONEDNN_ROWS = 256  # below, converting costs more than oneDNN's faster product saves
# A product of (B, K) and (K, N) in bfloat16 pays from B·K·N = 8e6 on: below, converting costs what
# the product saves. Layers narrower than 256 on either side are too small a part to round them.
HALF_SIZE, WIDE = 8_000_000, 256


def half_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x·Wᵀ + b, where it is large with all three and the result rounded to bfloat16.

    Shapes: (B, K), (N, K), (N,) -> (B, N), float32 all of them.
    """
    if min(weight.shape) < WIDE or len(x) * weight.numel() < HALF_SIZE:
        return F.linear(x, weight, bias)
    # Cast at each use: casting once after each change saves less than a hundredth of an update.
    return F.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).float()


class Layers(nn.Sequential):
    """Linear layers with ReLU between and none at the end.

    The layers are called as functions, on parameters looked up once: calling them as modules would
    take a tenth of a small network's time. `half_products` is what --precision bf16 sets: the
    products between hidden layers, nearly all of the arithmetic, are then `half_linear`. States,
    actions and values come in and go out as they are.
    """

    half_products = False

    def __init__(
        self,
        *modules: nn.Module,
        from_hidden: bool = False,
        to_hidden: bool = False,
        always_float32: bool = False,
    ) -> None:
        """`modules`: the linear layers; those of another kind only number them in a saved state.

        from_hidden, to_hidden: whether inputs come from, and outputs go to, other hidden layers.
        always_float32: whether --precision leaves it alone.
        """
        super().__init__(*modules)
        linears = [module for module in modules if isinstance(module, nn.Linear)]
        self.layers: list[Any] = [(layer.weight, layer.bias) for layer in linears]
        self.from_hidden, self.to_hidden = from_hidden, to_hidden
        self.always_float32 = always_float32

    def hidden(self, x: Tensor) -> Tensor:
        """(B, inputs) -> what the last layer is given, (B, width)."""
        for place, (weight, bias) in enumerate(self.layers[:-1]):
            half = self.half_products and (place > 0 or self.from_hidden)
            # In place: the gradient of ReLU needs its output only, that of Linear its input.
            x = (half_linear if half else F.linear)(x, weight, bias).relu_()
        return x

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        half = self.half_products and self.to_hidden
        return (half_linear if half else F.linear)(self.hidden(x), *self.layers[-1])


class MLP(Layers):
    """`Layers` by the faster of torch's two CPU libraries.

    Without gradients, large float32 inputs pass through the layers in oneDNN's tensor layout, so
    that every product is oneDNN's: equal to rounding, and on an AMD EPYC 7 to 23 % faster than the
    default (MKL) for BCQ's decoder on 1,000 target candidates.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        large = x.device.type == "cpu" and x.dtype == torch.float32 and len(x) >= ONEDNN_ROWS
        onednn = large and not self.half_products and torch.backends.mkldnn.is_available()
        if onednn and not torch.is_grad_enabled():
            return super().forward(x.to_mkldnn()).to_dense()
        return super().forward(x)


def mlp(inputs: int, hidden: list[int], outputs: int, **options: bool) -> MLP:
    """Linear layers with ReLU between and none at the end; torch's default initialisation.

    options: those of `Layers`.
    Shapes: (B, inputs) -> (B, outputs). Draws its weights from torch's generator, in order.
    """
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for width_in, width_out in zip(widths, hidden, strict=False):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return MLP(*layers, nn.Linear(widths[-1], outputs), **options)


class SoftUpdate:
    """Polyak averaging of one network into its target: θ' <- τ θ + (1 − τ) θ', in place.

    Made once for two networks: listing their parameters takes as long as averaging small ones.

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
        for target, weight in zip(self.targets, self.weights, strict=True):
            target.lerp_(weight, tau)
