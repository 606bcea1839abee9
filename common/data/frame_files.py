"""The files of a batch of Atari frames.

`_action`, `_reward`, `_not_done` and `_first_timestep` are (N, 1), oldest transition first.
`_state_{n}` holds the frames up to number n, N + 1 in all: frame i is the newest of transition
i's state, the last one of the newest transition's successor. `_edge_row` (E,) and `_edge_state`
(E, 84, 84) are the frames at the edges of episodes: at row r ≥ 0 the last of an episode, the
successor of r; at −1, −2, −3 those before the first. `_replay_info` is the row that the ring would
write next, and the number of frames a file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from common.data.batch_files import SavedBatch, column_path, replacing_batch
from common.data.replay import checked
from common.errors import InputError
from common.files import write_array, write_rows

COLUMNS = {
    "action": torch.int64,
    "reward": torch.float32,
    "not_done": torch.float32,
    "first_timestep": torch.int64,
}
PIECE = 1000  # frames written at a time, so that no second copy of a chunk is in memory


class Saved(NamedTuple):
    """A batch as `read` found it: K rows kept, of `total` in the files.

    action, reward, not_done (K, 1); first (K,): whether an episode begins; number: the rows that
    can be used; last_frame (K,): where in `last_frames` the last frame of the episode is which the
    row ended, or −1; blocks: the frames in order, memory maps, then those before the first; before:
    how many of those are known.
    """

    total: int
    action: np.ndarray
    reward: np.ndarray
    not_done: np.ndarray
    first: np.ndarray
    number: np.ndarray
    last_frame: np.ndarray
    last_frames: np.ndarray
    blocks: list[np.ndarray]
    before: int


def write(
    prefix: str | Path,
    columns: dict[str, np.ndarray],
    frames: int,
    chunk: int,
    frames_at: Callable[[slice], np.ndarray],
    record: dict[str, Any],
    permit: Callable[[str], None] = lambda _: None,
) -> None:
    """Write the frames that `frames_at` gives for a slice of them, the columns, and `record`.

    The slices are asked for in order, so that frames can be read as they are written; the columns
    come after them, so that what is learned from the frames can still go into those. `record` is
    given the batch's digest, with which `permit` is called before it is replaced.

    Raises: InputError where a file cannot be written; then all are as they were.
    """
    ends = [min(start + chunk, frames) for start in range(0, frames, chunk)]
    names = [*(f"state_{end}" for end in ends), *columns]
    with replacing_batch(prefix, names, record, permit) as temporaries:
        for number, temporary in enumerate(temporaries[: len(ends)]):
            _write_frames(temporary, number * chunk, ends[number], frames_at)
        for temporary, array in zip(temporaries[len(ends) :], columns.values(), strict=True):
            write_array(temporary, array)


def _write_frames(
    path: Path, start: int, end: int, frames_at: Callable[[slice], np.ndarray]
) -> None:
    slices = (slice(first, min(first + PIECE, end)) for first in range(start, end, PIECE))
    write_rows(path, (frames_at(one) for one in slices), end - start)


def read(batch: SavedBatch, state_shape: tuple[int, ...], size: int | None) -> Saved:
    """Check a saved batch, or its first `size` transitions, and map its frames where they lie.

    Files as the authors' code writes them are read too. They lack the frames at the edges, so that
    some transitions have no true state or successor, and are left out of `number`.

    Raises: InputError naming the file (and the row), as `FrameBuffer.load` says.
    """
    history, *frame = state_shape
    prefix = batch.prefix
    if "replay_info" not in batch and "state" in batch:
        raise InputError(
            f"{column_path(prefix, 'state')} holds vector states, and this environment shows "
            "frames: choose another --env or --buffer_name"
        )
    arrays = batch.columns(dict.fromkeys(COLUMNS, 1))
    total = len(arrays["action"])
    ptr, chunk = _replay_info(batch, total)
    oldest, used = ptr % total, total if size is None else min(size, total)
    edges = _read_edges(batch, history, tuple(frame))
    # Without the edges, whether a row is its episode's last is told by the row after it.
    kept = total if edges is None else used
    columns = {
        name: checked(column_path(prefix, name), array, oldest, kept, COLUMNS[name])
        for name, array in arrays.items()
    }
    first = columns["first_timestep"][:, 0] == 1
    terminal = columns["not_done"][:, 0] == 0
    first[1:] |= terminal[:-1]

    files = _open_chunks(batch, total, chunk, tuple(frame), total if oldest else kept + 1)
    if oldest:
        blocks = _section(files, chunk, oldest, total) + _section(files, chunk, 0, oldest)
    else:
        blocks = _section(files, chunk, 0, kept + 1)
    common = (total, columns["action"], columns["reward"], columns["not_done"], first)
    if edges is None:
        number = np.flatnonzero(_knows_both_states(first, terminal, history)[:used])
        if not len(number):
            raise InputError(f"{prefix}_*.npy hold no transition with a state and a successor")
        nothing = np.zeros((1, *frame), np.uint8)  # what follows a terminal state is never used
        return Saved(*common, number, np.where(terminal, 0, -1), nothing, blocks, before=0)

    row, state = edges
    inside = np.flatnonzero((row >= 0) & (row < kept))
    last_frame = np.full(kept, -1)
    last_frame[row[inside]] = inside
    # Frame −1 of a ring of K + H frames is its last: this block follows the others.
    earlier = np.zeros((history - 1, *frame), np.uint8)
    earlier[row[row < 0]] = state[row < 0]
    before = int((row < 0).sum())
    return Saved(*common, np.arange(kept), last_frame, state, [*blocks, earlier], before)


def _knows_both_states(first: np.ndarray, terminal: np.ndarray, history: int) -> np.ndarray:
    """Which rows have all frames of their state and successor, where no edges were saved."""
    history_lost = ~np.maximum.accumulate(first) & (np.arange(len(first)) < history - 1)
    last = np.append(first[1:], True)
    return ~history_lost & (terminal | ~last)


def _open_chunks(
    batch: SavedBatch, total: int, chunk: int, frame: tuple[int, ...], needed: int
) -> list[np.ndarray]:
    """The files that hold the first `needed` frames, as memory maps."""
    files = []
    for start in range(0, needed, chunk):
        end = min(start + chunk, total + 1)
        file = batch.array(f"state_{end}")
        expected = (end - start, *frame)
        if file.dtype != np.uint8 or file.shape != expected:
            path = column_path(batch.prefix, f"state_{end}")
            raise InputError(
                f"{path} holds {file.dtype} of shape {file.shape}, not uint8 of {expected}: "
                "make the batch again"
            )
        files.append(np.asarray(file))
    return files


def _section(files: list[np.ndarray], chunk: int, low: int, high: int) -> list[np.ndarray]:
    """Views of the frames low … high − 1, of files that hold `chunk` each."""
    firsts = (chunk * i for i in range(len(files)))
    views = (
        file[max(low - first, 0) : max(high - first, 0)]
        for first, file in zip(firsts, files, strict=True)
    )
    return [view for view in views if len(view)]


def _read_edges(
    batch: SavedBatch, history: int, frame: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """`_edge_row` (E,) and `_edge_state` (E, 84, 84); None where the batch lacks them."""
    if "edge_row" not in batch:
        return None
    row, state = np.array(batch.array("edge_row")), np.asarray(batch.array("edge_state"))
    fits = row.dtype.kind == "i" and row.ndim == 1 and state.dtype == np.uint8
    if not fits or state.shape != (len(row), *frame) or (row <= -history).any():
        paths = (column_path(batch.prefix, name) for name in ("edge_row", "edge_state"))
        raise InputError(f"{' and '.join(map(str, paths))} do not fit together; make them again")
    return row, state


def _replay_info(batch: SavedBatch, total: int) -> tuple[int, int]:
    """The next row to be written and the frames a file, as saved with a batch of `total` rows."""
    info = batch.array("replay_info").reshape(-1)
    whole = info.dtype.kind in "iu" and len(info) == 2
    if not whole or not 0 <= info[0] <= total or info[1] < 1:
        path = column_path(batch.prefix, "replay_info")
        raise InputError(f"{path} must hold two whole numbers, at most {total} and at least 1")
    return int(info[0]), int(info[1])
