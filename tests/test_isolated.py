"""Whatever an environment does with the arrays it gives and is given, the batch holds what was."""

from typing import Any

import numpy as np
import pytest
from conftest import load_variant
from gymnasium import spaces
from trial_envs import Traits, Trial, drawn

from common.environment import rollout
from common.environment.isolated import own
from common.run.collecting import collect

STEPS = 40

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object")  # gymnasium sees it too


def played(traits: Traits, steps: int = STEPS) -> tuple[Any, list[Any], list[float]]:
    """The batch of a noisy policy, what the environment was given meanwhile, and an evaluation."""
    discrete = traits.actions == "discrete"
    utils = load_variant("discrete_BCQ" if discrete else "continuous_BCQ").utils
    envs = [utils.make_env("trial_envs:Trial-v0", traits=traits) for _ in range(3)]
    shape, *size = utils.dimensions(envs[0])
    draw = np.random.default_rng(traits.seed)
    if discrete:
        replay_buffer = utils.ReplayBuffer(shape[0], "cpu", steps)

        def act(state: np.ndarray) -> Any:
            # Of the state, so that one overwritten state shows in all that follows.
            return int(abs(state.sum()) * 1e6) % size[0]

        def act_on_all(states: np.ndarray) -> np.ndarray:
            return np.array([act(state) for state in states])
    else:
        replay_buffer = utils.ReplayBuffer(shape, size[0], "cpu", steps)

        def act(state: np.ndarray) -> Any:
            action = size[1] * np.sin(1e3 * state.sum() + np.arange(size[0])).astype(np.float32)
            # The bounds themselves, above all, as a saturated tanh and clipped noise give them.
            bound = np.sign(action) * np.float32(size[1])
            return np.where(draw.random(size[0]) < 0.3, bound, action)

        def act_on_all(states: np.ndarray) -> np.ndarray:
            angle = 1e3 * states.sum(1, keepdims=True) + np.arange(size[0])
            return (size[1] * np.sin(angle)).astype(np.float32)

    Trial.given.clear()
    collect(envs[0], lambda state, _: act(state), replay_buffer, steps, traits.seed)
    given = Trial.given.copy()
    returns = rollout.evaluate(act_on_all, envs[1:], traits.seed)
    return replay_buffer.rows(range(steps)), given, returns


@pytest.mark.parametrize("seed", range(30))
def test_an_environment_that_keeps_and_changes_arrays_gives_the_batch_of_a_tame_one(
    seed: int,
) -> None:
    batch, given = same_as_tame(drawn(seed))
    # and what the environment was given is what the batch holds, scaled and rounded
    space = Trial(drawn(seed)).action_space
    assert isinstance(space, spaces.Box)
    stored, taken = batch.action.double().numpy(), np.array(given)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    scaled, whole = bool((low != -high).any()), space.dtype.kind in "iu"
    if scaled:
        assert np.abs(stored).max() <= 1
        stored = (low + high) / 2 + stored * (high - low) / 2
    allowed = 0.5 + 1e-4 if whole else 1e-6 * (np.abs(low) + np.abs(high))
    assert (np.abs(taken - stored.clip(low, high)) <= allowed).all()
    if whole or not scaled:
        assert (taken.max(0) == space.high).all() and (taken.min(0) == space.low).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_discrete_environment_that_keeps_its_array_gives_the_batch_of_a_tame_one(
    seed: int,
) -> None:
    batch, given = same_as_tame(drawn(seed, discrete=True))
    assert batch.action[:, 0].tolist() == given


def test_a_state_that_is_no_array_is_the_callers_too() -> None:
    numbers, array = [1.0, 2.0], np.zeros(2)
    kept, parts = own(numbers), own({"a": (array, 3)})
    numbers[0], array[0] = 9, 9
    assert kept == [1.0, 2.0] and parts["a"][0].tolist() == [0, 0]


def same_as_tame(traits: Traits) -> tuple[Any, list[Any]]:
    """The batch, and what the environment was given, after both were compared."""
    batch, given, returns = played(traits)
    tame_batch, tame_given, tame_returns = played(traits.tame())
    for column, tame in zip(batch, tame_batch, strict=True):
        np.testing.assert_array_equal(column, tame)
    np.testing.assert_array_equal(given, tame_given)
    assert returns == tame_returns
    assert (batch.state != batch.next_state).any(1).all()
    return batch, given
