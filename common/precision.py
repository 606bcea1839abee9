"""--precision: the numbers in which the large matrix products are made."""

from typing import Any

import torch
from torch import nn

from common.errors import InputError

PRECISIONS = ("float32", "bf16")


def use_precision(agent: Any, precision: str) -> Any:
    """The agent, its products made in `precision`; call it before the first update.

    With bf16 the large products between hidden layers, and Atari's convolutions, take numbers
    rounded to bfloat16 (8 bits of precision, float32's range) and add up in float32. Weights, Adam,
    targets, losses and the target update stay in float32, and so do the layers where states and
    actions come in and where values and actions come out. Critics that choose among candidate
    actions stay in float32 whole: what rounding adds to a value is small beside the value, but
    half of what distinguishes two actions like the batch's. What one precision saved goes on with
    the other.

    Raises: InputError for any other, and for bf16 where it is slower than float32: on a processor
    without its instructions (AVX512_BF16 or AMX), and on other devices, where nobody has tried it.
    """
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision} does not exist: {' or '.join(PRECISIONS)}")
    if precision == "bf16":
        require_bf16(agent.device)
    for network in vars(agent).values():
        if isinstance(network, nn.Module):
            for module in network.modules():
                if hasattr(module, "half_products"):
                    half = precision == "bf16" and not getattr(module, "always_float32", False)
                    setattr(module, "half_products", half)  # noqa: B010, for mypy
    return agent


def has_bf16(device: torch.device | str) -> bool:
    """Whether bf16 serves there: a CPU with AVX512_BF16 or AMX instructions."""
    able = torch.cpu.get_capabilities()
    instructions = able.get("avx512_bf16") or able.get("amx_bf16")
    return torch.device(device).type == "cpu" and bool(instructions)


def require_bf16(device: torch.device) -> None:
    """Raises: InputError as `use_precision` does."""
    if device.type != "cpu":
        raise InputError(f"--precision bf16 is for the CPU alone, not for {device}: leave it out")
    if not has_bf16(device):
        raise InputError(
            "--precision bf16 needs a processor with AVX512_BF16 or AMX_BF16 instructions, this "
            "one would be slower with it: leave it out"
        )
