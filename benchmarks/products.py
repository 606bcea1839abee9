"""The floors: the matrix products of one update, or of one choice of actions, and nothing else.

They are listed as they must be made, so that `tests/test_work.py` can hold each update to them:
forward wherever a network is asked, a weight's gradient only in the network that makes the step, an
input's gradient only where a step's gradient passes through. The floor is float32 by torch's
default library; with bf16 those products are bfloat16 that `common.networks.half_linear` rounds,
their operands ready-made, but for the critics that choose among candidates.
"""

from collections.abc import Callable
from itertools import cycle, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.networks import HALF_SIZE, WIDE

Layers = list[tuple[int, int]]
Products = list[tuple[str, int, int, int]]  # kind, rows, inputs, outputs


def layers(*widths: int) -> Layers:
    """(inputs, outputs) of each."""
    return list(pairwise(widths))


def made(kinds: str, rows: int, *networks: Layers) -> Products:
    """The products of these layers.

    f: forward, x·Wᵀ; w: the gradient of the weight, yᵀ·x; x: that of the input, y·W. In capitals
    where they are float32 with any --precision.
    """
    shapes = [shape for network in networks for shape in network]
    return [(kind, rows, *shape) for kind in kinds for shape in shapes]


CONTINUOUS, BOTH, LATENT, ACTIONS = 11, 14, 6, 3  # Hopper: S, S + A, 2A, A
ENCODER, DECODER = layers(BOTH, 750, 750), layers(CONTINUOUS + LATENT, 750, 750, ACTIONS)
HEADS = [(750, LATENT), (750, LATENT)]  # mean and log-std
ACTOR, CRITIC = layers(BOTH, 400, 300, ACTIONS), layers(BOTH, 400, 300, 1)
POLICY, BINS = layers(CONTINUOUS, 400, 300, ACTIONS), layers(CONTINUOUS, 400, 300, 10 * ACTIONS)
SQUARE_POLICY, SQUARE_CRITIC = layers(CONTINUOUS, 256, 256, ACTIONS), layers(BOTH, 256, 256, 1)
VECTORS = layers(8, 256, 256, 4)  # LunarLander


def learning(rows: int, *networks: Layers, kinds: str = "fwx") -> Products:
    """A loss of these networks and its step; what they are given needs no gradient."""
    behind = [network[1:] for network in networks]
    return made(kinds[:2], rows, *networks) + made(kinds[2], rows, *behind)


def bcq() -> Products:
    """VAE, target with 10 candidates a state, critics, actor."""
    vae = learning(100, ENCODER + HEADS) + made("fwx", 100, DECODER)
    target = made("f", 1000, DECODER, ACTOR) + made("F", 1000, CRITIC, CRITIC)
    actor = made("f", 100, DECODER) + learning(100, ACTOR) + made("FX", 100, CRITIC)
    return vae + target + learning(100, CRITIC, CRITIC, kinds="FWX") + actor


def ddpg() -> Products:
    """Target, critic, actor."""
    actor = learning(100, POLICY) + made("fx", 100, CRITIC)
    return made("f", 100, POLICY, CRITIC) + learning(100, CRITIC) + actor


def td3_bc_critics() -> Products:
    """Target and critics."""
    twins = [SQUARE_CRITIC, SQUARE_CRITIC]
    return made("f", 256, SQUARE_POLICY, *twins) + learning(256, *twins)


def td3_bc_actor() -> Products:
    """What every second update makes more."""
    return learning(256, SQUARE_POLICY) + made("fx", 256, SQUARE_CRITIC)


# One update, and where updates take turns the next one.
UPDATES: dict[str, list[Products]] = {
    "BCQ": [bcq()],
    "DDPG": [ddpg()],
    "TD3_BC": [td3_bc_critics(), td3_bc_critics() + td3_bc_actor()],
    "DQN": [made("f", 100, BINS) + learning(100, BINS)],
    # Next states: both heads of the network, the value head of the target.
    "BCQ, vectors": [made("f", 64, VECTORS, VECTORS, VECTORS) + learning(64, VECTORS, VECTORS)],
    "DQN, vectors": [made("f", 64, VECTORS) + learning(64, VECTORS)],
    # 100 candidates for each of 10 states; a state
    "BCQ acting": [made("f", 1000, DECODER, ACTOR) + made("F", 1000, CRITIC)],
    "DDPG acting": [made("f", 1, POLICY)],
}


def _operands(kind: str, rows: int, inputs: int, outputs: int, half: bool) -> tuple[Tensor, Tensor]:
    large = min(inputs, outputs) >= WIDE and rows * inputs * outputs >= HALF_SIZE
    half = half and large and kind.islower()
    dtype = torch.bfloat16 if half else torch.float32
    shapes = [(rows, inputs), (outputs, inputs), (rows, outputs)]
    x, weight, y = (torch.randn(shape).to(dtype) for shape in shapes)
    return {"f": (x, weight), "w": (y.t(), x), "x": (y, weight)}[kind.lower()]


def products(name: str, precision: str, onednn: bool = False) -> Callable[[], None]:
    """A function that makes those of one of `UPDATES`, at the next call those of the next update.

    onednn: forward by oneDNN in its own layout, as ours does for many rows in float32.
    """
    half = precision == "bf16"
    jobs = [[(one[0], _operands(*one, half)) for one in update] for update in UPDATES[name]]
    if onednn:
        jobs = [[(kind, (x.to_mkldnn(), w)) for kind, (x, w) in update] for update in jobs]
    turns = cycle(jobs)

    @torch.no_grad()
    def run() -> None:
        for kind, (first, second) in next(turns):
            if kind in "fF":
                F.linear(first, second)
            else:
                torch.mm(first, second)

    return run


def products_and_adam(name: str, precision: str) -> Callable[[], None]:
    """As `products`, with Adam's kernel over the weights that each update moves and their biases.

    Their gradients are ready-made, too.
    """
    make, steps = products(name, precision), []
    for update in UPDATES[name]:
        moved = [(inputs + 1, outputs) for kind, _, inputs, outputs in update if kind in "wW"]
        weights = [nn.Parameter(torch.randn(shape)) for shape in moved]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        steps.append(torch.optim.Adam(weights, fused=True).step)
    turns = cycle(steps)

    def run() -> None:
        make()
        next(turns)()

    return run
