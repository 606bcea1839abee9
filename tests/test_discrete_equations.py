"""Every formula of discrete BCQ, DQN and BC on networks with known answers, worked out by hand."""

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from conftest import load_variant
from stubs import column
from torch import Tensor, nn

variant = load_variant("discrete_BCQ")
Batch = variant.utils.Batch
NAN = float("nan")


class Heads(nn.Module):
    """Given q and logits, one row a state; a state is the number of its row."""

    def __init__(self, q: list[list[float]], logits: list[list[float]] | None = None) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(q))
        self.scores = nn.Parameter(torch.tensor(logits if logits is not None else q))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        row = state[:, 0].long()
        return self.values[row], self.scores[row]

    def q(self, state: Tensor) -> Tensor:
        return self.values[state[:, 0].long()]


class Alone(Heads):
    """As above, for an agent whose network has one head."""

    def forward(self, state: Tensor) -> Tensor:  # type: ignore[override]
        return self.q(state)


def bcq(actions: int = 2, **options: Any) -> Any:
    """A BCQ agent whose states are one number."""
    return variant.BCQ.BCQ((1,), actions, "cpu", **options)


def dqn(actions: int = 2, **options: Any) -> Any:
    """A DQN agent of the same kind."""
    return variant.DQN.DQN((1,), actions, "cpu", **options)


def log(*probabilities: float) -> list[float]:
    """Logits of these probabilities, which need not sum to 1."""
    return [math.log(p) for p in probabilities]


# --- which actions are allowed


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.0, [True, True, True, True]),
        (0.3, [True, True, False, False]),  # ratios to the likeliest: 1, 0.4, 0.2, 1e-6
        (0.41, [True, False, False, False]),
        (1.0, [True, False, False, False]),
    ],
)
def test_an_action_is_allowed_where_its_probability_over_the_largest_exceeds_the_threshold(
    threshold: float, expected: list[bool]
) -> None:
    logits = torch.tensor([log(0.5, 0.2, 0.1, 5e-7)])
    assert bcq(4, threshold=threshold).allowed(logits).tolist() == [expected]
    # Probabilities are a softmax: adding to all logits changes nothing.
    assert bcq(4, threshold=threshold).allowed(logits + 7).tolist() == [expected]


def test_a_ratio_equal_to_the_threshold_is_not_allowed() -> None:
    logits = torch.tensor([[0.0, math.log(0.5)]])
    assert bcq(threshold=0.5).allowed(logits).tolist() == [[True, False]]


def test_the_ratio_is_to_the_likeliest_action_not_to_all() -> None:
    # Of four equal actions each has probability 0.25 < 0.3 and ratio 1.
    assert bcq(4).allowed(torch.zeros(1, 4)).all()


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.999, 1.0])
def test_the_likeliest_action_is_always_allowed(threshold: float) -> None:
    logits = torch.randn(500, 6) * torch.logspace(-6, 3, 500).reshape(-1, 1)
    allowed = bcq(6, threshold=threshold).allowed(logits)
    assert allowed.gather(1, logits.argmax(1, keepdim=True)).all()
    assert (threshold > 0) or allowed.all()


@pytest.mark.parametrize("threshold", [-0.1, 1.1, NAN])
def test_a_threshold_outside_0_and_1_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"threshold must lie in \[0, 1\], got"):
        bcq(threshold=threshold)


# --- acting


@pytest.mark.parametrize(
    ("q", "probabilities", "expected"),
    [
        ([1.0, 5.0, 2.0], [1.0, 1.0, 1.0], 1),  # nothing masked
        ([5.0, 3.0, 1.0], [0.01, 0.01, 0.98], 2),  # only action 2 allowed
        ([-5.0, -3.0, -9.0], [0.5, 0.01, 0.49], 0),  # masked is never best, also among negatives
        ([-1e9, 0.0, 0.0], [0.98, 0.01, 0.01], 0),  # … however low the allowed ones are
    ],
)
def test_bcq_takes_the_best_allowed_action(
    q: list[float], probabilities: list[float], expected: int
) -> None:
    agent = bcq(3)
    agent.network = Heads([q], [log(*probabilities)])
    assert agent.select_action(np.zeros(1)) == expected
    assert agent.select_action(np.zeros((2, 1))).tolist() == [expected, expected]


def test_threshold_1_acts_like_cloning_and_0_like_q_learning() -> None:
    logits, q = torch.randn(200, 5), torch.randn(200, 5)
    states = np.arange(200.0).reshape(-1, 1)
    cloning, learning, clone = bcq(5, threshold=1.0), bcq(5, threshold=0.0), variant.BC.BC
    cloning.network = learning.network = Heads(q.tolist(), logits.tolist())
    agent = clone((1,), 5, "cpu")
    agent.network = Alone(logits.tolist())
    assert cloning.select_action(states).tolist() == agent.select_action(states).tolist()
    assert learning.select_action(states).tolist() == q.argmax(1).tolist()


def test_bcq_and_dqn_value_a_pair_by_its_q_whatever_is_allowed() -> None:
    q, action = [[1.0, 5.0, 2.0], [-1.0, -3.0, -2.0]], torch.tensor([[1], [2]])
    masking, plain = bcq(3), dqn(3)
    masking.network, plain.network = Heads(q, [log(1.0, 0.01, 0.01)] * 2), Alone(q)
    masking.target_network = plain.target_network = Alone([[NAN] * 3] * 2)
    for agent in (masking, plain):
        assert agent.value(column(0, 1), action).tolist() == [[5.0], [-2.0]]


def test_dqn_takes_the_action_of_highest_value() -> None:
    agent = dqn(3)
    agent.network = Alone([[1.0, 5.0, 2.0], [-1.0, -3.0, -2.0]])
    assert agent.select_action(np.array([[0.0], [1.0]])).tolist() == [1, 0]


# --- targets


def test_bcqs_target_takes_the_online_mask_and_values_and_the_target_networks_value() -> None:
    agent = bcq(discount=0.5)
    # Online Q prefers action 1, which the online mask forbids; the target network's Q prefers
    # action 1 too and its imitation head would allow it alone.
    agent.network = Heads([[1.0, 100.0]], [log(0.99, 0.01)])
    agent.target_network = Heads([[1.0, 200.0]], [log(0.01, 0.99)])
    target = agent.target_value(column(0), column(0.0), column(1.0))
    assert target.tolist() == [[0.5]]


def test_bcqs_target_is_double_the_online_network_chooses_among_the_allowed() -> None:
    agent = bcq(3, discount=0.5)
    agent.network = Heads([[1.0, 2.0, 9.0]], [log(0.5, 0.49, 0.01)])
    agent.target_network = Heads([[8.0, 4.0, 6.0]])
    # Online: action 1 of the allowed 0 and 1, though the target network values 0 more: 0.5·4.
    assert agent.target_value(column(0), column(3.0), column(1.0)).tolist() == [[5.0]]


def test_threshold_0_is_double_dqn() -> None:
    agent = bcq(3, discount=0.5, threshold=0.0)
    agent.network = Heads([[1.0, 2.0, 9.0]], [[0.0, 0.0, -1000.0]])
    agent.target_network = Heads([[8.0, 4.0, 6.0]])
    assert agent.target_value(column(0), column(0.0), column(1.0)).tolist() == [[3.0]]


def test_dqns_target_is_the_target_networks_maximum() -> None:
    agent = dqn(3, discount=0.5)
    agent.network = Alone([[NAN, NAN, NAN]])
    agent.target_network = Alone([[8.0, 4.0, 6.0]])
    assert agent.target_value(column(0), column(1.0), column(1.0)).tolist() == [[5.0]]


@pytest.mark.parametrize("kind", ["BCQ", "DQN"])
def test_a_terminal_transitions_target_is_its_reward_and_rows_stay_apart(kind: str) -> None:
    agent = bcq(discount=0.5) if kind == "BCQ" else dqn(discount=0.5)
    stub = Heads if kind == "BCQ" else Alone
    agent.network = stub([[2.0, 1.0], [1.0, 6.0]])
    agent.target_network = stub([[2.0, 1.0], [1.0, 6.0]])
    target = agent.target_value(column(0, 1, 1), column(10.0, 20.0, 30.0), column(1.0, 1.0, 0.0))
    assert target.tolist() == [[11.0], [23.0], [30.0]]
    assert not target.requires_grad


# --- losses


@pytest.mark.parametrize("agent", [bcq(3), dqn(3)], ids=["BCQ", "DQN"])
def test_the_value_loss_is_hubers_of_the_taken_action(agent: Any) -> None:
    q = torch.tensor([[9.0, 0.5, 9.0], [9.0, 9.0, 4.0]])
    # Errors 0.5 and 3: ½·0.5² = 0.125 and 3 − ½ = 2.5; their mean.
    loss = agent.value_loss(q, torch.tensor([[1], [2]]), column(0.0, 1.0))
    assert loss.item() == pytest.approx((0.125 + 2.5) / 2)


@pytest.mark.parametrize("agent", [bcq(2), variant.BC.BC((1,), 2, "cpu")], ids=["BCQ", "BC"])
def test_the_imitation_loss_is_the_negative_log_likelihood_and_a_hundredth_of_squared_logits(
    agent: Any,
) -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [2.0, 2.0]])
    nll = (-math.log(3 / 4) - math.log(1 / 2)) / 2
    squares = (0 + math.log(3.0) ** 2 + 4 + 4) / 4
    loss = agent.imitation_loss(logits, torch.tensor([[1], [0]]))
    assert loss.item() == pytest.approx(nll + 0.01 * squares, rel=1e-6)


def test_before_training_some_imitation_logits_are_negative() -> None:
    network = variant.BCQ.Network((8,), 4)
    logits = network(torch.randn(100, 8))[1]
    assert 0.2 < float((logits < 0).float().mean()) < 0.8


def test_bcqs_heads_share_the_trunk_on_atari_and_nothing_on_vectors() -> None:
    frames, vectors = variant.BCQ.Network((4, 84, 84), 4), variant.BCQ.Network((8,), 4)
    assert [tuple(p.shape) for p in frames.features.parameters()][::2] == [
        (32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)
    ]  # fmt: skip
    assert not list(vectors.features.parameters())
    frames(torch.zeros(1, 4, 84, 84))[1].sum().backward()
    assert all(p.grad is not None for p in frames.features.parameters())
    assert all(p.grad is None for p in frames.value.parameters())


def test_frames_are_read_as_0_to_255_whatever_their_type_and_layout() -> None:
    network = variant.BCQ.Network((4, 84, 84), 4)
    whole = torch.randint(0, 256, (2, 5, 84, 84), dtype=torch.uint8)
    view = whole[:, 1:]
    expected = network(view.float().contiguous())[0]
    for state in (view, view.contiguous(), view.contiguous(memory_format=torch.channels_last)):
        torch.testing.assert_close(network(state)[0], expected)
    pixels = variant.utils.as_input(view)
    assert torch.equal(pixels, view.float())
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert variant.utils.as_input(pixels) is pixels


def test_a_head_computes_with_its_own_parameters_after_a_copy_a_move_and_a_load() -> None:
    head = variant.utils.head((8,), 4)
    other = deepcopy(head).to(torch.float64)
    assert all(a is b for a, b in zip(sum(other.layers, ()), other.parameters(), strict=True))
    assert not {*map(id, head.parameters())} & {*map(id, other.parameters())}
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(1)
    other.load_state_dict(head.state_dict())
    states = torch.randn(5, 8)
    torch.testing.assert_close(other(states.double()).float(), head(states))


# --- one update


def random_batch(actions: int = 3) -> Any:
    """Eight transitions with states of two numbers."""
    return Batch(
        torch.randn(8, 2), torch.randint(actions, (8, 1)), torch.randn(8, 2), torch.randn(8, 1),
        (torch.rand(8, 1) > 0.3).float(),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["BCQ", "DQN", "BC"])
def test_an_update_is_one_adam_step_on_the_sum_of_the_losses(name: str) -> None:
    kind = getattr(getattr(variant, name), name)
    torch.manual_seed(1)
    agent = kind((2,), 3, "cpu", lr=1e-2, adam_eps=1e-5)
    torch.manual_seed(1)
    other = kind((2,), 3, "cpu", lr=1e-2, adam_eps=1e-5)
    optimizer = torch.optim.Adam(other.network.parameters(), lr=1e-2, eps=1e-5)
    for _ in range(3):
        batch = random_batch()
        agent.update(batch)
        loss: Any = 0
        if name != "BC":
            target = other.target_value(batch.next_state, batch.reward, batch.not_done)
        if name == "BCQ":
            q, logits = other.network(batch.state)
            loss = other.value_loss(q, batch.action, target)
            loss = loss + other.imitation_loss(logits, batch.action)
        elif name == "DQN":
            loss = other.value_loss(other.network(batch.state), batch.action, target)
        else:
            loss = other.imitation_loss(other.network(batch.state), batch.action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for ours, theirs in zip(agent.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_tau_1_is_an_exact_copy() -> None:
    agent = dqn(tau=1.0, target_update_freq=1, lr=0.1)
    agent.update(
        Batch(column(0.3), torch.zeros(1, 1).long(), column(0.1), column(1.0), column(1.0))
    )
    pairs = zip(agent.network.parameters(), agent.target_network.parameters(), strict=True)
    assert all(torch.equal(weight, target) for weight, target in pairs)


def test_after_loading_the_target_is_updated_when_the_saved_agents_would_be(tmp_path: Any) -> None:
    agent = dqn(target_update_freq=3)
    batch = Batch(column(0.3), torch.zeros(1, 1).long(), column(0.1), column(1.0), column(1.0))
    agent.update(batch), agent.update(batch)
    agent.save(tmp_path / "agent.pt")
    again = dqn(target_update_freq=3)
    again.load(tmp_path / "agent.pt")
    for one in (agent, again):
        one.update(batch)
        pairs = zip(one.network.parameters(), one.target_network.parameters(), strict=True)
        assert all(torch.equal(weight, target) for weight, target in pairs)
