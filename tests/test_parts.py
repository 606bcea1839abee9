"""A replay buffer written piece by piece comes back as it was, and fills on as it would have."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.data.frames import FrameBuffer
from common.data.replay import ReplayBuffer
from common.resume.parts import Generators, Rows

HISTORY, FRAME = 3, (4, 5)


def transitions(frames: int, seed: int, number: int) -> list[tuple[Any, ...]]:
    """Episodes of 1 to 6 steps, some terminal, some cut; the last one may not have ended.

    `frames`: of a state, 0 for vectors.
    """
    draw, made = np.random.default_rng(seed), []

    def new(state: np.ndarray | None) -> np.ndarray:
        if not frames:
            return draw.normal(size=3).astype(np.float32)
        before = np.zeros((frames, *FRAME), np.uint8) if state is None else state
        return np.concatenate([before[1:], draw.integers(256, size=(1, *FRAME), dtype=np.uint8)])

    state, left = new(None), int(draw.integers(1, 7))
    for _ in range(number):
        left -= 1
        terminated = left == 0 and draw.random() < 0.5
        action = int(draw.integers(4)) if frames else draw.normal(size=2).astype(np.float32)
        following = new(state)
        reward = float(draw.normal())
        made.append((state, action, following, reward, bool(terminated), left == 0))
        state = following
        if left == 0:
            state, left = new(None), int(draw.integers(1, 7))
    return made


def empty(frames: int, size: int) -> Any:
    if frames:
        return FrameBuffer((frames, *FRAME), "cpu", size)
    return ReplayBuffer(3, 2, "cpu", size)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [7, 30, 100])
@pytest.mark.parametrize("frames", [HISTORY, 1, 0])
def test_a_buffer_comes_back_and_fills_on(
    frames: int, size: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.resume.parts.PIECE", 4)
    draw, buffer = np.random.default_rng(seed), empty(frames, size)
    rows, came = Rows(buffer, tmp_path), transitions(frames, seed, 80)
    for transition in came[:60]:
        buffer.add(*transition)
        if draw.random() < 0.2:
            rows.state_dict()
    state = rows.state_dict()
    assert state["files"][-1][1] == 60
    other = empty(frames, size)
    Rows(other, tmp_path).load_state_dict(state)
    for following in [None, *came[60:]]:
        if following:
            buffer.add(*following)
            other.add(*following)
        assert (buffer.size, buffer.ptr, buffer.added) == (other.size, other.ptr, other.added)
        everything = [one.rows(range(one.size)) for one in (buffer, other)]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(*everything, strict=True))


def test_files_of_overwritten_rows_are_named_no_more_and_new_ones_hold_what_is_new(
    tmp_path: Path,
) -> None:
    buffer = ReplayBuffer(3, 2, "cpu", 25)
    rows, came = Rows(buffer, tmp_path), transitions(0, 0, 60)
    named = []
    for number, transition in enumerate(came, 1):
        buffer.add(*transition)
        if number % 10 == 0:
            named.append([name for name, *_ in rows.state_dict()["files"]])
    assert named[1] == ["rows_0_10.pt", "rows_10_20.pt"]
    assert named[-1] == ["rows_30_40.pt", "rows_40_50.pt", "rows_50_60.pt"]


def test_every_generator_goes_on_where_it_was() -> None:
    def draws() -> list[float]:
        numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
        return [*numbers, float(torch.rand(()))]

    draws()  # an odd number of normal draws: of a pair one is kept for the next call
    state = Generators().state_dict()
    drawn = draws()
    assert len(set(drawn)) == 5 and draws() != drawn
    Generators().load_state_dict(state)
    assert draws() == drawn
