"""--precision bf16: large products in bfloat16, all else as it was; float32 is untouched."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_golden as golden
import torch
import toy_envs  # noqa: F401 (registers)
from conftest import Outcome, done, load_variant, run_main, weights
from kills import differing
from test_resume import stopping
from torch import nn

from common.data.replay import Batch
from common.errors import InputError
from common.networks import Layers, mlp
from common.precision import use_precision

CONTINUOUS, DISCRETE = load_variant("continuous_BCQ"), load_variant("discrete_BCQ")
GOLDEN_TOLERANCE = 0.1  # relative; 20 updates of bfloat16's 8 bits. Weights that stay: 0.7 to 1.2


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any processor computes in bfloat16, if slowly."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})


def continuous_batch(rows: int) -> Batch:
    state, action, next_state, reward = (torch.randn(rows, width) for width in (11, 3, 11, 1))
    return Batch(state, action.tanh(), next_state, reward, torch.ones(rows, 1))


def frames_batch(rows: int) -> Batch:
    frames = torch.randint(0, 256, (rows, 5, 84, 84), dtype=torch.uint8)
    action = torch.randint(6, (rows, 1))
    return Batch(frames[:, :-1], action, frames[:, 1:], torch.randn(rows, 1), torch.ones(rows, 1))


CASES: dict[str, tuple[Callable[[], Any], Callable[[int], Batch]]] = {
    **{
        name: (lambda kind=kind: kind(11, 3, 1.0, "cpu"), continuous_batch)  # type: ignore[misc]
        for name, kind in CONTINUOUS.main.ALGORITHMS.items()
    },
    **{
        f"{name} on frames": (lambda kind=kind: kind((4, 84, 84), 6, "cpu"), frames_batch)  # type: ignore[misc]
        for name, kind in DISCRETE.main.ALGORITHMS.items()
    },
}
every_case = pytest.mark.parametrize("case", CASES)


def learned(case: str, precision: str | None, updates: int = 3) -> tuple[Any, dict[str, Any]]:
    """An agent after a few updates, from one seed, and the figures of the last."""
    make, batch = CASES[case]
    torch.manual_seed(0)
    agent = make()
    if precision:
        use_precision(agent, precision)
    for _ in range(updates):
        figures = agent.update(batch(type(agent).batch_size))
    return agent, figures


# --- the products


def test_a_large_product_is_of_rounded_numbers_and_a_narrow_one_of_whole_ones() -> None:
    network = mlp(3, [256, 256], 2)
    network.half_products = True
    x = torch.randn(256, 3)
    first, second, third = (layer for layer in network if isinstance(layer, nn.Linear))
    hidden = first(x).relu()
    rounded = [part.bfloat16().double() for part in (hidden, second.weight, second.bias)]
    product = rounded[0] @ rounded[1].T + rounded[2]
    hidden = product.bfloat16().float().relu()
    expected = third(hidden)
    torch.testing.assert_close(network(x), expected, rtol=0, atol=2e-3)
    assert not torch.allclose(network(x), third(second(first(x).relu()).relu()), atol=1e-6)
    # A state's last bits come in, and a value's go out.
    nearly = x * (1 + 2**-12)
    assert (network(x).bfloat16().float() != network(x)).any()
    assert (network(nearly) != network(x)).any()


def test_states_and_values_are_float32_however_wide_they_are() -> None:
    network, x = mlp(400, [300], 300), torch.randn(100, 400)
    whole = network(x)
    network.half_products = True
    assert torch.equal(network(x), whole)
    for ends in ("from_hidden", "to_hidden"):
        inner = mlp(400, [300], 300)
        inner.load_state_dict(network.state_dict())
        inner.half_products = True
        setattr(inner, ends, True)
        assert not torch.equal(inner(x), whole)


@pytest.mark.parametrize("rows", [1, 64])
def test_a_product_too_small_to_gain_is_float32s(rows: int) -> None:
    network = mlp(3, [256, 256], 2)
    x = torch.randn(rows, 3)
    whole = network(x)
    network.half_products = True
    assert torch.equal(network(x), whole)


def test_gradients_arrive_in_float32_and_near_those_of_float32() -> None:
    network, x = mlp(3, [300, 300], 2), torch.randn(100, 3)
    gradients = []
    for network.half_products in (False, True):
        loss = network(x).square().mean()
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    for whole, half in zip(*gradients, strict=True):
        assert half.dtype == torch.float32
        assert 0 < (half - whole).norm() < 0.02 * whole.norm()


def test_pixels_are_exact_and_the_trunk_near_float32s() -> None:
    assert torch.equal(torch.arange(256.0).bfloat16().float(), torch.arange(256.0))
    trunk, frames = DISCRETE.utils.Frames(), frames_batch(3).state
    whole = trunk(frames)
    trunk.half_products = True
    half = trunk(frames)
    assert half.dtype == torch.float32
    assert 0 < (half - whole).norm() < 0.02 * whole.norm()


# --- the learners


@every_case
def test_a_learner_in_bf16_keeps_its_numbers_in_float32_and_learns_nearly_the_same(
    case: str, able: None
) -> None:
    (whole, _), (half, figures) = learned(case, None), learned(case, "bf16")
    assert all(figure.dtype != torch.bfloat16 for figure in figures.values())
    one, other, moved = weights(whole), weights(half), False
    torch.manual_seed(0)
    start = weights(CASES[case][0]())
    for name, value in other.items():
        assert value.dtype == torch.float32
        travelled = (one[name] - start[name]).norm()
        assert (value - one[name]).norm() <= 0.5 * travelled + 1e-6
        moved |= bool((value != one[name]).any())
    assert moved
    for part in vars(half).values():
        if isinstance(part, torch.optim.Optimizer):
            for state in part.state.values():
                assert all(tensor.dtype == torch.float32 for tensor in state.values())


@every_case
def test_float32_asked_for_is_float32_by_default(case: str) -> None:
    (one, _), (other, _) = learned(case, None, 1), learned(case, "float32", 1)
    assert all(map(torch.equal, weights(one).values(), weights(other).values()))


@pytest.mark.parametrize("algorithm", ["BCQ", "BEAR"])
def test_critics_that_choose_among_candidates_are_float32s(algorithm: str, able: None) -> None:
    agent = CASES[algorithm][0]()
    state, action, *_ = continuous_batch(1000)
    networks = [agent.critic, agent.critic_target]
    for gradient in (False, True):
        with torch.set_grad_enabled(gradient):
            use_precision(agent, "float32")
            whole = [network(state, action) for network in networks]
            decoded = agent.vae.decode(state, torch.zeros(1000, 6))
            use_precision(agent, "bf16")
            for network, values in zip(networks, whole, strict=True):
                assert all(map(torch.equal, network(state, action), values))
            assert not torch.equal(agent.vae.decode(state, torch.zeros(1000, 6)), decoded)


def test_vectors_of_discrete_actions_are_too_small_to_gain(able: None) -> None:
    for kind in DISCRETE.main.ALGORITHMS.values():
        agent = use_precision(kind((8,), 4, "cpu"), "bf16")
        assert sum(isinstance(module, Layers) for module in agent.network.modules()) >= 1
        state = torch.randn(64, 8)
        half = agent.network(state)
        whole = use_precision(agent, "float32").network(state)
        for one, other in zip(half, whole, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("algorithm", golden.NETWORKS)
def test_weights_after_twenty_updates_are_near_the_authors(algorithm: str, able: None) -> None:
    agent, numbers, batches, _ = golden.replay(algorithm)
    use_precision(agent, "bf16")
    for batch in batches:
        agent.update(batch)
    error = golden.worst_error(agent, numbers, "final", golden.NETWORKS[algorithm]["final"])
    assert golden.TOLERANCE < error < GOLDEN_TOLERANCE


# --- the command line

SMALL = ["--threads", "1", "--eval_episodes", "1", "--env", "ToyReach-v0"]
LEARN = ["--max_timesteps", "12", "--eval_freq", "6", "--acting_candidates", "40"]
HALF = ["--precision", "bf16"]


def run(folder: Path, *argv: str) -> Outcome:
    return run_main(CONTINUOUS.main, *SMALL, *argv, "--output_dir", str(folder))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a batch."""
    folder = tmp_path_factory.mktemp("made")
    train = ["--train_behavioral", "--max_timesteps", "60", "--start_timesteps", "50"]
    done(run(folder, *train))
    done(run(folder, "--generate_buffer", "--max_timesteps", "120"))
    return folder


def test_a_stopped_run_in_bf16_goes_on_exactly_and_says_its_precision(
    made: Path, tmp_path: Path, able: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.run.offline.CHUNK", 2)
    folders = [shutil.copytree(made, tmp_path / name) for name in ("whole", "stopped")]
    done(run(folders[0], *LEARN, *HALF))
    with monkeypatch.context() as patched:
        stopping(patched, 4)
        assert run(folders[1], *LEARN, *HALF).status == 143
    refused = run(folders[1], *LEARN)
    assert refused.status == 1 and "precision bf16, not float32" in refused.err
    assert "precision          bf16" in done(run(folders[1], *LEARN, *HALF))
    assert differing(*folders) == []

    path = folders[1] / "results" / "BCQ_Robust_ToyReach-v0_0.json"
    record = json.loads(path.read_text())
    assert record["arguments"]["precision"] == "bf16"
    shown = done(run(folders[1], "--evaluate"))
    assert "precision          bf16" in shown
    assert f"mean {np.mean(record['returns'][-1]):.2f}" in shown
    assert "precision          float32" in done(
        run(folders[1], "--evaluate", "--precision", "float32")
    )
    # Elsewhere it plays all the same; going on, or a flag that says so, does not.
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True})
    shown = done(run(folders[1], "--evaluate"))
    assert "plays in float32, as it must here" in shown and "precision          float32" in shown
    assert run(folders[1], "--evaluate", "--precision", "bf16").status == 1


@pytest.mark.parametrize("variant", [CONTINUOUS, DISCRETE])
def test_a_processor_without_the_instructions_is_refused_in_one_line(
    variant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True})
    env = "ToyReach-v0" if variant is CONTINUOUS else "CartPole-v1"
    argv = ["--train_behavioral", "--env", env, "--threads", "1", "--output_dir", str(tmp_path)]
    outcome = run_main(variant.main, *argv, *HALF)
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1 and "AVX512_BF16" in outcome.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_other_devices_and_other_names_are_refused(able: None) -> None:
    agent = CASES["DDPG"][0]()
    with pytest.raises(InputError, match="--precision fp8 does not exist: float32 or bf16"):
        use_precision(agent, "fp8")
    agent.device = torch.device("cuda")
    with pytest.raises(InputError, match="for the CPU alone, not for cuda"):
        use_precision(agent, "bf16")
