"""The authors' code and ours, on the same batches from the same seed, give the same numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import load_variant
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-5
NETWORKS = {
    "BCQ": {"init": ["actor", "critic", "vae"],
            "final": ["actor", "critic", "vae", "actor_target", "critic_target"]},
    "DDPG": {"init": ["actor", "critic"],
             "final": ["actor", "critic", "actor_target", "critic_target"]},
    "TD3_BC": {"init": ["actor", "critic"],
               "final": ["actor", "critic", "actor_target", "critic_target"]},
}  # fmt: skip
BEAR_FLAGS = load_variant("continuous_BCQ").BEAR.BEAR.FLAGS


def summary(parameter: Tensor) -> np.ndarray:
    """[sum, L2 norm, first six values], padded with 0, as the golden files hold it."""
    flat = parameter.detach().double().flatten()
    first = torch.zeros(6, dtype=torch.float64)
    first[: min(6, len(flat))] = flat[:6]
    return torch.cat([flat.sum()[None], flat.norm()[None], first]).numpy()


def scales(expected: np.ndarray, size: int) -> np.ndarray:
    """What 1e-5 is relative to: the entry itself, or what its tensor's entries typically are.

    A value near zero (a bias that has hardly moved) is held to 1e-5 of the tensor's root mean
    square, and a sum whose terms cancel to 1e-5 of the L2 norm: float32 rounding is of that size.
    """
    norm = expected[1]
    typical = np.full(8, norm / np.sqrt(size))
    typical[0] = norm
    return np.maximum(np.abs(expected), typical)


def worst_error(agent: Any, golden: Any, when: str, networks: list[str]) -> float:
    """The largest relative difference; each golden parameter must have its counterpart."""
    worst = 0.0
    for name in networks:
        parameters = list(getattr(agent, name).parameters())
        keys = sorted(key for key in golden if key.startswith(f"{when}/{name}/"))
        assert len(parameters) == len(keys) > 0
        for parameter, key in zip(parameters, keys, strict=True):
            expected = golden[key].astype(np.float64)
            error = np.abs(summary(parameter) - expected) / scales(expected, parameter.numel())
            worst = max(worst, float(error.max()))
    return worst


def options(algorithm: str, meta: dict[str, Any]) -> dict[str, Any]:
    """BEAR's golden run has settings of its own; the others have our defaults (see below)."""
    return {name: meta[name] for name in meta if name in BEAR_FLAGS and algorithm == "BEAR"}


def replay(algorithm: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The agent before its first update and its golden file, batch and sizes."""
    variant = load_variant("continuous_BCQ")
    golden = np.load(GOLDEN / f"continuous_{algorithm}_hopper.npz")
    meta = json.loads(str(golden["meta"]))
    columns = [torch.as_tensor(golden[name]) for name in variant.utils.Batch._fields]
    torch.manual_seed(meta["seed"])
    agent = variant.main.ALGORITHMS[algorithm](
        meta["state_dim"], meta["action_dim"], meta["max_action"], "cpu", **options(algorithm, meta)
    )
    batches = [
        variant.utils.Batch(*(column[torch.as_tensor(rows)] for column in columns))
        for rows in golden["index"]
    ]
    return agent, golden, batches, meta


@pytest.mark.parametrize("algorithm", NETWORKS)
def test_initial_weights_are_the_authors(algorithm: str) -> None:
    agent, golden, _, _ = replay(algorithm)
    assert worst_error(agent, golden, "init", NETWORKS[algorithm]["init"]) < 1e-6


@pytest.mark.parametrize("algorithm", NETWORKS)
def test_weights_and_actions_after_twenty_updates_are_the_authors(algorithm: str) -> None:
    agent, golden, batches, meta = replay(algorithm)
    assert len(batches) == meta["steps"] == 20
    for batch in batches:
        agent.update(batch)
    assert worst_error(agent, golden, "final", NETWORKS[algorithm]["final"]) < TOLERANCE

    if "select_seed" in meta:
        torch.manual_seed(meta["select_seed"])
    states, expected = golden["state"], golden["selected_action"]
    for i in range(len(expected)):
        chosen = agent.select_action(states[i])
        assert chosen.shape == expected[i].shape
        np.testing.assert_allclose(chosen, expected[i], rtol=TOLERANCE, atol=TOLERANCE)


def test_bears_weights_after_warm_up_and_fifteen_updates_more_are_the_authors() -> None:
    agent, golden, batches, meta = replay("BEAR")
    assert meta["warm_up"] == 15 and len(batches) == meta["steps"] == 30
    assert worst_error(agent, golden, "init", ["actor", "critic", "vae"]) < 1e-6
    for batch in batches:
        agent.update(batch)
    followers = ["critic", "vae", "critic_target", "actor_target"]
    assert worst_error(agent, golden, "final", followers) < TOLERANCE
    # Where the samples agree the MMD is the root of a number near zero, which enlarges rounding.
    assert worst_error(agent, golden, "final", ["actor"]) < 3e-4
    assert agent.multiplier.log_alpha.item() == pytest.approx(
        golden["final/log_alpha"], rel=TOLERANCE
    )


def test_hyper_parameters_of_the_golden_runs_are_our_defaults() -> None:
    for algorithm in NETWORKS:
        agent, _, _, meta = replay(algorithm)
        assert (agent.discount, agent.tau) == (meta["discount"], meta["tau"])
        if algorithm == "BCQ":
            assert (agent.lmbda, agent.actor.phi) == (meta["lmbda"], meta["phi"])
        if algorithm == "TD3_BC":
            constants = load_variant("continuous_BCQ").TD3_BC
            assert agent.alpha == meta["alpha"]
            assert meta["policy_noise"] == constants.POLICY_NOISE
            assert meta["noise_clip"] == constants.NOISE_CLIP
            assert meta["policy_freq"] == constants.POLICY_FREQ


def test_the_comparison_notices_a_relative_error_of_two_hundred_thousandths() -> None:
    agent, golden, _, _ = replay("DDPG")
    with torch.no_grad():
        next(agent.critic.parameters()).mul_(1 + 2e-5)
    assert worst_error(agent, golden, "init", ["critic"]) > TOLERANCE
