"""The replay buffer: a ring on the device, its files, and what it refuses to read."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fill, largest_file, random_batch, snapshot, without_digests
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data.batch_files import column_path
from common.data.replay import Batch, ReplayBuffer
from common.errors import InputError

REFERENCE = (
    Path(__file__).parent / "golden" / "reference_buffer" / "Reference_InvertedPendulum-v4_0"
)


def numbered(size: int, capacity: int) -> ReplayBuffer:
    """Rows 0, 1, …, each number in every column; a row is terminal where its number is odd."""
    buffer = ReplayBuffer(2, 1, "cpu", capacity)
    for i in range(size):
        buffer.add(np.full(2, i), np.full(1, i), np.full(2, i + 0.5), float(-i), i % 2 == 1, False)
    return buffer


def ages(buffer: ReplayBuffer) -> list[float]:
    """The numbers of all rows held, oldest first."""
    return buffer.rows(range(buffer.size)).action.flatten().tolist()


def equal(one: Batch, other: Batch) -> bool:
    """Whether two batches agree bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def everything(buffer: ReplayBuffer) -> Batch:
    """All rows held, oldest first."""
    return buffer.rows(range(buffer.size))


def write(folder: Path, rows: int = 6, **replaced: Any) -> Path:
    """The files of a batch of 2 states and 1 action, some columns replaced; gives the prefix."""
    prefix = folder / "Robust_Toy-v0_0"
    numbered(rows, rows).save(prefix)
    without_digests(prefix)
    for name, array in replaced.items():
        np.save(column_path(prefix, name), array)
    return prefix


# --- the ring


def test_a_row_comes_back_in_its_columns_as_float32() -> None:
    buffer = ReplayBuffer(2, 3, "cpu", 5)
    buffer.add(
        np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0]), np.array([6.0, 7.0]), 8, False, True
    )
    row = buffer.rows([0])
    assert [column.tolist() for column in row] == [[[1, 2]], [[3, 4, 5]], [[6, 7]], [[8]], [[1]]]
    assert all(column.dtype == torch.float32 for column in row)
    assert row._fields == ("state", "action", "next_state", "reward", "not_done")


@pytest.mark.parametrize(
    ("terminated", "truncated", "not_done"),
    [(False, False, 1), (False, True, 1), (True, False, 0), (True, True, 0)],
)
def test_only_a_terminal_state_clears_not_done(
    terminated: bool, truncated: bool, not_done: int
) -> None:
    buffer = ReplayBuffer(1, 1, "cpu", 5)
    buffer.add(np.zeros(1), np.zeros(1), np.zeros(1), 0.0, terminated, truncated)
    assert buffer.rows([0]).not_done.item() == not_done


def test_a_full_ring_overwrites_its_oldest_row_and_rows_counts_from_the_oldest_kept() -> None:
    buffer = numbered(size=7, capacity=5)
    assert (buffer.size, buffer.ptr, buffer.max_size) == (5, 2, 5)
    assert ages(buffer) == [2, 3, 4, 5, 6]
    assert buffer.rows([4, 0, 4]).action.flatten().tolist() == [6, 2, 6]


@pytest.mark.parametrize("index", [[-1], [5], [0, 5]])
def test_rows_refuses_a_position_outside_the_rows_held(index: list[int]) -> None:
    with pytest.raises(IndexError, match=r"positions must lie in \[0, 5\)"):
        numbered(size=5, capacity=10).rows(index)


@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 7), size=st.integers(1, 25), kept=st.integers(1, 30))
def test_the_ring_and_its_files_hold_what_a_queue_would(
    tmp_path_factory: pytest.TempPathFactory, capacity: int, size: int, kept: int
) -> None:
    queue: deque[float] = deque(maxlen=capacity)
    queue.extend(range(size))
    buffer = numbered(size, capacity)
    assert ages(buffer) == list(queue)
    assert buffer.ptr == size % capacity

    prefix = tmp_path_factory.mktemp("ring") / "b"
    buffer.save(prefix)
    loaded = ReplayBuffer(2, 1, "cpu", 3)
    assert loaded.load(prefix, kept) == len(queue)
    assert ages(loaded) == list(queue)[:kept]
    assert loaded.max_size == max(3, loaded.size)
    if loaded.size < loaded.max_size:
        loaded.add(np.zeros(2), np.full(1, -1), np.zeros(2), 0.0, False, False)
        assert ages(loaded) == [*list(queue)[:kept], -1]
    else:
        loaded.add(np.zeros(2), np.full(1, -1), np.zeros(2), 0.0, False, False)
        assert ages(loaded) == [*list(queue)[:kept][1:], -1]


def test_sampling_is_uniform_over_the_rows_held_and_no_others() -> None:
    buffer = numbered(size=8, capacity=100)
    counts = torch.bincount(buffer.sample(16_000).action.flatten().long(), minlength=100)
    assert counts[8:].sum() == 0
    # 2,000 expected each, standard deviation 42.
    assert counts[:8].min() > 1_800 and counts[:8].max() < 2_200


def test_sampling_keeps_the_columns_of_a_row_together() -> None:
    batch = numbered(size=9, capacity=6).sample(50)
    number = batch.action
    assert batch.state.shape == (50, 2) and batch.reward.shape == batch.not_done.shape == (50, 1)
    assert torch.equal(batch.state, number.expand(50, 2))
    assert torch.equal(batch.next_state, number.expand(50, 2) + 0.5)
    assert torch.equal(batch.reward, -number)
    assert torch.equal(batch.not_done, 1 - number % 2)


def test_sampling_follows_torchs_seed() -> None:
    buffer = numbered(size=50, capacity=50)
    drawn = []
    for seed in [1, 1, 2]:
        torch.manual_seed(seed)
        drawn.append(buffer.sample(20))
    assert equal(drawn[0], drawn[1]) and not equal(drawn[0], drawn[2])


def test_a_million_hopper_transitions_take_108_bytes_each() -> None:
    buffer = ReplayBuffer(11, 3, "cpu", 1000)
    assert sum(column.nbytes for column in buffer._columns) == 108_000


# --- the files


def test_a_buffer_beyond_memory_is_an_error_of_the_user() -> None:
    with pytest.raises(InputError, match="no memory for a buffer of 10,000,000,000,000"):
        ReplayBuffer(11, 3, "cpu", 10**13)


def test_save_writes_five_float32_columns_oldest_first_the_pointer_and_the_episodes(
    tmp_path: Path,
) -> None:
    numbered(size=7, capacity=5).save(tmp_path / "b", {"env": "Toy-v0"})
    assert sorted(snapshot(tmp_path)) == [
        "b.json", "b_action.npy", "b_episode.npy", "b_next_state.npy", "b_not_done.npy",
        "b_ptr.npy", "b_reward.npy", "b_state.npy",
    ]  # fmt: skip
    arrays = {name: np.load(tmp_path / f"b_{name}.npy") for name in Batch._fields}
    assert {array.dtype for array in arrays.values()} == {np.dtype("float32")}
    assert arrays["action"].tolist() == [[2], [3], [4], [5], [6]]
    assert arrays["not_done"].tolist() == [[1], [0], [1], [0], [1]]
    assert np.load(tmp_path / "b_ptr.npy") == 0  # full: the next row goes over the first
    assert np.load(tmp_path / "b_episode.npy").tolist() == [[0], [0], [1], [1], [-1]]


def test_a_saved_and_loaded_buffer_is_the_same_and_samples_alike(tmp_path: Path) -> None:
    buffer = fill(ReplayBuffer(3, 2, "cpu", 30), random_batch(20))
    buffer.save(tmp_path / "b")
    loaded = ReplayBuffer(3, 2, "cpu", 30)
    loaded.load(tmp_path / "b")
    assert (loaded.size, loaded.ptr, loaded.max_size) == (20, 20, 30)
    assert equal(everything(buffer), everything(loaded))
    torch.manual_seed(3)
    one = buffer.sample(10)
    torch.manual_seed(3)
    assert equal(one, loaded.sample(10))


def test_the_authors_float64_ring_comes_out_oldest_first() -> None:
    raw = {name: np.load(column_path(REFERENCE, name)) for name in Batch._fields}
    assert np.load(column_path(REFERENCE, "ptr")) == 200 and len(raw["state"]) == 1000
    assert raw["state"].dtype == np.float64
    buffer = ReplayBuffer(4, 1, "cpu", 1000)
    assert buffer.load(REFERENCE) == 1000
    rows = everything(buffer)
    for name in Batch._fields:
        column = getattr(rows, name)
        assert column.dtype == torch.float32
        expected = np.concatenate([raw[name][200:], raw[name][:200]]).astype(np.float32)
        assert np.array_equal(column.numpy(), expected), name
    # An order that makes sense: most states follow from the row before, also over the seam.
    follows = (rows.next_state[:-1] == rows.state[1:]).all(1)
    assert follows[795:805].sum() >= 9 and follows.float().mean() > 0.8


def test_a_partial_load_keeps_the_oldest_rows_and_says_how_many_there_were() -> None:
    buffer = ReplayBuffer(4, 1, "cpu", 10)
    assert buffer.load(REFERENCE, size=7) == 1000
    assert (buffer.size, buffer.max_size, buffer.ptr) == (7, 10, 7)
    first = np.load(column_path(REFERENCE, "state"))[200:207].astype(np.float32)
    assert np.array_equal(everything(buffer).state.numpy(), first)


def test_a_buffer_grows_to_what_is_loaded() -> None:
    buffer = ReplayBuffer(4, 1, "cpu", 1)
    buffer.load(REFERENCE)
    assert (buffer.size, buffer.max_size, buffer.ptr) == (1000, 1000, 0)


def test_loading_replaces_what_was_held(tmp_path: Path) -> None:
    prefix = write(tmp_path, rows=3)
    buffer = numbered(size=9, capacity=20)
    buffer.load(prefix)
    assert ages(buffer) == [0, 1, 2]


@pytest.mark.parametrize("name", ["reward", "not_done", "action"])
def test_columns_saved_as_n_are_read_as_n_by_1(tmp_path: Path, name: str) -> None:
    prefix = write(tmp_path)
    expected = np.load(column_path(prefix, name))
    np.save(column_path(prefix, name), expected.reshape(-1))
    buffer = ReplayBuffer(2, 1, "cpu", 6)
    buffer.load(prefix)
    assert np.array_equal(getattr(everything(buffer), name).numpy(), expected)


def test_files_without_a_pointer_are_taken_in_their_order(tmp_path: Path) -> None:
    prefix = write(tmp_path)
    column_path(prefix, "ptr").unlink()
    buffer = ReplayBuffer(2, 1, "cpu", 6)
    buffer.load(prefix)
    assert ages(buffer) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "bool"])
def test_columns_of_other_numeric_types_are_read(tmp_path: Path, dtype: str) -> None:
    prefix = write(tmp_path, not_done=np.array([[1], [0], [1], [0], [1], [0]], dtype))
    buffer = ReplayBuffer(2, 1, "cpu", 6)
    buffer.load(prefix)
    assert everything(buffer).not_done.flatten().tolist() == [1, 0, 1, 0, 1, 0]


# --- bad input

NAN, INF = float("nan"), float("inf")


def spoiled(width: int, row: int, place: int, value: float, rows: int = 6) -> np.ndarray:
    """Ones, with one other value."""
    array = np.ones((rows, width))
    array[row, place] = value
    return array


BAD = [
    ("state", spoiled(2, 4, 1, NAN), r"_state\.npy: row 4, column 1 is nan"),
    ("next_state", spoiled(2, 3, 0, INF), r"_next_state\.npy: row 3, column 0 is inf"),
    ("action", spoiled(1, 0, 0, -INF), r"_action\.npy: row 0, column 0 is -inf"),
    ("reward", spoiled(1, 5, 0, NAN), r"_reward\.npy: row 5, column 0 is nan"),
    ("reward", spoiled(1, 2, 0, 1e200), r"_reward\.npy: row 2, column 0 is 1e\+200"),
    ("not_done", spoiled(1, 1, 0, 0.5), r"_not_done\.npy: row 1, column 0 is 0\.5"),
    ("not_done", spoiled(1, 1, 0, 2), r"_not_done\.npy: row 1, column 0 is 2"),
    ("state", np.ones((6, 3)), r"_state\.npy has shape \(6, 3\), .* needs \(N, 2\)"),
    ("next_state", np.ones((6, 1)), r"_next_state\.npy has shape \(6, 1\), .* needs \(N, 2\)"),
    ("action", np.ones((6, 2)), r"_action\.npy has shape \(6, 2\), .* needs \(N, 1\)"),
    ("reward", np.ones((6, 1, 1)), r"_reward\.npy has shape \(6, 1, 1\)"),
    ("reward", np.ones(()), r"_reward\.npy has shape \(\)"),
    ("reward", np.full((6, 1), "high"), r"_reward\.npy holds <U4, not numbers"),
    ("reward", np.ones((6, 1), complex), r"_reward\.npy holds complex128, not numbers"),
    ("reward", np.ones((5, 1)), r"differ in length \(state 6, action 6, next_state 6, reward 5,"),
    ("ptr", np.array(7), r"_ptr\.npy must hold one whole number from 0 to 6"),
    ("ptr", np.array(-1), r"_ptr\.npy must hold one whole number from 0 to 6"),
    ("ptr", np.array([1, 2]), r"_ptr\.npy must hold one whole number from 0 to 6"),
    ("ptr", np.array(1.5), r"_ptr\.npy must hold one whole number from 0 to 6"),
]


@pytest.mark.parametrize(("name", "array", "message"), BAD)
def test_a_bad_column_is_refused_by_file_and_place_and_the_buffer_stays_as_it_was(
    tmp_path: Path, name: str, array: np.ndarray, message: str
) -> None:
    replaced: dict[str, Any] = {name: array}
    prefix = write(tmp_path, **replaced)
    buffer = numbered(size=3, capacity=4)
    held = everything(buffer)
    with pytest.raises(InputError, match=message):
        buffer.load(prefix)
    assert (buffer.size, buffer.ptr, buffer.max_size) == (3, 3, 4)
    assert equal(everything(buffer), held)


def test_the_row_named_is_the_row_of_the_file_also_in_a_ring_that_wrapped(tmp_path: Path) -> None:
    prefix = write(tmp_path, reward=spoiled(1, 1, 0, NAN), ptr=np.array(4))
    with pytest.raises(InputError, match=r"_reward\.npy: row 1, column 0 is nan"):
        ReplayBuffer(2, 1, "cpu", 6).load(prefix)


@pytest.mark.parametrize("name", Batch._fields)
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    prefix = write(tmp_path)
    column_path(prefix, name).unlink()
    with pytest.raises(InputError, match=rf"_{name}\.npy does not exist"):
        ReplayBuffer(2, 1, "cpu", 6).load(prefix)


@pytest.mark.parametrize("name", [*Batch._fields, "ptr"])
@pytest.mark.parametrize("kept", [0, 40, -1])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, kept: int) -> None:
    prefix = write(tmp_path)
    path = column_path(prefix, name)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=rf"_{name}\.npy is damaged"):
        ReplayBuffer(2, 1, "cpu", 6).load(prefix)


def test_an_empty_batch_is_refused(tmp_path: Path) -> None:
    empty: dict[str, Any] = {
        name: np.ones((0, 2 if "state" in name else 1)) for name in Batch._fields
    }
    prefix = write(tmp_path, **empty, ptr=np.array(0))
    with pytest.raises(InputError, match="are empty: a batch needs at least one transition"):
        ReplayBuffer(2, 1, "cpu", 6).load(prefix)


def test_python_objects_in_a_file_are_never_unpickled(tmp_path: Path) -> None:
    prefix = write(tmp_path)
    np.save(column_path(prefix, "reward"), np.array([{"a": 1}] * 6), allow_pickle=True)
    with pytest.raises(InputError, match=r"_reward\.npy holds object, not numbers"):
        ReplayBuffer(2, 1, "cpu", 6).load(prefix)


# --- a full disk


def test_where_a_column_cannot_be_written_no_file_appears(tmp_path: Path) -> None:
    buffer = fill(ReplayBuffer(1, 50, "cpu", 40), random_batch(40, 1, 50))
    # A state column of 288 bytes fits, the 8,128 bytes of the actions do not.
    with largest_file(4096), pytest.raises(InputError, match=r"cannot write .*free some space"):
        buffer.save(tmp_path / "b", {"env": "Toy-v0"})
    assert snapshot(tmp_path) == {}
    buffer.save(tmp_path / "b")
    assert len(snapshot(tmp_path)) == 8


@pytest.mark.parametrize("what", ["columns", "record"])
def test_where_a_file_cannot_be_written_the_former_batch_stays_whole(
    tmp_path: Path, what: str
) -> None:
    fill(ReplayBuffer(1, 50, "cpu", 9), random_batch(9, 1, 50)).save(tmp_path / "b", {"run": 1})
    before = snapshot(tmp_path)
    rows = 40 if what == "columns" else 9
    record = {"run": 2, "note": "x" * (0 if what == "columns" else 9000)}
    other = fill(ReplayBuffer(1, 50, "cpu", rows), random_batch(rows, 1, 50, seed=1))
    with largest_file(4096), pytest.raises(InputError, match="cannot write"):
        other.save(tmp_path / "b", record)
    assert snapshot(tmp_path) == before


def test_an_output_folder_that_is_a_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "buffers").write_text("not a folder")
    with pytest.raises(InputError, match=r"cannot write .*buffers"):
        numbered(3, 3).save(tmp_path / "buffers" / "b")


def test_the_door_of_the_folder_gives_the_shared_buffer(continuous: SimpleNamespace) -> None:
    assert continuous.utils.ReplayBuffer is ReplayBuffer and continuous.utils.Batch is Batch


def test_an_episode_that_is_given_up_ends_with_its_newest_transition() -> None:
    buffer = numbered(size=3, capacity=5)
    assert not buffer.ends()[-1]
    buffer.cut()
    assert buffer.ends()[-1]
