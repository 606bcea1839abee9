"""A batch is in memory once, also while it is loaded or saved; what is said where there is none."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_envs  # noqa: F401 (registers)
from conftest import load_variant, without_digests

from common.data import frames
from common.data.batch_files import column_path
from common.data.frames import FrameBuffer
from common.data.replay import Batch, ReplayBuffer
from common.errors import InputError

ROWS = 400_000  # of Hopper's sizes 43 MB
SIZES = Batch(11, 3, 11, 1, 1)  # type: ignore[arg-type]


def status(name: str) -> int:
    """Bytes of this process, by /proc's name for them."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    assert found
    return 1024 * int(found[1])


def peak(action: Callable[[], Any]) -> int:
    """How many bytes more than before the process holds at most during the action."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A batch of 400,000 transitions, saved as a ring of the authors' code lies."""
    prefix = tmp_path_factory.mktemp("large") / "B_Toy-v0_0"
    for name, width in SIZES._asdict().items():
        np.save(column_path(prefix, name), np.ones((ROWS, width), np.float32))
    np.save(column_path(prefix, "ptr"), 1234)
    return prefix


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell")
def test_a_batch_is_loaded_with_a_fifth_of_its_size_beside_it_and_saved_with_half(
    prefix: Path, tmp_path: Path
) -> None:
    whole = 4 * ROWS * sum(SIZES)
    buffer = ReplayBuffer(11, 3, "cpu", 1)
    assert peak(lambda: buffer.load(prefix)) < 1.2 * whole
    assert peak(lambda: buffer.save(tmp_path / "again")) < 0.5 * whole
    assert buffer.size == ROWS


def test_a_batch_read_in_pieces_is_the_batch(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("common.data.replay.PIECE", 4)
    buffer, draw = ReplayBuffer(2, 1, "cpu", 10), np.random.default_rng(0)
    rows = [(draw.normal(size=2), draw.normal(size=1), draw.normal(size=2)) for _ in range(13)]
    for state, action, next_state in rows:
        buffer.add(state, action, next_state, float(action[0]), False, False)
    buffer.save(tmp_path / "b")
    without_digests(tmp_path / "b")
    kept = np.array([state for state, *_ in rows[3:]], np.float32)
    np.testing.assert_array_equal(np.load(column_path(tmp_path / "b", "state")), kept)
    ring = np.roll(kept, 7, 0)
    np.save(column_path(tmp_path / "b", "state"), ring)
    np.save(column_path(tmp_path / "b", "ptr"), 7)
    loaded = ReplayBuffer(2, 1, "cpu", 1)
    loaded.load(tmp_path / "b", 9)
    np.testing.assert_array_equal(loaded.rows(range(9)).state.numpy(), kept[:9])
    ring[4, 1] = np.nan
    np.save(column_path(tmp_path / "b", "state"), ring)
    with pytest.raises(InputError, match="row 4, column 1 is nan"):
        loaded.load(tmp_path / "b")
    np.testing.assert_array_equal(loaded.rows(range(9)).state.numpy(), kept[:9])


NO_MEMORY = "no memory for a buffer of .* --buffer_size needs less, in stage 2 fewer --max_timest"


@pytest.mark.parametrize("variant", ["continuous_BCQ", "discrete_BCQ"])
@pytest.mark.filterwarnings("ignore:.*transitions will take")
def test_a_buffer_too_large_for_memory_is_told_the_right_remedy(variant: str) -> None:
    utils = load_variant(variant).utils
    with pytest.raises(InputError, match=NO_MEMORY):
        utils.ReplayBuffer(*([2, 1] if "cont" in variant else [2]), "cpu", 10**13)
    with pytest.raises(InputError, match=NO_MEMORY):
        FrameBuffer((4, 84, 84), "cpu", 10**13)


@pytest.mark.parametrize("steps", [1, 30])
def test_so_is_one_whose_frames_find_no_memory_as_they_come(steps: int, monkeypatch: Any) -> None:
    buffer, frame = FrameBuffer((2, 3, 3), "cpu", 100), np.zeros((2, 3, 3), np.uint8)
    add = [frame, 0, frame, 0.0, True, False]
    for _ in range(steps - 1):
        buffer.add(*add)  # type: ignore[arg-type]

    def full(*_: Any) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(frames.np, "empty", full)
    with pytest.raises(InputError, match=NO_MEMORY):
        for _ in range(60):
            buffer.add(*add)  # type: ignore[arg-type]


def own_bytes() -> int:
    """Bytes of this process that no other one shares: not the pages of files."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    found = re.search(r"Anonymous:\s+(\d+) kB", text)
    assert found
    return 1024 * int(found[1])


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_a_batch_in_order_is_used_where_it_lies_so_that_runs_side_by_side_share_it(
    prefix: Path, tmp_path: Path
) -> None:
    for name in SIZES._asdict():
        column_path(tmp_path / "b", name).symlink_to(column_path(prefix, name))
    buffer, before = ReplayBuffer(11, 3, "cpu", 1), own_bytes()
    buffer.load(tmp_path / "b")
    assert sum(int(column.sum()) for column in buffer._columns) == ROWS * sum(SIZES)  # every page
    assert own_bytes() - before < 0.2 * 4 * ROWS * sum(SIZES)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4"])
def test_a_batch_used_in_place_gives_the_samples_of_one_that_is_converted(
    dtype: Any, tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    for name, width in Batch(2, 1, 2, 1, 1)._asdict().items():  # type: ignore[arg-type]
        rows = draw.normal(size=(50, width)).astype(np.float32) if name != "not_done" else 1
        np.save(column_path(tmp_path / "a", name), np.ones((50, width), np.float32) * rows)
        np.save(column_path(tmp_path / "b", name), np.ones((50, width), dtype) * rows)
    buffers = [ReplayBuffer(2, 1, "cpu", 1) for _ in "ab"]
    samples = []
    for name, buffer in zip("ab", buffers, strict=True):
        buffer.load(tmp_path / name, 40)
        torch.manual_seed(0)
        samples.append(buffer.sample(1000))
    assert all(torch.equal(one, other) for one, other in zip(*samples, strict=True))


def test_what_is_written_to_a_batch_in_use_does_not_reach_its_files(tmp_path: Path) -> None:
    buffer = ReplayBuffer(2, 1, "cpu", 3)
    for _ in range(3):
        buffer.add(np.ones(2), np.ones(1), np.ones(2), 1.0, False, False)
    buffer.save(tmp_path / "b")
    loaded = ReplayBuffer(2, 1, "cpu", 1)
    loaded.load(tmp_path / "b")
    loaded.add(np.zeros(2), np.zeros(1), np.zeros(2), 0.0, True, False)
    assert loaded.rows([2]).reward.item() == 0
    for name in Batch._fields:
        assert (np.load(column_path(tmp_path / "b", name)) == 1).all()
