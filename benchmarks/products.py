"""The floor: the matrix products of one iteration of BCQ at Hopper's sizes, and nothing else."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

STATE_DIM, ACTION_DIM, LATENT, CANDIDATES = 11, 3, 6, 10
BOTH = STATE_DIM + ACTION_DIM
ENCODER = [(BOTH, 750), (750, 750)]
HEADS = [(750, LATENT), (750, LATENT)]  # mean and log-std
DECODER = [(STATE_DIM + LATENT, 750), (750, 750), (750, ACTION_DIM)]
ACTOR = [(BOTH, 400), (400, 300), (300, ACTION_DIM)]
CRITIC = [(BOTH, 400), (400, 300), (300, 1)]

Shapes = list[tuple[int, int]]


def products(batch: int) -> Callable[[], None]:
    """A function that makes them all, in float32, by torch's default library."""
    jobs: list[tuple[str, Tensor, Tensor]] = []

    def add(kinds: str, rows: int, shapes: Shapes) -> None:
        # f: forward x·Wᵀ; w: gradient of the weight yᵀ·x; x: gradient of the input y·W
        for kind in kinds:
            for inputs, outputs in shapes:
                x, weight, y = (
                    torch.randn(*shape)
                    for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
                )
                first, second = {"f": (x, weight), "w": (y.t(), x), "x": (y, weight)}[kind]
                jobs.append((kind, first, second))

    add("fw", batch, ENCODER + HEADS + DECODER)
    add("x", batch, ENCODER[1:] + HEADS + DECODER)
    add("f", CANDIDATES * batch, DECODER + ACTOR + CRITIC + CRITIC)  # the target
    add("fw", batch, CRITIC + CRITIC)
    add("x", batch, CRITIC[1:] + CRITIC[1:])
    add("f", batch, DECODER + ACTOR + CRITIC)  # the actor's loss
    add("x", batch, CRITIC + ACTOR[1:])
    add("w", batch, ACTOR)

    @torch.no_grad()
    def run() -> None:
        for kind, first, second in jobs:
            if kind == "f":
                F.linear(first, second)
            else:
                torch.mm(first, second)

    return run
