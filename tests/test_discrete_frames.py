"""The frame buffer gives back exactly the stacks that were put in, at every edge and from files."""

import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import without_digests
from hypothesis import given, settings
from hypothesis import strategies as st

import common.data.frames
from common.data.frames import FrameBuffer
from common.errors import InputError

SHAPE = (4, 3, 2)
FIELDS = ("state", "action", "next_state", "reward", "not_done")
TERMINATED, TRUNCATED = "terminated", "truncated"
Episodes = Sequence[tuple[int, str | None]]  # length, and how it ends


class Naive:
    """The reference: whole transitions in a list, the newest `max_size` of them."""

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.rows: list[tuple[Any, ...]] = []

    def add(
        self,
        state: np.ndarray,
        action: int,
        next_state: np.ndarray,
        reward: float,
        terminated: bool,
        truncated: bool,
    ) -> None:
        del truncated
        row = (state, action, next_state, np.clip(reward, -1, 1), 1.0 - terminated)
        self.rows = [*self.rows, row][-self.max_size :]


def play(
    episodes: Episodes, buffers: list[Any], shape: tuple[int, ...] = SHAPE, seed: int = 0
) -> None:
    """Add episodes of random frames to the buffers."""
    draw = np.random.default_rng(seed)
    for length, end in episodes:
        # As the environment's stacks: zeros before the first frame; no frame is all zeros.
        frames = [np.zeros(shape[1:], np.uint8)] * (shape[0] - 1)
        frames += [draw.integers(1, 256, shape[1:], dtype=np.uint8) for _ in range(length + 1)]
        for step in range(length):
            state = np.stack(frames[step : step + shape[0]])
            next_state = np.stack(frames[step + 1 : step + 1 + shape[0]])
            last = step == length - 1
            ends = (last and end == TERMINATED, last and end == TRUNCATED)
            action, reward = int(draw.integers(6)), float(draw.normal(0, 2))
            for buffer in buffers:
                buffer.add(state, action, next_state, reward, *ends)


def assert_holds(buffer: FrameBuffer, rows: list[tuple[Any, ...]]) -> None:
    assert buffer.size == len(rows)
    batch = buffer.rows(np.arange(len(rows)))
    for name, ours, position in zip(FIELDS, batch, range(5), strict=True):
        expected = np.stack([row[position] for row in rows]).reshape(ours.shape)
        np.testing.assert_array_equal(ours.numpy(), expected.astype(ours.numpy().dtype), name)


def made(
    episodes: Episodes, max_size: int, shape: tuple[int, ...] = SHAPE
) -> tuple[FrameBuffer, Naive]:
    buffer, naive = FrameBuffer(shape, "cpu", max_size), Naive(max_size)
    play(episodes, [buffer, naive], shape)
    return buffer, naive


an_episode = st.tuples(st.integers(1, 7), st.sampled_from([TERMINATED, TRUNCATED]))
some_episodes = st.builds(
    lambda ended, unfinished: ended + [(unfinished, None)] * (unfinished > 0),
    st.lists(an_episode, max_size=7),
    st.integers(0, 6),
).filter(bool)
some_shape = st.sampled_from([SHAPE, (1, 3, 2)])


@settings(max_examples=150, deadline=None)
@given(some_episodes, st.integers(1, 12), st.sampled_from([3, 5, 100]), some_shape)
def test_every_transition_has_its_own_stacks_however_the_ring_lies(
    episodes: Episodes, max_size: int, chunk: int, shape: tuple[int, ...]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common.data.frames, "CHUNK", chunk)
        buffer, naive = made(episodes, max_size, shape)
        assert_holds(buffer, naive.rows)
        assert buffer.ptr == sum(length for length, _ in episodes) % max_size


@settings(max_examples=100, deadline=None)
@given(
    some_episodes, st.integers(1, 12), st.sampled_from([3, 5, 100]), st.integers(1, 14), some_shape
)
def test_a_saved_batch_comes_back_whole_or_its_first_part(
    tmp_path_factory: pytest.TempPathFactory,
    episodes: Episodes,
    max_size: int,
    chunk: int,
    kept: int,
    shape: tuple[int, ...],
) -> None:
    prefix = tmp_path_factory.mktemp("batch") / "Name_Env_0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common.data.frames, "CHUNK", chunk)
        buffer, naive = made(episodes, max_size, shape)
        buffer.save(prefix)
    begins = [begins for length, _ in episodes for begins in [1] + [0] * (length - 1)]
    first = np.load(f"{prefix}_first_timestep.npy")[:, 0].tolist()
    assert first == begins[-len(first) :]
    whole = FrameBuffer(shape, "cpu", 1)
    assert whole.load(prefix) == len(naive.rows)
    assert_holds(whole, naive.rows)
    part = FrameBuffer(shape, "cpu", 1)
    assert part.load(prefix, kept) == len(naive.rows)
    assert_holds(part, naive.rows[:kept])


def test_two_episodes_never_meet_in_a_stack_and_a_time_limit_keeps_the_true_successor() -> None:
    for end in (TERMINATED, TRUNCATED):
        buffer, naive = made([(3, end), (3, None)], 10)
        assert_holds(buffer, naive.rows)
        batch = buffer.rows([2, 3])
        # The first state of the second episode is one frame after three of zeros …
        assert not batch.state[1, :3].any() and batch.state[1, 3].all()
        # … and the last successor of the first episode is its own fourth frame, not that one.
        assert batch.next_state[0].all() and (batch.next_state[0, 3] != batch.state[1, 3]).any()
        assert batch.not_done[0] == (end == TRUNCATED)


def test_the_newest_transition_of_a_full_ring_has_its_true_successor() -> None:
    buffer, naive = made([(25, None)], 10)
    newest = buffer.rows([9]).next_state[0].numpy()
    np.testing.assert_array_equal(newest, naive.rows[-1][2])
    assert newest.all()


def test_the_oldest_transition_of_a_full_ring_has_its_history() -> None:
    buffer, naive = made([(25, None)], 10)
    oldest = buffer.rows([0]).state[0].numpy()
    np.testing.assert_array_equal(oldest, naive.rows[0][0])
    assert oldest.all()


def test_a_batch_is_a_copy_that_later_steps_leave_alone() -> None:
    buffer, _ = made([(12, None)], 10)
    batch = buffer.rows(range(10))
    before = [column.clone() for column in batch]
    play([(9, TRUNCATED), (9, None)], [buffer], seed=1)
    assert all(torch.equal(one, other) for one, other in zip(batch, before, strict=True))


def test_a_state_written_in_place_after_it_was_added_changes_nothing_in_the_buffer() -> None:
    buffer = FrameBuffer(SHAPE, "cpu", 5)
    state, next_state = np.full(SHAPE, 7, np.uint8), np.full(SHAPE, 8, np.uint8)
    buffer.add(state, 0, next_state, 0.0, False, True)
    state[:], next_state[:] = 0, 0
    assert (
        buffer.rows([0]).state[0, 3].eq(7).all() and buffer.rows([0]).next_state[0, 3].eq(8).all()
    )


@pytest.mark.parametrize("size", [999, 1000, 1001])
def test_a_batch_round_a_whole_file_comes_back_exactly(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common.data.frames, "CHUNK", 1000)
    buffer, naive = made([(300, TRUNCATED), (300, TERMINATED), (size - 600, None)], size)
    buffer.save(tmp_path / "b")
    files = {path.name: len(np.load(path)) for path in tmp_path.glob("b_state_*.npy")}
    # N transitions are N + 1 frames; each file is named after the frames up to its end.
    expected = {f"b_state_{min(size + 1, 1000)}.npy": min(size + 1, 1000)}
    if size + 1 > 1000:
        expected[f"b_state_{size + 1}.npy"] = size + 1 - 1000
    assert files == expected
    again = FrameBuffer(SHAPE, "cpu", 1)
    again.load(tmp_path / "b")
    assert_holds(again, naive.rows)


def test_a_shorter_batch_saved_over_a_longer_one_leaves_none_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common.data.frames, "CHUNK", 10)
    made([(35, TERMINATED)], 35)[0].save(tmp_path / "b")
    buffer, naive = made([(15, TRUNCATED)], 15)
    buffer.save(tmp_path / "b", {"env": "Pong"})
    files = {path.name for path in tmp_path.glob("b_state_*")}
    assert files == {"b_state_10.npy", "b_state_16.npy"}
    again = FrameBuffer(SHAPE, "cpu", 1)
    again.load(tmp_path / "b")
    assert_holds(again, naive.rows)
    assert json.loads((tmp_path / "b.json").read_text())["env"] == "Pong"


def test_sampling_is_uniform_reproducible_and_only_of_what_is_held() -> None:
    buffer, _ = made([(20, TERMINATED)], 30)
    drawn = [tuple(state.flatten().tolist()) for state in buffer.sample(4000).state]
    held = [tuple(state.flatten().tolist()) for state in buffer.rows(range(20)).state]
    counts = [drawn.count(state) for state in held]
    assert sum(counts) == 4000 and min(counts) > 140 and max(counts) < 260
    torch.manual_seed(5)
    one = buffer.sample(8)
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(one, buffer.sample(8), strict=True))


def test_states_are_bytes_and_actions_whole_numbers() -> None:
    buffer, _ = made([(9, TERMINATED)], 9)
    batch = buffer.sample(5)
    assert [column.dtype for column in batch] == [
        torch.uint8, torch.int64, torch.uint8, torch.float32, torch.float32
    ]  # fmt: skip
    assert [tuple(column.shape) for column in batch] == [
        (5, *SHAPE),
        (5, 1),
        (5, *SHAPE),
        (5, 1),
        (5, 1),
    ]


def test_positions_outside_the_batch_are_refused() -> None:
    buffer, _ = made([(5, TERMINATED)], 9)
    for position in (-1, 5):
        with pytest.raises(IndexError, match=r"\[0, 5\)"):
            buffer.rows([position])


def test_memory_is_taken_as_it_fills_and_too_little_of_it_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(common.data.frames, "_free_memory", lambda: 7 * 10**9)
    with pytest.warns(RuntimeWarning, match=r"7\.06 GB .* 7\.00 GB of memory are free"):
        buffer = FrameBuffer((4, 84, 84), "cpu", 10**6)
    assert buffer._blocks == [None] * 11
    monkeypatch.setattr(common.data.frames, "_free_memory", lambda: 8 * 10**9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FrameBuffer((4, 84, 84), "cpu", 10**6)


def test_a_loaded_batch_is_read_from_its_files_and_cannot_grow(tmp_path: Path) -> None:
    buffer, _ = made([(30, TERMINATED)], 30)
    buffer.save(tmp_path / "b")
    loaded = FrameBuffer(SHAPE, "cpu", 1)
    loaded.load(tmp_path / "b")
    owner: Any = loaded._blocks[0]
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert isinstance(owner, np.memmap) and not owner.flags.writeable
    with pytest.raises(RuntimeError, match="cannot grow"):
        play([(1, None)], [loaded])


def test_32_states_and_their_successors_are_put_together_in_about_a_millisecond() -> None:
    buffer = FrameBuffer((4, 84, 84), "cpu", 3000)
    play([(1500, TERMINATED), (1500, TRUNCATED)], [buffer], (4, 84, 84))
    best = min(_seconds(lambda: buffer.sample(32)) for _ in range(50))
    assert best < 0.003, f"{best * 1e3:.2f} ms"  # 0.3 ms on an idle core


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def authors_files(
    prefix: Path, naive_rows: list[tuple[Any, ...]], episodes: Episodes, ptr: int, chunk: int
) -> None:
    """Write a batch as the authors' code does: frames and flags of the ring as it lay."""
    size = len(naive_rows)
    firsts = [step == 0 for length, _ in episodes for step in range(length)][-size:]
    order = np.roll(np.arange(size), ptr) if ptr < size else np.arange(size)
    column = {
        "action": np.array([[row[1]] for row in naive_rows]),
        "reward": np.array([[row[3]] for row in naive_rows]),
        "not_done": np.array([[row[4]] for row in naive_rows]),
        "first_timestep": np.array(firsts, np.uint8).reshape(-1, 1),
    }
    for name, values in column.items():
        np.save(f"{prefix}_{name}.npy", values[order])
    frames = np.stack([row[0][-1] for row in naive_rows])[order]
    frames = np.concatenate([frames, np.zeros_like(frames[:1])])
    for start in range(0, size + 1, chunk):
        end = min(start + chunk, size + 1)
        np.save(f"{prefix}_state_{end}.npy", frames[start:end])
    np.save(f"{prefix}_replay_info.npy", [ptr, chunk])


def test_a_batch_of_the_authors_code_loads_without_what_it_does_not_know(tmp_path: Path) -> None:
    episodes = [(6, TERMINATED), (5, TRUNCATED), (4, None)]
    naive = Naive(100)
    play(episodes, [naive])
    authors_files(tmp_path / "b", naive.rows, episodes, ptr=15, chunk=4)
    buffer = FrameBuffer(SHAPE, "cpu", 1)
    assert buffer.load(tmp_path / "b") == 15
    # Row 10 was cut by a time limit and 14 is the newest: neither has a successor in these files.
    known = [row for number, row in enumerate(naive.rows) if number not in (10, 14)]
    # What follows a terminal state is never learned from, and is not in the files.
    no_frame = np.zeros((1, 3, 2), int)
    state, action, _, *rest = known[5]
    known[5] = (state, action, np.concatenate([state[1:], no_frame]), *rest)
    assert_holds(buffer, known)
    part = FrameBuffer(SHAPE, "cpu", 1)
    part.load(tmp_path / "b", 12)
    assert_holds(part, known[:11])


def test_a_full_ring_of_the_authors_code_is_put_in_order(tmp_path: Path) -> None:
    episodes = [(9, TERMINATED), (11, TERMINATED)]
    naive = Naive(14)
    play(episodes, [naive])
    authors_files(tmp_path / "b", naive.rows, episodes, ptr=20 % 14, chunk=4)
    buffer = FrameBuffer(SHAPE, "cpu", 1)
    assert buffer.load(tmp_path / "b") == 14
    # The first three rows' history was overwritten.
    batch = buffer.rows(range(buffer.size))
    np.testing.assert_array_equal(batch.state.numpy(), np.stack([row[0] for row in naive.rows[3:]]))
    assert batch.not_done.flatten().tolist() == [row[4] for row in naive.rows[3:]]
    with pytest.raises(RuntimeError, match="not saved again"):
        buffer.save(tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("reward", lambda a: np.full_like(a, np.nan), "_reward.npy: row 0, column 0 is nan"),
        ("not_done", lambda a: a + 1, r"_not_done.npy: row \d+, column 0 is 2"),
        ("first_timestep", lambda a: a * 7, "_first_timestep.npy: row 0, column 0 is 7"),
        ("action", lambda a: a + 0.5, "_action.npy: row 0, column 0"),
        ("action", lambda a: a[:-1], "differ in length"),
        ("state_21", lambda a: a[:-1], r"_state_21.npy holds uint8 of shape \(20, 3, 2\)"),
        ("state_21", lambda a: a.astype(np.float32), "_state_21.npy holds float32"),
        ("replay_info", lambda a: a[:1], "_replay_info.npy must hold two whole numbers"),
        ("edge_row", lambda a: a[:-1], "do not fit together"),
    ],
)
def test_a_damaged_batch_is_refused_by_name_and_changes_nothing(
    tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    made([(20, TERMINATED)], 20)[0].save(tmp_path / "b")
    without_digests(tmp_path / "b")
    path = tmp_path / f"b_{name}.npy"
    np.save(path, change(np.load(path)))
    buffer, naive = made([(5, TRUNCATED)], 9)
    with pytest.raises(InputError, match=message):
        buffer.load(tmp_path / "b")
    assert_holds(buffer, naive.rows)


def test_a_missing_or_cut_file_is_refused_by_name(tmp_path: Path) -> None:
    made([(20, TERMINATED)], 20)[0].save(tmp_path / "b")
    frames = tmp_path / "b_state_21.npy"
    content = frames.read_bytes()
    frames.write_bytes(content[:-5])
    with pytest.raises(InputError, match=r"b_state_21\.npy is damaged"):
        FrameBuffer(SHAPE, "cpu", 1).load(tmp_path / "b")
    frames.unlink()
    with pytest.raises(InputError, match=r"b_state_21\.npy does not exist"):
        FrameBuffer(SHAPE, "cpu", 1).load(tmp_path / "b")
