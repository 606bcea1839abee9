"""`FusedAdam.minimize` is torch's Adam, number for number and file for file."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from common.optimizer import FusedAdam


def network() -> nn.Sequential:
    """A convolution that lies channels last, and two linear layers."""
    torch.manual_seed(0)
    convolution: Any = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(27, 5), nn.Linear(5, 1))


def losses(net: nn.Module, count: int) -> list[Tensor]:
    """Inputs that give the same losses whichever optimiser moves the network."""
    return [
        torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(i)) for i in range(count)
    ]


@pytest.fixture(params=["the kernel alone", "a torch without it"])
def kernel(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "a torch without it":
        monkeypatch.setattr("common.optimizer.FUSED_ADAM", None)


def test_steps_are_those_of_torchs_fused_adam(kernel: None) -> None:
    ours, theirs = network(), network()
    fast = FusedAdam(ours, 1e-2, eps=1e-4)
    plain = Adam(theirs.parameters(), lr=1e-2, eps=1e-4, fused=True)
    for inputs in losses(ours, 5):
        fast.minimize(ours(inputs).pow(2).mean())
        plain.zero_grad()
        theirs(inputs).pow(2).mean().backward()
        plain.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other) and one.grad is None


def test_a_gradient_that_lies_in_another_order_is_put_in_the_weights_order() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))

    net = Transposed()
    before = net.weight.detach().clone()
    # Adam's first step is the gradient's sign times lr; this gradient comes as a transposed view.
    signs = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    FusedAdam(net, 0.5).minimize((net.weight.t() * signs).sum())
    torch.testing.assert_close(net.weight, before - 0.5 * signs.t())


def test_no_other_network_receives_a_gradient(kernel: None) -> None:
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)
    FusedAdam(one, 1e-2).minimize(other(one(torch.ones(2, 3))).sum())
    assert all(weight.grad is None for weight in [*one.parameters(), *other.parameters()])


@pytest.mark.parametrize("first", [FusedAdam, Adam])
def test_its_state_is_torchs_and_learning_goes_on_from_it(first: type) -> None:
    ours, theirs = network(), network()
    inputs = losses(ours, 4)
    ends = []
    for start in (True, False):
        net = ours if start else theirs
        fused: Any = FusedAdam(net, 1e-2)
        for x in inputs[:2]:
            fused.minimize(net(x).pow(2).mean())
        if not start:
            state = fused.state_dict()
            fused = FusedAdam(net, 5.0)
            if first is Adam:  # through torch's own class, which reads and writes the same state
                middle = Adam(net.parameters(), lr=7.0, fused=True)
                middle.load_state_dict(state)
                state = middle.state_dict()
            fused.load_state_dict(state)
        for x in inputs[2:]:
            fused.minimize(net(x).pow(2).mean())
        ends.append([weight.detach().clone() for weight in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_copy_learns_on_by_itself(kernel: None) -> None:
    net = network()
    fast = FusedAdam(net, 1e-2)
    inputs = losses(net, 4)
    for x in inputs[:2]:
        fast.minimize(net(x).pow(2).mean())
    twin, twins = deepcopy((net, fast))
    for one, optimizer in ((net, fast), (twin, twins)):  # one after the other: nothing is shared
        for x in inputs[2:]:
            optimizer.minimize(one(x).pow(2).mean())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    for one, optimizer in ((net, fast), (twin, twins)):
        states = [optimizer.state[weight] for weight in one.parameters()]
        assert [state["step"].item() for state in states] == [4.0] * len(states)
