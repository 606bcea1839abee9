"""What every learner of both variants promises of its networks, its optimisers and its targets."""

import inspect
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import test_contract as continuous
import test_discrete_contract as discrete
import torch
from conftest import random_batch, weights
from test_fuzz import same
from torch import Tensor, nn
from torch.optim import Optimizer

from common.agent import acting_part
from common.data.replay import Batch
from common.errors import InputError
from common.saving import save_state


class Learner(NamedTuple):
    """One of a variant's ALGORITHMS."""

    variant: str
    algorithm: str

    @property
    def kind(self) -> Any:
        tests = continuous if self.variant == "continuous" else discrete
        return tests.ALGORITHMS[self.algorithm]

    def make(self, **options: Any) -> Any:
        """A fresh agent, with those of the options that it has."""
        known = inspect.signature(self.kind).parameters
        options = {name: value for name, value in options.items() if name in known}
        if self.variant == "continuous":
            return continuous.make(self.algorithm, **options)
        return discrete.make(self.algorithm, **options)

    def batch(self, rows: int = 8) -> Batch:
        """Random transitions that it can learn from."""
        if self.variant == "continuous":
            return random_batch(rows, continuous.STATE_DIM, continuous.ACTION_DIM)
        batch = random_batch(rows, discrete.SHAPES["vectors"][0], 1)
        return batch._replace(action=torch.randint(discrete.ACTIONS, (rows, 1)))


LEARNERS = [
    *(Learner("continuous", algorithm) for algorithm in continuous.ALGORITHMS),
    *(Learner("discrete", algorithm) for algorithm in discrete.ALGORITHMS),
]
PERIOD = {"TD3_BC": 2}  # updates between two of the targets, where it is not every one

every_learner = pytest.mark.parametrize("learner", LEARNERS, ids="-".join)


def networks(agent: Any) -> dict[str, nn.Module]:
    """Its networks with weights that are learned or follow them, by name."""
    return {
        name: part
        for name, part in vars(agent).items()
        if isinstance(part, nn.Module) and list(part.parameters())
    }


def targets(agent: Any) -> dict[str, str]:
    """By the name of each target network that of the network it follows."""
    return {
        name: name.replace("_target", "").replace("target_", "")
        for name in networks(agent)
        if "target" in name
    }


def optimisers(agent: Any) -> dict[str, Optimizer]:
    """By the name of each network its optimiser."""
    return {
        name.removesuffix("optimizer").rstrip("_") or "network": part
        for name, part in vars(agent).items()
        if isinstance(part, Optimizer)
    }


@every_learner
def test_each_optimiser_holds_exactly_its_networks_parameters_at_the_papers_rate(
    learner: Learner,
) -> None:
    agent = learner.kind(*([3, 2, 1.0] if learner.variant == "continuous" else [(5,), 3]), "cpu")
    assert optimisers(agent).keys() == networks(agent).keys() - targets(agent).keys()
    for network, optimiser in optimisers(agent).items():
        [group] = optimiser.param_groups
        held = [id(weight) for weight in group["params"]]
        assert held == [id(weight) for weight in getattr(agent, network).parameters()]
        if learner.variant == "continuous":
            rate, eps = continuous.LEARNING_RATE[learner.algorithm], 1e-8
        else:
            paper = discrete.PAPER[learner.algorithm]
            rate, eps = paper["lr"], paper["adam_eps"]
        assert (group["lr"], group["betas"], group["eps"]) == (rate, (0.9, 0.999), eps)
        assert group["weight_decay"] == 0


@every_learner
def test_a_step_changes_its_own_network_and_leaves_no_gradient_elsewhere(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = learner.make(warm_up=0)
    stepped = set()
    for network, optimiser in optimisers(agent).items():

        def step(loss: Tensor, network: str = network, real: Any = optimiser.minimize) -> None:  # type: ignore[attr-defined]
            before = weights(agent)
            real(loss)
            after = weights(agent)
            changed = {
                key.split(".")[0] for key in after if not torch.equal(before[key], after[key])
            }
            assert changed == {network}
            stepped.add(network)

        monkeypatch.setattr(optimiser, "minimize", step)
    for _ in range(2):
        agent.update(learner.batch())
    assert stepped == optimisers(agent).keys()
    parts = networks(agent).items()
    assert [name for name, part in parts for w in part.parameters() if w.grad is not None] == []


@every_learner
def test_targets_begin_as_copies_that_learning_does_not_touch(learner: Learner) -> None:
    agent = learner.make()
    for name, source in targets(agent).items():
        network, target = getattr(agent, source), getattr(agent, name)
        for weight, copied in zip(network.parameters(), target.parameters(), strict=True):
            assert torch.equal(weight, copied) and weight.data_ptr() != copied.data_ptr()
            assert weight.requires_grad and not copied.requires_grad


@every_learner
def test_targets_follow_the_weights_of_after_the_steps(learner: Learner) -> None:
    agent = learner.make(tau=0.125, target_update_freq=3)
    period = 3 if learner.variant == "discrete" else PERIOD.get(learner.algorithm, 1)
    assert bool(targets(agent)) == ("tau" in inspect.signature(learner.kind).parameters)
    for update in range(1, 8):
        old = weights(agent)
        agent.update(learner.batch())
        new = weights(agent)
        for name, source in targets(agent).items():
            for key in [key for key in new if key.startswith(f"{name}.")]:
                if update % period:
                    assert torch.equal(new[key], old[key])
                    continue
                online = new[key.replace(name, source, 1)].double()
                expected = 0.125 * online + 0.875 * old[key].double()
                torch.testing.assert_close(new[key].double(), expected, rtol=1e-6, atol=1e-8)
                assert not torch.equal(new[key], old[key])


@every_learner
def test_target_carries_no_gradient_even_where_its_networks_have_one(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, given = learner.make(), []
    for name in networks(agent):
        getattr(agent, name).requires_grad_(True)
    if not targets(agent):
        assert not hasattr(agent, "target_value")
        return
    compute = agent.target_value

    def target_value(*inputs: Tensor) -> Tensor:
        target = compute(*inputs)
        given.append(target.requires_grad)
        return target

    monkeypatch.setattr(agent, "target_value", target_value)
    agent.update(learner.batch())
    assert given == [False]


@every_learner
def test_update_figures_are_detached_scalars(learner: Learner) -> None:
    agent = learner.make(warm_up=0)
    for _ in range(2):
        for value in agent.update(learner.batch()).values():
            assert isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad


@pytest.mark.parametrize("variant", ["continuous", "discrete"])
def test_no_two_algorithms_have_models_that_could_be_mistaken(variant: str) -> None:
    # With the refusals of test_contract, where each algorithm is given the model of one other.
    models = {
        learner.algorithm: (
            sorted(learner.make().state_dict()),
            sorted((key, weight.shape) for key, weight in weights(learner.make()).items()),
        )
        for learner in LEARNERS
        if learner.variant == variant
    }
    assert [(a, b) for a in models for b in models if a < b and models[a] == models[b]] == []


@every_learner
def test_a_refused_state_changes_nothing_though_all_but_its_last_part_fit(learner: Learner) -> None:
    agent, other = learner.make(), learner.make()
    other.update(learner.batch())
    state, before = other.state_dict(), deepcopy(agent.state_dict())
    last = [name for name in state if name.endswith("optimizer")][-1]
    with pytest.raises(InputError, match=f"{last} does not fit"):
        agent.load_state_dict(state | {last: {}})
    assert same(before, agent.state_dict()) and not same(before, state)


@every_learner
def test_what_acting_needs_acts_and_judges_as_the_whole_but_cannot_learn_on(
    learner: Learner, tmp_path: Path
) -> None:
    saved, loaded = learner.make(), learner.make()
    saved.update(learner.batch())
    kept = acting_part(saved.state_dict())
    assert kept.keys() >= networks(saved).keys() - targets(saved)
    assert not [name for name in kept if "target" in name or "optimizer" in name]
    save_state(tmp_path / "policy.pt", kept)
    before = deepcopy(loaded.state_dict())
    with pytest.raises(InputError, match=r"saved by another algorithm than .*optimizer"):
        loaded.load(tmp_path / "policy.pt")
    assert same(before, loaded.state_dict())
    loaded.load(tmp_path / "policy.pt", to_act=True)
    state, action, *_ = learner.batch(4)
    acted = []
    for agent in (saved, loaded):
        torch.manual_seed(1)
        acted.append(agent.select_action(state.numpy()))
    assert np.array_equal(*acted)
    if hasattr(saved, "value"):
        assert torch.equal(saved.value(state, action), loaded.value(state, action))
    save_state(tmp_path / "less.pt", dict(list(kept.items())[1:]))
    with pytest.raises(InputError, match=rf"see {next(iter(kept))}"):
        loaded.load(tmp_path / "less.pt", to_act=True)
