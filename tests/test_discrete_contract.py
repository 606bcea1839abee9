"""What every algorithm of discrete_BCQ/main.py promises: vectors, Atari, small images."""

import inspect
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import each_with_the_next, load_variant, same_weights, weights, without_digests

from common.errors import InputError

variant = load_variant("discrete_BCQ")
ALGORITHMS: dict[str, Any] = variant.main.ALGORITHMS
ACTIONS = 3
SHAPES = {"vectors": (5,), "atari": (4, 84, 84), "images": (1, 6, 5, 2)}

# arXiv 1910.01708, appendix, for Atari; `tau` 1 is the full copy every 8000 updates.
# QRDQN's and REM's own are those of their papers; KL_Control's are chosen (FIDELITY.md).
SHARED = {
    "discount": 0.99,
    "lr": 6.25e-5,
    "adam_eps": 1.5e-4,
    "tau": 1.0,
    "target_update_freq": 8000,
}
PAPER: dict[str, dict[str, float]] = {
    "BCQ": SHARED | {"threshold": 0.3},
    "DQN": SHARED,
    "QRDQN": SHARED | {"quantiles": 200, "kappa": 1.0},
    "REM": SHARED | {"heads": 200},
    "KL_Control": SHARED | {"kl_weight": 1.0, "masks": 5, "dropout": 0.1},
    "BC": {"lr": 6.25e-5, "adam_eps": 1.5e-4},
}

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
every_kind = pytest.mark.parametrize("kind", SHAPES)


def make(algorithm: str, kind: str = "vectors", seed: int = 0, **options: Any) -> Any:
    """A fresh agent that learns fast."""
    torch.manual_seed(seed)
    options = {"lr": 1e-3} | options
    return ALGORITHMS[algorithm](SHAPES[kind], ACTIONS, "cpu", **options)


def states(kind: str, count: int) -> np.ndarray:
    """States as the environments give them."""
    draw = np.random.default_rng(3)
    if kind != "vectors":
        return draw.integers(0, 256, (count, *SHAPES[kind]), dtype=np.uint8)
    return draw.normal(size=(count, *SHAPES[kind])).astype(np.float32)


def make_buffer(kind: str, rows: int = 30) -> Any:
    """A small batch in the buffer of this kind."""
    if kind != "vectors":
        buffer = variant.utils.FrameBuffer(SHAPES[kind], "cpu", rows)
    else:
        buffer = variant.utils.ReplayBuffer(SHAPES[kind][0], "cpu", rows)
    all_states, draw = states(kind, rows + 1), np.random.default_rng(5)
    for row in range(rows):
        action, reward = int(draw.integers(ACTIONS)), float(draw.normal())
        terminated = bool(draw.random() < 0.2)
        buffer.add(all_states[row], action, all_states[row + 1], reward, terminated, False)
    return buffer


@every_algorithm
def test_constructor_defaults_are_the_papers(algorithm: str) -> None:
    parameters = inspect.signature(ALGORITHMS[algorithm]).parameters
    assert list(parameters)[:3] == ["state_shape", "num_actions", "device"]
    assert {n: p.default for n, p in list(parameters.items())[3:]} == PAPER[algorithm]
    assert ALGORITHMS[algorithm].batch_size == 32


@every_algorithm
def test_a_name_means_one_thing(algorithm: str) -> None:
    kind = ALGORITHMS[algorithm]
    assert kind.__name__ == kind.__module__ == algorithm
    assert (Path(variant.main.__file__).parent / f"{algorithm}.py").exists()


@every_kind
@every_algorithm
def test_one_state_gives_one_action_and_many_give_as_many_the_same(
    algorithm: str, kind: str
) -> None:
    agent = make(algorithm, kind)
    before = weights(agent)
    several = states(kind, 4)
    many = agent.select_action(several)
    assert many.shape == (4,) and many.dtype == np.int64 and set(many) <= set(range(ACTIONS))
    one = [agent.select_action(state) for state in several]
    assert one == many.tolist() and all(type(action) is int for action in one)
    assert same_weights(before, weights(agent))


@every_kind
@every_algorithm
def test_figures_are_finite_and_the_network_learns(algorithm: str, kind: str) -> None:
    agent = make(algorithm, kind)
    before = weights(agent)
    figures = agent.train(make_buffer(kind), 2, 8)
    assert figures and all(math.isfinite(value) for value in figures.values())
    after = weights(agent)
    learned = [name for name in after if name.startswith("network.")]
    assert learned and not any(torch.equal(before[name], after[name]) for name in learned)


@every_algorithm
def test_train_is_that_many_updates_on_sampled_batches(algorithm: str) -> None:
    buffer, trained, updated = make_buffer("vectors"), make(algorithm), make(algorithm)
    torch.manual_seed(9)
    figures = trained.train(buffer, 3, 7)
    torch.manual_seed(9)
    each = [updated.update(buffer.sample(7)) for _ in range(3)]
    assert same_weights(weights(trained), weights(updated))
    for name, value in figures.items():
        assert value == pytest.approx(float(np.mean([float(one[name]) for one in each])), rel=1e-5)


@every_kind
@every_algorithm
def test_the_same_seed_twice_gives_the_same_weights_and_another_others(
    algorithm: str, kind: str
) -> None:
    ends = []
    for seed in [3, 3, 4]:
        agent = make(algorithm, kind, seed)
        agent.train(make_buffer(kind), 2, 8)
        ends.append(weights(agent))
    assert same_weights(ends[0], ends[1]) and not same_weights(ends[0], ends[2])


@every_kind
@every_algorithm
def test_a_loaded_agent_acts_and_learns_as_the_saved_one(
    algorithm: str, kind: str, tmp_path: Path
) -> None:
    options = {"target_update_freq": 3, "tau": 0.5} if algorithm != "BC" else {}
    saved, loaded = make(algorithm, kind, 1, **options), make(algorithm, kind, 2, **options)
    buffer = make_buffer(kind)
    saved.train(buffer, 2, 8)
    saved.save(tmp_path / "agent.pt")
    torch.load(tmp_path / "agent.pt", weights_only=True)
    loaded.load(tmp_path / "agent.pt")
    actions, ends = [], []
    for agent in (saved, loaded):
        torch.manual_seed(5)
        actions.append(agent.select_action(states(kind, 4)).tolist())
        agent.train(buffer, 2, 8)
        ends.append(weights(agent))
    assert actions[0] == actions[1] and same_weights(*ends)


@pytest.mark.parametrize(("algorithm", "other"), each_with_the_next(ALGORITHMS))
def test_a_model_of_another_algorithm_is_refused_and_changes_nothing(
    algorithm: str, other: str, tmp_path: Path
) -> None:
    make(other).save(tmp_path / "agent.pt")
    agent = make(algorithm)
    before = weights(agent)
    with pytest.raises(InputError, match="algorithm"):
        agent.load(tmp_path / "agent.pt")
    assert same_weights(before, weights(agent))


@every_algorithm
def test_a_model_of_another_environment_is_refused(algorithm: str, tmp_path: Path) -> None:
    ALGORITHMS[algorithm]((6,), ACTIONS, "cpu").save(tmp_path / "agent.pt")
    with pytest.raises(InputError, match="does not fit this environment or algorithm"):
        make(algorithm).load(tmp_path / "agent.pt")


@every_kind
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "BC"])
def test_values_are_one_number_a_pair_and_leave_the_agent_as_it_was(
    algorithm: str, kind: str
) -> None:
    agent, before = make(algorithm, kind), torch.get_rng_state()
    pairs = make_buffer(kind).rows(range(6))
    values = agent.value(pairs.state, pairs.action)
    assert values.shape == (6, 1) and values.dtype == torch.float32 and not values.requires_grad
    for row in range(6):
        one = agent.value(pairs.state[row : row + 1], pairs.action[row : row + 1])
        torch.testing.assert_close(values[row : row + 1], one, rtol=1e-4, atol=1e-5)
    assert torch.equal(before, torch.get_rng_state())
    # Of the best action no other pair of the state is worth more; KL_Control's best is by Ψ.
    best = torch.as_tensor(agent.select_action(pairs.state.numpy())).reshape(-1, 1)
    if algorithm in {"DQN", "QRDQN", "REM"}:
        every = [agent.value(pairs.state, torch.full_like(best, a)) for a in range(ACTIONS)]
        assert torch.equal(agent.value(pairs.state, best), torch.stack(every).amax(0))


@every_algorithm
def test_learning_draws_from_torch_alone(algorithm: str) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    agent = make(algorithm)
    agent.train(make_buffer("vectors"), 3, 8)
    agent.select_action(states("vectors", 2))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


def test_vector_actions_are_whole_numbers_and_other_numbers_refused(tmp_path: Path) -> None:
    buffer = make_buffer("vectors")
    buffer.save(tmp_path / "b")
    assert np.load(tmp_path / "b_action.npy").dtype == np.int64
    again = variant.utils.ReplayBuffer(5, "cpu", 1)
    again.load(tmp_path / "b")
    for one, other in zip(buffer.rows(range(30)), again.rows(range(30)), strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    without_digests(tmp_path / "b")
    np.save(tmp_path / "b_action.npy", np.full((30, 1), 0.5))
    with pytest.raises(InputError, match=r"b_action\.npy: row 0, column 0 is 0\.5"):
        again.load(tmp_path / "b")


def test_a_batch_of_frames_is_refused_where_vectors_are_needed_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    make_buffer("atari").save(tmp_path / "frames")
    make_buffer("vectors").save(tmp_path / "vectors")
    with pytest.raises(InputError, match=r"frames_replay_info\.npy belongs to a batch of frames"):
        variant.utils.ReplayBuffer(5, "cpu", 1).load(tmp_path / "frames")
    with pytest.raises(InputError, match=r"vectors_state\.npy holds vector states"):
        variant.utils.FrameBuffer((4, 84, 84), "cpu", 1).load(tmp_path / "vectors")
