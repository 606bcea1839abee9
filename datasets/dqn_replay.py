"""The DQN replay data set: shards of a game's frames, for discrete_BCQ's frame buffer.

A shard N is four gzipped .npy columns `$store$_{observation,action,reward,terminal}_ckpt.N.gz`, one
row a step; `observation` (n, 84, 84) uint8 is the frame the agent saw last before it acted. The
frame after it is the next row's: a shard's last row has none and is dropped, unless it is terminal.
`add_count_ckpt.N.gz`, where there is one, tells where the ring that was saved goes on.

Source: Agarwal, Schuurmans, Norouzi, "An Optimistic Perspective on Offline Reinforcement Learning",
ICML 2020 (arXiv 1907.04543); the files are those of Dopamine's replay buffer.
"""

import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from common.data import frame_files
from common.data.frames import CHUNK
from common.errors import InputError
from datasets.batch import Actions, Episodes, Summary, counted
from datasets.reading import flags, numbers, reading
from datasets.rows import Rows
from datasets.task import Task

FRAME = (84, 84)
PIECE = 500  # frames read at a time
COLUMNS = ("observation", "action", "reward", "terminal")
NO_NEXT_FRAME = "the newest row of a shard, whose next frame is not in it"
NO_HISTORY = "rows before the first episode that begins in a shard: their history is not in it"


class Shard(NamedTuple):
    """One shard: the path of its frames, and of every row what happens to it.

    kept: whether it is a transition; first: whether an episode begins with it; edge: whether its
    frame is the last of an episode, kept aside: the row's own where it is terminal, and that of a
    row without a next frame where the row before it is kept; whole: whether its episode begins and
    ends in the shard, so that it has a return; in_order: whether the rows are as they happened.
    """

    path: Path
    rows: int
    action: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    kept: np.ndarray
    first: np.ndarray
    edge: np.ndarray
    whole: np.ndarray
    in_order: bool


class Replay(NamedTuple):
    """The shards of a folder, and what was counted while their small columns were read."""

    what: str
    shards: list[Shard]
    episodes: Episodes
    actions: Actions
    dropped: Counter[str]
    notes: list[str]
    origin: dict[str, Any]


def read(folder: Path, wanted: list[int] | None, task: Task) -> Replay:
    """The small columns of the shards wanted, in order; their frames are read as they are written.

    Raises: InputError where a shard is missing or damaged, or holds actions the game has not.
    """
    if not folder.is_dir():
        raise InputError(f"--dqn_replay {folder} is no folder")
    pattern = re.compile(r"\$store\$_observation_ckpt\.(\d+)\.gz")
    there = sorted(int(m[1]) for path in folder.iterdir() if (m := pattern.fullmatch(path.name)))
    if not there:
        raise InputError(
            f"{folder} holds no $store$_observation_ckpt.N.gz: give the folder of one game's shards"
        )
    chosen = there if wanted is None else wanted
    if lost := sorted(set(chosen) - set(there)):
        raise InputError(
            f"{folder} lacks the shards {_ranges(lost)}; there are {_ranges(there)}: fetch them, "
            "or choose others with --shards"
        )
    episodes, actions, dropped = Episodes(), Actions(task, clip=False), Counter[str]()
    shards: list[Shard] = []
    begins: set[int] = set()  # shards that follow one whose newest row ended an episode
    for number in chosen:
        shard = _read_shard(folder, number, number in begins, dropped)
        if shard.terminal[-1] and shard.in_order:
            begins.add(number + 1)
        rows = np.arange(shard.rows)
        action = numbers(f"{folder}, action of shard {number}", shard.action, np.float64)
        actions(Rows(rows, action, action, action, rows < 0, rows < 0, None))
        actions.require_inside(f"{folder}, shard {number}", "row")
        whole = shard.whole
        episodes.add(shard.reward[whole], shard.terminal[whole], np.zeros(int(whole.sum()), bool))
        shards.append(shard)
    if not any(shard.kept.any() for shard in shards):
        raise InputError(
            f"{folder}: in the shards {_ranges(chosen)} no episode begins that has a transition"
        )
    origin = {"format": "dqn_replay", "folder": folder.name, "shards": _ranges(chosen)}
    notes = ["rewards are clipped to [-1, 1] in the batch, the returns above are of the data"]
    return Replay(str(folder), shards, episodes, actions, dropped, notes, origin)


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> `0-2, 5`."""
    every = set(numbers)
    starts = [n for n in numbers if n - 1 not in every]
    stops = [n for n in numbers if n + 1 not in every]
    pairs = zip(starts, stops, strict=True)
    return ", ".join(f"{start}-{stop}" if stop > start else f"{start}" for start, stop in pairs)


def _read_shard(folder: Path, number: int, begins: bool, dropped: Counter[str]) -> Shard:
    paths = {name: folder / f"$store$_{name}_ckpt.{number}.gz" for name in COLUMNS}
    for path in paths.values():
        if not path.exists():
            raise InputError(f"{path} is missing: fetch shard {number} again")
    action, reward, terminal = (_column(paths[name]) for name in COLUMNS[1:])
    with _frames_of(paths["observation"]) as frames:
        rows = frames.rows
    lengths = {"action": len(action), "reward": len(reward), "terminal": len(terminal)}
    if set(lengths.values()) != {rows}:
        described = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(
            f"{paths['observation']} has {rows} rows, its other columns differ ({described}): "
            f"fetch shard {number} again"
        )
    count_path = folder / f"add_count_ckpt.{number}.gz"
    used, newest, overwritten = rows, rows - 1, False
    if count_path.exists():
        added = _column(count_path)
        if added.size != 1 or added.dtype.kind not in "iu" or added.item() < 1:
            raise InputError(f"{count_path} holds {added!r:.60}, not how many rows were written")
        used = min(rows, int(added.item()))  # of a ring that was not full the rest is empty
        newest = (int(added.item()) - 1) % rows
        overwritten = int(added.item()) > rows
    if not used:
        raise InputError(f"{paths['observation']} is empty: fetch shard {number} again")
    reward = numbers(str(paths["reward"]), reward[:used])[:, 0]
    if not np.isfinite(reward).all():
        row = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise InputError(f"{paths['reward']}: row {row} is {reward[row]}: fetch it again")
    terminal = flags(str(paths["terminal"]), terminal[:used])
    cut = np.zeros(used, bool)
    cut[[newest, used - 1]] = True
    cut &= ~terminal
    if newest < used - 1:  # the ring went on at its beginning, after its last row
        begins = bool(terminal[-1])
    elif number == 0:
        begins = not overwritten
    return _classified(
        paths["observation"], action[:used], reward, terminal, cut, begins, newest, dropped
    )


def _classified(
    path: Path,
    action: np.ndarray,
    reward: np.ndarray,
    terminal: np.ndarray,
    cut: np.ndarray,
    begins: bool,
    newest: int,
    dropped: Counter[str],
) -> Shard:
    """What happens to every row; what is dropped is counted."""
    after_end = np.append(begins, terminal[:-1])
    # After the newest row of a ring comes its oldest, which may lie anywhere in an episode.
    unknown_from = np.zeros(len(action), bool)
    unknown_from[0] = not begins
    if newest + 1 < len(action):
        after_end[newest + 1] = False
        unknown_from[newest + 1] = True
    # Between the last place where the history was lost and the next beginning it stays unknown.
    place = np.arange(len(action))
    lost = np.maximum.accumulate(np.where(unknown_from, place, -1))
    found = np.maximum.accumulate(np.where(after_end, place, -1))
    known = found >= lost
    kept = known & ~cut
    first = kept & after_end
    before_kept = np.append(False, kept[:-1] & ~terminal[:-1])
    edge = (kept & terminal) | (cut & known & before_kept)
    dropped[NO_HISTORY] += int((~known).sum())
    dropped[NO_NEXT_FRAME] += int((cut & known).sum())

    def next_place(ends: np.ndarray) -> np.ndarray:
        return np.minimum.accumulate(np.where(ends, place, len(place))[::-1])[::-1]

    whole = kept & (next_place(terminal) < next_place(cut))
    in_order = newest == len(place) - 1
    columns = (action, reward, terminal, kept, first, edge, whole)
    return Shard(path, len(place), *columns, in_order)


def _column(path: Path) -> np.ndarray:
    with reading(path, "gzipped .npy column"), gzip.open(path) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # the checksum comes after the last byte
    return array


class _frames_of:
    """The frames of a shard, read in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, "gzipped .npy column"):
            self.file = gzip.open(path)  # noqa: SIM115 - closed by the block this begins
            version = np.lib.format.read_magic(self.file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read_header(self.file)
        if dtype != np.uint8 or shape[1:] != FRAME or len(shape) != 3 or fortran:
            raise InputError(f"{path} holds {dtype} of shape {shape}, not uint8 of (rows, 84, 84)")
        self.rows = int(shape[0])

    def pieces(self, rows: int) -> Iterator[np.ndarray]:
        """(n, 84, 84) each, of the first `rows` frames."""
        for start in range(0, rows, PIECE):
            count = min(PIECE, rows - start)
            with reading(self.path, "gzipped .npy column"):
                content = self.file.read(count * 84 * 84)
                if len(content) < count * 84 * 84:
                    raise EOFError("it ends too early")
            yield np.frombuffer(content, np.uint8).reshape(count, *FRAME)

    def __enter__(self) -> "_frames_of":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class _Stream:
    """All kept frames in order for `frame_files.write`; edges are put aside as they come by."""

    def __init__(self, shards: list[Shard], edges: np.ndarray) -> None:
        self.edges, self._edge = edges, 0
        self._pieces = self._kept(shards)
        self._held = np.empty((0, *FRAME), np.uint8)
        self._start = 0  # number of the first frame held
        self._last: np.ndarray | None = None

    def _kept(self, shards: list[Shard]) -> Iterator[np.ndarray]:
        total = sum(shard.rows for shard in shards)
        with tqdm(total=total, unit="frame", unit_scale=True, disable=None, delay=1) as bar:
            for shard in shards:
                with _frames_of(shard.path) as frames:
                    start = 0
                    for piece in frames.pieces(shard.rows):
                        rows = slice(start, start + len(piece))
                        aside = piece[shard.edge[rows]]
                        self.edges[self._edge : self._edge + len(aside)] = aside
                        self._edge += len(aside)
                        start += len(piece)
                        bar.update(len(piece))
                        yield piece[shard.kept[rows]]

    def __call__(self, rows: slice) -> np.ndarray:
        """The frames of these numbers, asked for in order; after the newest, the newest again."""
        while self._start + len(self._held) < rows.stop:
            piece = next(self._pieces, None)
            if piece is None:
                assert self._last is not None
                piece = self._last
            elif len(piece):
                self._last = piece[-1:]
            self._held = np.concatenate([self._held[max(rows.start - self._start, 0) :], piece])
            self._start = max(self._start, rows.start)
        return self._held[rows.start - self._start : rows.stop - self._start]


def write(
    prefix: Path,
    replay: Replay,
    record: dict[str, Any],
    permit: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Write the batch of frames and its record; all files or none. Gives the figures.

    `permit` is called with the batch's digest before it is moved into place.

    Memory: some thousand frames. Raises: InputError where a shard's frames are damaged.
    """
    shards = replay.shards
    kept = [shard.kept for shard in shards]

    def column(values: list[np.ndarray], dtype: type) -> np.ndarray:
        parts = [one[rows] for one, rows in zip(values, kept, strict=True)]
        return np.concatenate(parts).reshape(-1, 1).astype(dtype)

    size = sum(int(rows.sum()) for rows in kept)
    edge_rows, before = [], 0
    for shard in shards:
        # The transition that an edge's frame follows is the newest one kept by then.
        so_far = np.cumsum(shard.kept)
        edge_rows.append(before + so_far[shard.edge] - 1)
        before += int(so_far[-1])
    edge_row = np.concatenate(edge_rows)
    edge_state = np.zeros((len(edge_row), *FRAME), np.uint8)
    columns = {
        "action": column([shard.action.reshape(-1) for shard in shards], np.int64),
        "reward": column([shard.reward.clip(-1, 1) for shard in shards], np.float32),
        "not_done": column([1 - shard.terminal for shard in shards], np.float32),
        "first_timestep": column([shard.first for shard in shards], np.uint8),
        "edge_row": edge_row,
        "edge_state": edge_state,
        "replay_info": np.array([0, CHUNK]),
    }
    record |= counted(size, replay.episodes) | {"rows_dropped": sum(replay.dropped.values())}
    record["in_order"] = all(shard.in_order for shard in shards)
    frames = _Stream(shards, edge_state)
    frame_files.write(prefix, columns, size + 1, CHUNK, frames, record, permit)
    rows = sum(shard.rows for shard in shards)
    return Summary(rows, size, replay.episodes, replay.actions, +replay.dropped)
