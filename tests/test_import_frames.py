"""The DQN replay data set: shards of frames, their edges, and the batch that discrete_BCQ reads."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import done, load_variant
from import_tools import imported, refused

import import_dataset
from common.data.frames import FrameBuffer

ENV = "PongNoFrameskip-v0"
SHAPE = (4, 84, 84)


def frame(number: float) -> np.ndarray:
    """A frame that shows its number."""
    return np.full((84, 84), number, np.uint8)


def shard(folder: Path, number: int, frames: list[int], ends: set[int], **columns: Any) -> None:
    """A shard whose frames show these numbers; rows are terminal where their frame is in `ends`."""
    folder.mkdir(exist_ok=True)
    every = {
        "observation": np.stack([frame(n) for n in frames]),
        "action": np.array([n % 6 for n in frames], np.int32),
        "reward": np.array(frames, np.float32),
        "terminal": np.array([n in ends for n in frames], np.uint8),
    } | columns
    for name, column in every.items():
        start = "" if name == "add_count" else "$store$_"
        with gzip.open(folder / f"{start}{name}_ckpt.{number}.gz", "wb") as file:
            np.save(file, column)


def read(folder: Path, *argv: str) -> str:
    return done(imported(folder, "--dqn_replay", folder / "Pong", "--env", ENV, *argv))


def loaded(folder: Path) -> Any:
    replay_buffer = FrameBuffer(SHAPE, "cpu", 1)
    replay_buffer.load(folder / "buffers" / f"B_{ENV}_0")
    return replay_buffer.rows(np.arange(replay_buffer.size))


def shown(stacks: Any) -> list[list[int]]:
    """The numbers of the frames of each stack."""
    assert (stacks == stacks[..., :1, :1]).all()
    return stacks[:, :, 0, 0].tolist()


def test_a_stack_never_holds_frames_of_two_episodes(tmp_path: Path) -> None:
    shard(tmp_path / "Pong", 0, [1, 2, 3, 4, 5, 6, 7], ends={3})
    out = read(tmp_path)
    batch = loaded(tmp_path)
    assert shown(batch.state) == [
        [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [0, 0, 0, 4], [0, 0, 4, 5], [0, 4, 5, 6],
    ]  # fmt: skip
    # Frame 7 has no successor in the shard, and is that of 6; what follows 3 is never used.
    assert shown(batch.next_state)[3:] == [[0, 0, 4, 5], [0, 4, 5, 6], [4, 5, 6, 7]]
    assert shown(batch.next_state)[:2] == [[0, 0, 1, 2], [0, 1, 2, 3]]
    assert batch.not_done[:, 0].tolist() == [1, 1, 0, 1, 1, 1]
    assert batch.action[:, 0].tolist() == [1, 2, 3, 4, 5, 0]
    reward = np.load(tmp_path / "buffers" / f"B_{ENV}_0_reward.npy")
    assert batch.reward[:, 0].tolist() == reward[:, 0].tolist() == [1] * 6  # clipped
    assert "read 6 transitions" in out and "1 finished: 1 in a terminal state" in out
    assert "return     mean 6, from 6 to 6" in out and "dropped    1: the newest row" in out


def test_a_shard_is_cut_at_its_ends(tmp_path: Path) -> None:
    shard(tmp_path / "Pong", 0, [1, 2, 3, 4], ends={2})
    shard(tmp_path / "Pong", 1, [5, 6, 7, 8, 9], ends={6, 9})
    shard(tmp_path / "Pong", 2, [10, 11], ends={11})
    out = read(tmp_path)
    batch = loaded(tmp_path)
    # Shard 1 begins within an episode, whose history it may not have; 2 after 1's end.
    assert [stack[-1] for stack in shown(batch.state)] == [1, 2, 3, 7, 8, 9, 10, 11]
    assert shown(batch.state)[3] == [0, 0, 0, 7] and shown(batch.state)[6] == [0, 0, 0, 10]
    assert shown(batch.next_state)[2] == [0, 0, 3, 4]
    assert batch.not_done[:, 0].tolist() == [1, 0, 1, 1, 1, 0, 1, 0]
    assert "dropped    2: rows before the first episode" in out
    record = json.loads((tmp_path / "buffers" / f"B_{ENV}_0.json").read_text())
    assert record["transitions"] == 8 and record["episodes"] == 3 and record["in_order"] is True
    assert record["source"] == {"format": "dqn_replay", "folder": "Pong", "shards": "0-2"}


def test_only_the_shards_asked_for_are_read(tmp_path: Path) -> None:
    for number, frames in enumerate([[1, 2], [3, 4], [5, 6], [7, 8]]):
        shard(tmp_path / "Pong", number, frames, ends=set(frames[1:]))
    read(tmp_path, "--shards", "1-2")
    # It is not known how shard 0, which was not read, ended.
    assert [stack[-1] for stack in shown(loaded(tmp_path).state)] == [5, 6]
    read(tmp_path, "--shards", "0,2-3", "--overwrite")
    assert [stack[-1] for stack in shown(loaded(tmp_path).state)] == [1, 2, 7, 8]
    outcome = imported(
        tmp_path / "x", "--dqn_replay", tmp_path / "Pong", "--env", ENV, "--shards", "2-5"
    )
    refused(tmp_path / "x", outcome, "lacks the shards 4-5; there are 0-3", "--shards")
    argv: list[Any] = ["--dqn_replay", tmp_path / "Pong", "--env", ENV, "--shards", "0-99999"]
    refused(tmp_path / "x", imported(tmp_path / "x", *argv), "lacks the shards 4-99999")


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1-", "1,,2", "1.5"])
def test_a_range_of_shards_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    outcome = imported(tmp_path, "--dqn_replay", tmp_path, "--env", ENV, f"--shards={text}")
    assert outcome.status == 2 and "is no range of shards such as 0-4" in outcome.err
    assert import_dataset.shards("3, 0-1,1") == [0, 1, 3]


def test_the_newest_row_of_a_ring_is_not_followed_by_its_oldest(tmp_path: Path) -> None:
    # Written 1 … 7, then 8 and 9 over the two oldest.
    shard(tmp_path / "Pong", 0, [8, 9, 3, 4, 5, 6, 7], ends={4, 7}, add_count=np.array(9))
    read(tmp_path)
    batch = loaded(tmp_path)
    assert [stack[-1] for stack in shown(batch.state)] == [8, 5, 6, 7]
    assert shown(batch.state)[1] == [0, 0, 0, 5] and shown(batch.next_state)[0] == [0, 0, 8, 9]
    record = json.loads((tmp_path / "buffers" / f"B_{ENV}_0.json").read_text())
    assert record["in_order"] is False


def test_the_oldest_row_of_a_ring_begins_no_episode_where_the_newest_ended_one(
    tmp_path: Path,
) -> None:
    shard(tmp_path / "Pong", 0, [7, 8, 3, 4, 5, 6], ends={4, 6, 8}, add_count=np.array(8))
    read(tmp_path)
    assert [stack[-1] for stack in shown(loaded(tmp_path).state)] == [7, 8, 5, 6]


def test_the_first_row_of_a_ring_goes_on_with_the_episode_of_its_last(tmp_path: Path) -> None:
    # Written 1 … 10, then 11 … 14: 11 is the fourth of the episode that 8 begins.
    frames = [11, 12, 13, 14, 5, 6, 7, 8, 9, 10]
    shard(tmp_path / "Pong", 0, frames, ends={7}, add_count=np.array(14))
    out = read(tmp_path)
    assert shown(loaded(tmp_path).state) == [[0, 0, 0, 8], [0, 0, 8, 9]]
    assert "dropped    7: rows before the first episode" in out


def test_a_ring_that_was_filled_twice_does_not_begin_where_it_begins(tmp_path: Path) -> None:
    shard(tmp_path / "Pong", 0, [7, 8, 9, 10, 11, 12], ends={8, 10}, add_count=np.array(12))
    read(tmp_path)
    assert [stack[-1] for stack in shown(loaded(tmp_path).state)] == [9, 10, 11]


def test_the_last_row_of_a_ring_says_nothing_of_the_next_shard(tmp_path: Path) -> None:
    shard(tmp_path / "Pong", 0, [5, 6, 3, 4], ends={4}, add_count=np.array(6))
    shard(tmp_path / "Pong", 1, [7, 8, 9, 10], ends={8}, add_count=np.array(12))
    read(tmp_path)
    assert [stack[-1] for stack in shown(loaded(tmp_path).state)] == [5, 9]


def test_of_a_ring_that_was_not_full_the_rest_is_left(tmp_path: Path) -> None:
    shard(tmp_path / "Pong", 0, [1, 2, 3, 0, 0], ends={0, 3}, add_count=np.array(3))
    read(tmp_path)
    assert [stack[-1] for stack in shown(loaded(tmp_path).state)] == [1, 2, 3]


def test_pieces_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    for number in range(2):
        frames = list(range(1 + 40 * number, 41 + 40 * number))
        shard(tmp_path / "Pong", number, frames, ends=set(draw.choice(frames, 6, False).tolist()))
    read(tmp_path)
    whole = loaded(tmp_path)
    for piece, written, chunk in [(1, 3, 30), (7, 50, 50)]:
        monkeypatch.setattr("datasets.dqn_replay.PIECE", piece)
        monkeypatch.setattr("common.data.frame_files.PIECE", written)
        monkeypatch.setattr("datasets.dqn_replay.CHUNK", chunk)
        read(tmp_path, "--overwrite")
        for one, other in zip(loaded(tmp_path), whole, strict=True):
            assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"observation": np.zeros((3, 84, 80), np.uint8)}, ["shape (3, 84, 80)", "observation"]),
        ({"observation": np.zeros((3, 84, 84))}, ["float64", "observation"]),
        ({"action": np.zeros(4, np.int32)}, ["action 4", "fetch shard 0 again"]),
        ({"action": np.array([0, 6, 0])}, ["1 actions are none of", "0 to 5", "row 1"]),
        ({"reward": np.array([0, np.nan, 0])}, ["reward", "row 1 is nan"]),
        ({"terminal": np.array([0, 2, 0])}, ["terminal", "holds 2"]),
        ({"add_count": np.array(0)}, ["add_count_ckpt.0.gz", "how many rows"]),
        ({"terminal": np.zeros(3), "observation": np.zeros((3, 84, 84, 4), np.uint8)}, ["84, 4)"]),
    ],
)  # fmt: skip
def test_a_shard_that_does_not_fit_is_refused(
    tmp_path: Path, columns: dict[str, Any], words: list[str]
) -> None:
    shard(tmp_path / "Pong", 0, [1, 2, 3], ends={3}, **columns)
    outcome = imported(tmp_path, "--dqn_replay", tmp_path / "Pong", "--env", ENV)
    refused(tmp_path, outcome, "Pong", *words)


@pytest.mark.parametrize("column", ["observation", "action", "reward", "terminal"])
def test_a_damaged_or_missing_column_is_named(tmp_path: Path, column: str) -> None:
    shard(tmp_path / "Pong", 0, list(range(1, 20)), ends={9})
    path = tmp_path / "Pong" / f"$store$_{column}_ckpt.0.gz"
    content = path.read_bytes()
    words = [path.name, "is damaged or no gzipped .npy column", "fetch it again"]
    argv: list[Any] = ["--dqn_replay", tmp_path / "Pong", "--env", ENV]
    for damaged in (content[: len(content) // 2], content[:5], b"", b"x" * 99):
        path.write_bytes(damaged)
        refused(tmp_path, imported(tmp_path, *argv), *words)
    path.unlink()
    words = ["$store$_observation_ckpt.N.gz"] if column == "observation" else [path.name, "missing"]
    refused(tmp_path, imported(tmp_path, *argv), *words)


def test_shards_without_a_beginning_are_refused(tmp_path: Path) -> None:
    shard(tmp_path / "Pong", 3, [1, 2, 3], ends=set())
    outcome = imported(tmp_path, "--dqn_replay", tmp_path / "Pong", "--env", ENV)
    refused(tmp_path, outcome, "in the shards 3 no episode begins")
    refused(tmp_path, imported(tmp_path, "--dqn_replay", tmp_path, "--env", ENV), "give the folder")


def test_discrete_bcq_reads_it(tmp_path: Path) -> None:
    shard(tmp_path / "Pong", 0, list(range(1, 30)), ends={10, 20})
    read(tmp_path)
    main = load_variant("discrete_BCQ").main
    # An evaluation would play a whole game, an update of these networks take seconds.
    args = main.parse_args(["--env", ENV, "--buffer_name", "B"])
    args.device = "cpu"
    replay_buffer = main.load_batch(args, tmp_path / "buffers" / f"B_{ENV}_0", main.make_env(ENV))
    assert replay_buffer.size == 28 and replay_buffer.sample(3).state.shape == (3, *SHAPE)
