"""What every algorithm of continuous_BCQ/main.py promises, whatever it learns."""

import inspect
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import each_with_the_next, fill, load_variant, random_batch, same_weights, weights
from toy_envs import Reach

from common.environment import rollout
from common.errors import InputError

variant = load_variant("continuous_BCQ")
ALGORITHMS: dict[str, Any] = variant.main.ALGORITHMS
STATE_DIM, ACTION_DIM = 3, 2

# Fujimoto, Meger, Precup 2019, supplementary D, and the released code where it differs: the paper
# has n = 10 for acting too. A new algorithm's table is typed out here.
PAPER: dict[str, dict[str, Any]] = {
    "BCQ": {
        "discount": 0.99,
        "tau": 0.005,
        "lmbda": 0.75,
        "phi": 0.05,
        "target_candidates": 10,
        "acting_candidates": 100,
    },
    "DDPG": {"discount": 0.99, "tau": 0.005},
    "BC": {},
    "VAE_BC": {},
    "DQN": {"discount": 0.99, "tau": 0.005, "bins": 10},
    # Fujimoto and Gu 2021, table of hyper-parameters.
    "TD3_BC": {"discount": 0.99, "tau": 0.005, "alpha": 2.5, "normalize": True},
    # Kumar et al. 2019, appendix, and the commands on the released code's page (Hopper).
    "BEAR": {
        "discount": 0.99,
        "tau": 0.005,
        "lmbda": 0.75,
        "lagrange_thresh": 10.0,
        "num_samples_match": 5,
        "mmd_sigma": 10.0,
        "kernel_type": "laplacian",
        "mode": "auto",
        "warm_up": 20_000,
    },
}
BATCH_SIZE = dict.fromkeys(PAPER, 100) | {"TD3_BC": 256}
# Differs from the paper's DDPG: actor 1e-4 and critic weight decay 1e-2 there.
LEARNING_RATE = dict.fromkeys(PAPER, 1e-3) | {"TD3_BC": 3e-4}

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def make(algorithm: str, max_action: float = 1.0, seed: int = 0, **options: Any) -> Any:
    """A fresh agent."""
    torch.manual_seed(seed)
    return ALGORITHMS[algorithm](STATE_DIM, ACTION_DIM, max_action, "cpu", **options)


def make_buffer(max_action: float = 1.0, rows: int = 50) -> Any:
    """A small batch in a replay buffer."""
    buffer = variant.utils.ReplayBuffer(STATE_DIM, ACTION_DIM, "cpu", rows)
    return fill(buffer, random_batch(rows, STATE_DIM, ACTION_DIM, max_action))


def states(count: int) -> np.ndarray:
    """(count, S)."""
    return np.random.default_rng(4).normal(size=(count, STATE_DIM))


# --- the paper's values


@every_algorithm
def test_constructor_defaults_are_the_papers(algorithm: str) -> None:
    assert algorithm in PAPER, f"type {algorithm}'s hyper-parameters out in PAPER"
    parameters = inspect.signature(ALGORITHMS[algorithm]).parameters
    assert list(parameters)[:4] == ["state_dim", "action_dim", "max_action", "device"]
    defaults = {name: p.default for name, p in list(parameters.items())[4:]}
    assert defaults == PAPER[algorithm]
    assert ALGORITHMS[algorithm].batch_size == BATCH_SIZE[algorithm]


@every_algorithm
def test_flag_defaults_are_the_papers_and_every_hyper_parameter_has_a_flag(algorithm: str) -> None:
    flags = vars(variant.main.parse_args([]))
    assert {name: flags.get(name) for name in PAPER[algorithm]} == PAPER[algorithm]
    assert variant.main.parse_args(["--algorithm", algorithm]).batch_size == BATCH_SIZE[algorithm]
    for stage in ["--train_behavioral", "--generate_buffer"]:  # DDPG's, whatever stage 3 would do
        flags = vars(variant.main.parse_args(["--algorithm", algorithm, stage]))
        assert flags["batch_size"] == BATCH_SIZE["DDPG"]
    flags = vars(variant.main.parse_args(["--algorithm", algorithm, "--batch_size", "7"]))
    assert flags["batch_size"] == 7


def test_the_other_flag_defaults_are_the_papers() -> None:
    flags = vars(variant.main.parse_args([]))
    table = {
        "algorithm": "BCQ",
        "env": "Hopper-v4",
        "seed": 0,
        "buffer_name": "Robust",
        "eval_freq": 5_000,
        "eval_episodes": 10,
        "max_timesteps": 1_000_000,
        "start_timesteps": 25_000,
        "rand_action_p": 0.3,
        "gaussian_std": 0.3,
        "batch_size": BATCH_SIZE["BCQ"],
        "device": "auto",
        "threads": None,
        "output_dir": None,
        "train_behavioral": False,
        "generate_buffer": False,
        "save_buffer": False,
        "overwrite": False,
        "tensorboard": False,
    }
    assert {name: flags[name] for name in table} == table


@every_algorithm
def test_a_name_means_one_thing(algorithm: str) -> None:
    kind = ALGORITHMS[algorithm]
    assert kind.__name__ == kind.__module__ == algorithm
    assert (Path(variant.main.__file__).parent / f"{algorithm}.py").exists()


# --- acting


@every_algorithm
@pytest.mark.parametrize("max_action", [1.0, 2.0])
def test_actions_have_the_states_shape_and_lie_in_the_bounds(
    algorithm: str, max_action: float
) -> None:
    agent = make(algorithm, max_action)
    one, many = agent.select_action(states(1)[0]), agent.select_action(states(5))
    assert (one.shape, many.shape) == ((ACTION_DIM,), (5, ACTION_DIM))
    assert one.dtype == many.dtype == np.float32
    far = agent.select_action(1e4 * states(50))  # where a bare output would be far outside
    assert np.isfinite(far).all()
    assert np.abs(far).max() <= max_action
    assert np.abs(far).max() > 0.5 * max_action  # scaled to the bounds, not to [-1, 1] or less


@every_algorithm
def test_acting_changes_no_weight(algorithm: str) -> None:
    agent = make(algorithm)
    before = weights(agent)
    agent.select_action(states(5))
    assert same_weights(before, weights(agent))
    networks = [part for part in vars(agent).values() if isinstance(part, torch.nn.Module)]
    assert all(weight.grad is None for part in networks for weight in part.parameters())


# --- learning


@every_algorithm
@pytest.mark.parametrize("max_action", [1.0, 2.0])
def test_figures_are_finite_and_every_network_learns(algorithm: str, max_action: float) -> None:
    agent = make(algorithm, max_action)
    before = weights(agent)
    figures = agent.train(make_buffer(max_action), 5, 16)
    assert figures and all(math.isfinite(value) for value in figures.values())
    after = weights(agent)
    unmoved = [key for key in after if torch.equal(before[key], after[key])]
    assert not unmoved
    assert all(torch.isfinite(value).all() for value in after.values())


@every_algorithm
def test_train_is_that_many_updates_on_sampled_batches(algorithm: str) -> None:
    buffer = make_buffer()
    trained, updated = make(algorithm), make(algorithm)
    torch.manual_seed(9)
    figures = trained.train(buffer, 3, 7)
    assert updated.train(buffer, 0, 7) == {}  # what is done once, before the first update
    torch.manual_seed(9)
    each = [updated.update(buffer.sample(7)) for _ in range(3)]
    assert same_weights(weights(trained), weights(updated))
    assert set(figures) == {name for one in each for name in one}
    assert ("q" in figures) == hasattr(trained, "value")
    for name, value in figures.items():
        given = [float(one[name]) for one in each if name in one]
        assert value == pytest.approx(float(np.mean(given)), rel=1e-5)


@every_algorithm
def test_update_alone_learns_as_well(algorithm: str) -> None:
    agent, before = make(algorithm), weights(make(algorithm))
    for _ in range(2):
        figures = agent.update(random_batch(8, STATE_DIM, ACTION_DIM))
        assert all(math.isfinite(value) for value in figures.values())
    after = weights(agent)
    learned = [key for key in after if key.startswith(("actor.", "critic.", "vae.", "network."))]
    assert learned and not [key for key in learned if torch.equal(before[key], after[key])]


@every_algorithm
def test_a_batch_of_one_transition_is_learned_from(algorithm: str) -> None:
    agent = make(algorithm)
    figures = agent.train(make_buffer(rows=1), 4, 1)
    assert all(math.isfinite(value) for value in figures.values())
    assert all(torch.isfinite(value).all() for value in weights(agent).values())


@every_algorithm
def test_the_value_of_a_state_and_an_action_is_one_number_without_gradient(algorithm: str) -> None:
    agent, batch = make(algorithm), random_batch(5, STATE_DIM, ACTION_DIM)
    if algorithm in ("BC", "VAE_BC"):  # cloning values nothing
        assert not hasattr(agent, "value")
        return
    agent.train(make_buffer(), 2, 8)
    generator = torch.get_rng_state()
    value = agent.value(batch.state, batch.action)
    assert value.shape == (5, 1) and not value.requires_grad
    assert torch.equal(generator, torch.get_rng_state())
    for row in range(5):
        alone = agent.value(batch.state[row : row + 1], batch.action[row : row + 1])
        torch.testing.assert_close(alone, value[row : row + 1])


@every_algorithm
def test_the_same_seed_twice_gives_the_same_weights_and_another_seed_others(algorithm: str) -> None:
    ends = []
    for seed in [3, 3, 4]:
        agent = make(algorithm, seed=seed)
        agent.train(make_buffer(), 4, 8)
        ends.append(weights(agent))
    assert same_weights(ends[0], ends[1])
    assert not same_weights(ends[0], ends[2])


# --- saving


@every_algorithm
def test_a_loaded_agent_acts_and_learns_as_the_saved_one(algorithm: str, tmp_path: Path) -> None:
    saved, loaded = make(algorithm, seed=1), make(algorithm, seed=2)
    buffer = make_buffer()
    saved.train(buffer, 3, 8)
    saved.save(tmp_path / "agent.pt")
    loaded.load(tmp_path / "agent.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["agent.pt"]
    actions, ends = [], []
    for agent in [saved, loaded]:
        torch.manual_seed(5)
        actions.append(agent.select_action(states(4)))
        agent.train(buffer, 3, 8)
        ends.append(weights(agent))
    assert np.array_equal(*actions)
    assert same_weights(*ends)


@every_algorithm
def test_two_agents_given_one_state_learn_each_on_its_own(algorithm: str) -> None:
    one, other = make(algorithm, seed=1), make(algorithm, seed=2)
    buffer = make_buffer()
    one.train(buffer, 3, 8)
    other.load_state_dict(one.state_dict())
    ends = []
    for agent in [one, other]:
        torch.manual_seed(5)
        agent.train(buffer, 3, 8)
        ends.append(weights(agent))
    assert same_weights(*ends)


@every_algorithm
def test_a_model_file_is_plain_tensors_that_torch_reads_safely(
    algorithm: str, tmp_path: Path
) -> None:
    make(algorithm).save(tmp_path / "agent.pt")
    torch.load(tmp_path / "agent.pt", weights_only=True)


@every_algorithm
def test_a_missing_or_damaged_model_file_is_refused(algorithm: str, tmp_path: Path) -> None:
    agent = make(algorithm)
    before = weights(agent)
    path = tmp_path / "agent.pt"
    with pytest.raises(InputError, match=r"agent\.pt does not exist"):
        agent.load(path)
    agent.save(path)
    whole = path.read_bytes()
    for content in [b"", b"no agent", whole[: len(whole) // 2]]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"agent\.pt is damaged"):
            agent.load(path)
    torch.save(torch.zeros(3), path)
    with pytest.raises(InputError, match=r"agent\.pt holds no saved agent"):
        agent.load(path)
    assert same_weights(before, weights(agent))


@every_algorithm
def test_a_model_of_another_environment_is_refused(algorithm: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    ALGORITHMS[algorithm](STATE_DIM + 1, ACTION_DIM, 1.0, "cpu").save(path)
    agent = make(algorithm)
    with pytest.raises(InputError, match="does not fit this environment or algorithm"):
        agent.load(path)


@pytest.mark.parametrize(("algorithm", "other"), each_with_the_next(ALGORITHMS))
def test_a_model_of_another_algorithm_is_refused(
    algorithm: str, other: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent.pt"
    make(other).save(path)
    agent = make(algorithm)
    before = weights(agent)
    with pytest.raises(InputError, match="algorithm"):
        agent.load(path)
    assert same_weights(before, weights(agent))


@every_algorithm
def test_where_a_model_cannot_be_written_the_former_one_stays(
    algorithm: str, tmp_path: Path
) -> None:
    from conftest import largest_file, snapshot

    path = tmp_path / "agent.pt"
    path.write_bytes(b"the former one")
    with largest_file(4096), pytest.raises(InputError, match=r"cannot write .*agent\.pt"):
        make(algorithm).save(path)
    assert snapshot(tmp_path) == {"agent.pt": b"the former one"}


# --- evaluating


class ThreeStates(Reach):
    """Reach with the contract's number of states, ten steps an episode."""

    def __init__(self) -> None:
        self.observation_space = variant.main.gym.spaces.Box(-1, 1, (STATE_DIM,), np.float32)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        state, info = super().reset(**options)
        self.steps = 0
        return np.append(state, 0).astype(np.float32), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, reward, _, _, info = super().step(action)
        self.steps += 1
        state = np.append(state, self.steps / 10).astype(np.float32)
        return state, reward, False, self.steps == 10, info


def random_state() -> tuple[Any, ...]:
    """Where all three global generators stand."""
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]


@every_algorithm
def test_evaluating_changes_neither_weights_nor_any_generator(algorithm: str) -> None:
    agent = make(algorithm)
    agent.train(make_buffer(), 2, 8)
    before, generators = weights(agent), random_state()
    first = rollout.evaluate(agent.select_action, [ThreeStates() for _ in range(3)], seed=0)
    assert same_weights(before, weights(agent))
    assert generators == random_state()
    assert rollout.evaluate(agent.select_action, [ThreeStates() for _ in range(3)], seed=0) == first


@every_algorithm
def test_evaluating_in_between_does_not_change_what_is_learned(algorithm: str) -> None:
    ends = []
    for evaluations in [0, 3]:
        agent = make(algorithm)
        buffer = make_buffer()
        for _ in range(3):
            agent.train(buffer, 2, 8)
            for _ in range(evaluations):
                rollout.evaluate(agent.select_action, [ThreeStates() for _ in range(2)], seed=0)
        ends.append(weights(agent))
    assert same_weights(*ends)
