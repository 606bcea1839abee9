"""The work of an update, counted: no product too many, and no number read off the device."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import load_variant
from test_precision import CASES, continuous_batch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.products import UPDATES, Products
from common.data.replay import Batch
from common.precision import use_precision

DISCRETE = load_variant("discrete_BCQ").main.ALGORITHMS
# Operators that wait for the device, and calls that do so where they are no operators.
WAITING = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal"}
READING = {"item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__array__"}


def vectors_batch(rows: int) -> Batch:
    state, next_state, reward = (torch.randn(rows, width) for width in (8, 8, 1))
    return Batch(state, torch.randint(4, (rows, 1)), next_state, reward, torch.ones(rows, 1))


VECTORS: dict[str, tuple[Callable[[], Any], Callable[[int], Batch]]] = {
    f"{name}, vectors": (lambda kind=kind: kind((8,), 4, "cpu"), vectors_batch)  # type: ignore[misc]
    for name, kind in DISCRETE.items()
}


class Operators(TorchDispatchMode):
    """Notes the products that are made, backward too, and the operators that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[Any] = Counter()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "mkldnn_linear":
            (rows, inner), columns = args[0].shape, len(args[1])
            self.products[product(rows, inner, columns)] += 1
        elif name in ("mm", "addmm"):
            (rows, inner), (_, columns) = (one.shape for one in args[-2:])
            self.products[product(rows, inner, columns)] += 1
        assert name not in ("matmul", "linear", "bmm", "mv", "baddbmm"), "what is that as products?"
        self.waits += [name] * (name in WAITING)
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Notes the calls that read a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += [func.__name__] * (func.__name__ in READING)
        return func(*args, **(kwargs or {}))


def product(rows: int, inner: int, columns: int) -> tuple[int, frozenset[int]]:
    """What is counted: x·y is the same work as yᵀ·xᵀ."""
    return inner, frozenset((rows, columns))


def expected(products: Products) -> Counter[Any]:
    """The kinds are explained in benchmarks/products.py."""
    counts: Counter[Any] = Counter()
    for kind, rows, inputs, outputs in products:
        sizes = {"f": (rows, inputs, outputs), "w": (outputs, rows, inputs),
                 "x": (rows, outputs, inputs)}  # fmt: skip
        counts[product(*sizes[kind.lower()])] += 1
    return counts


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", [name for name in UPDATES if "acting" not in name])
def test_an_update_makes_the_products_of_its_formulas_and_no_other(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    make, batch = (CASES | VECTORS)[name]
    agent, rows = use_precision(make(), precision), UPDATES[name][0][0][1]
    for products in UPDATES[name]:
        with Operators() as seen:
            agent.update(batch(rows))
        assert seen.products == expected(products)


def test_acting_makes_the_products_of_its_formula_and_no_other() -> None:
    states = continuous_batch(10).state.numpy()
    for name, products in (("BCQ", UPDATES["BCQ acting"]), ("DDPG", UPDATES["DDPG acting"])):
        agent = CASES[name][0]()
        with Operators() as seen:
            agent.select_action(states if name == "BCQ" else states[:1])
        assert seen.products == expected(products[0])


@pytest.mark.parametrize("case", CASES | VECTORS)
def test_an_update_reads_no_number_off_the_device(case: str) -> None:
    make, batch = (CASES | VECTORS)[case]
    agent = make()
    with Reads() as reads, Operators() as operators:
        for _ in range(2):  # TD3_BC's actor learns at every second
            agent.update(batch(4))
    assert operators.waits == [] and reads.calls == []


@pytest.mark.parametrize(
    "read", [float, bool, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy]
)
def test_a_number_that_is_read_is_noticed(read: Callable[[Any], Any]) -> None:
    with Reads() as reads, Operators() as operators:
        read(torch.ones(()))
    assert reads.calls or operators.waits
