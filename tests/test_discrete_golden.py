"""Discrete BCQ and DQN compute, update after update, what the authors' released code computes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import load_variant

GOLDEN = Path(__file__).resolve().parent / "golden"
variant = load_variant("discrete_BCQ")
ALGORITHMS = {"BCQ": variant.BCQ.BCQ, "DQN": variant.DQN.DQN}


def summaries(network: Any) -> Iterator[np.ndarray]:
    """[sum, norm, first six values] of each parameter, in order of creation."""
    for weight in network.parameters():
        # The authors' tensors lie channels first: flatten() gives that order whatever the layout.
        values = weight.detach().double().flatten()
        first = torch.zeros(6, dtype=torch.float64)
        first[: min(6, len(values))] = values[:6]
        yield torch.cat([values.sum().view(1), values.norm().view(1), first]).numpy()


def assert_equals(network: Any, data: dict[str, np.ndarray], label: str) -> None:
    expected = [data[key] for key in sorted(data) if key.startswith(label + "/")]
    computed = list(summaries(network))
    assert len(computed) == len(expected)
    for number, (ours, theirs) in enumerate(zip(computed, expected, strict=True)):
        # The sum of a large tensor cancels: its error is measured against the norm.
        tolerance = np.array([1e-5 * theirs[1], 0, *[1e-6] * 6]) + 1e-5 * np.abs(theirs)
        wrong = np.abs(ours - theirs) > tolerance
        assert not wrong.any(), f"{label}, parameter {number}: {ours[wrong]} is not {theirs[wrong]}"


@pytest.mark.parametrize("algorithm", ["BCQ", "DQN"])
@pytest.mark.parametrize("task", ["lunarlander", "atari"])
def test_training_gives_the_weights_and_actions_of_the_authors_code(
    algorithm: str, task: str
) -> None:
    data = dict(np.load(GOLDEN / f"{algorithm}_{task}.npz"))
    meta = json.loads(str(data.pop("meta")))
    atari = meta["is_atari"]
    options = {"threshold": meta["BCQ_threshold"]} if algorithm == "BCQ" else {}

    torch.manual_seed(meta["seed"])
    agent = ALGORITHMS[algorithm](
        data["state"].shape[1:],
        meta["num_actions"],
        "cpu",
        discount=meta["discount"],
        lr=meta["lr"],
        adam_eps=meta.get("eps", 1e-8),
        tau=1.0 if atari else meta["tau"],
        target_update_freq=meta["target_update_frequency"] if atari else 1,
        **options,
    )
    assert_equals(agent.network, data, "init/Q")
    columns = [data[name] for name in ("state", "action", "next_state", "reward", "not_done")]
    for rows in data["index"]:
        agent.update(variant.utils.Batch(*(torch.from_numpy(column[rows]) for column in columns)))
    assert_equals(agent.network, data, "final/Q")
    assert_equals(agent.target_network, data, "final/Q_target")
    chosen = [agent.select_action(state) for state in data["state"][: len(data["selected_action"])]]
    assert chosen == data["selected_action"].tolist()
