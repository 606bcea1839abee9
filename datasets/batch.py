"""Transitions -> the files of a batch, block by block, and what there is to say of them."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from common.data.batch_files import replacing_batch
from common.data.episodes import mark_unfinished
from common.errors import InputError
from common.files import write_array
from datasets.rows import SHOWN, Rows, Transitions, transitions
from datasets.task import Task

# Beyond a bound, of its range or size: what float32 rounds; main.py's own is twice that.
TOLERANCE = 5e-7


class Source(NamedTuple):
    """Data to be imported.

    what: its name in messages; rows: a block at a time; total: how many rows, None where that is
    not known; unit: what a row's number counts; names: what it calls the columns; notes: what
    reading it found worth saying, filled as it is read; origin: what the record says of it.
    """

    what: str
    rows: Iterator[Rows]
    total: int | None
    unit: str
    names: dict[str, str]
    notes: list[str]
    origin: dict[str, Any]


class Episodes:
    """Returns, lengths and ends of logged episodes; the unfinished last one has no return."""

    def __init__(self) -> None:
        self.terminated = self.truncated = 0
        self._returns: list[np.ndarray] = []
        self._open, self.steps = 0.0, 0  # of the episode that goes on
        self.longest = 0

    def add(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Rows in the order they were logged, each (n,); a reward that is no number is NaN."""
        last = np.flatnonzero(terminated | truncated)
        self.terminated += int(terminated.sum())
        self.truncated += len(last) - int(terminated.sum())
        edges = np.append(0, last + 1)
        reward = reward.astype(np.float64)
        if len(last):
            # Each summed apart: NaN in one is no matter of the next.
            returns = np.add.reduceat(reward[: edges[-1]], edges[:-1])
            returns[0] += self._open
            lengths = np.diff(edges)
            lengths[0] += self.steps
            self.longest = max(self.longest, int(lengths.max()))
            self._returns.append(returns)
            self._open, self.steps = 0.0, 0
        self._open += float(reward[edges[-1] :].sum())
        self.steps += len(reward) - int(edges[-1])
        self.longest = max(self.longest, self.steps)

    @property
    def returns(self) -> np.ndarray:
        """Undiscounted, of the finished episodes that have one (no NaN in their rewards)."""
        every = np.concatenate([np.empty(0), *self._returns])
        return every[np.isfinite(every)]


class Actions:
    """Actions checked against the environment's bounds; (n, A) as logged -> as the batch has them.

    Those beyond are counted, and clipped where that was asked for.
    """

    def __init__(self, task: Task, clip: bool) -> None:
        self.task, self.clip = task, clip
        self.beyond, self.farthest, self.worst = 0, 0.0, 0.0
        self.first: int | None = None  # number of the first row with one beyond
        self.lowest, self.highest = np.inf, -np.inf

    def __call__(self, rows: Rows) -> np.ndarray:
        """(n, A). Raises: InputError for a discrete action that is none."""
        action, task = rows.action, self.task
        known = np.isfinite(action)
        if known.any():
            self.lowest = min(self.lowest, float(action[known].min()))
            self.highest = max(self.highest, float(action[known].max()))
        distance = np.where(known, np.maximum(action - task.high, task.low - action), 0)
        size = np.max([task.high - task.low, np.abs(task.low), np.abs(task.high)], 0)
        beyond = distance > TOLERANCE * size
        if task.num_actions is not None or task.whole is not None:
            beyond |= known & (action != np.floor(action))
        if beyond.any():
            rows_beyond = np.flatnonzero(beyond.any(1))
            if self.first is None:
                self.first = int(rows.number[rows_beyond[0]])
            self.beyond += len(rows_beyond)
            row, column = np.unravel_index(np.argmax(distance), distance.shape)
            if distance[row, column] >= self.farthest:
                self.farthest = float(distance[row, column])
                self.worst = float(action[row, column])
        if self.clip or beyond.any():  # what is beyond is clipped, or refused in the end
            action = action.clip(task.low, task.high)
            action = action if task.whole is None else np.rint(action)
        return task.to_batch(np.where(known, action, 0))

    def require_inside(self, what: str, unit: str) -> None:
        """Raises: InputError for actions beyond the bounds that are not to be clipped."""
        task = self.task
        if not self.beyond:
            return
        if task.num_actions is not None:
            raise InputError(
                f"{what}: {self.beyond:,} actions are none of {task.env_id}'s, 0 to "
                f"{task.num_actions - 1}, the first in {unit} {self.first}"
            )
        if not self.clip:
            wrong = "are beyond" if task.whole is None else "are no whole numbers or beyond"
            raise InputError(
                f"{what}: {self.beyond:,} actions {wrong} {task.env_id}'s bounds "
                f"{bounds(task)}, the largest is {self.worst:g}, the first in {unit} "
                f"{self.first}: --clip_actions clips them"
                + ("" if task.whole is None else " and rounds them")
            )


def bounds(task: Task) -> str:
    """The environment's own, `[-1, 1]` where all dimensions share them."""
    low, high = np.unique(task.low), np.unique(task.high)
    if len(low) == len(high) == 1:
        return f"[{low[0]:g}, {high[0]:g}]"
    return f"{task.low.tolist()} to {task.high.tolist()}"


class Summary(NamedTuple):
    """What an import read and wrote."""

    rows: int
    transitions: int
    episodes: Episodes
    actions: Actions
    dropped: Counter[str]


class _ColumnFile:
    """A .npy file written block by block; its length is known when it is closed."""

    def __init__(self, path: Path, width: int, dtype: np.dtype[Any]) -> None:
        self.file = path.open("wb")
        self.rows, self.width, self.dtype = 0, width, dtype
        self._write_header()

    def _write_header(self) -> None:
        # numpy leaves room for the longest number of rows, so that this one fits over the first.
        shape = (self.rows, self.width)
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, block: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(block, self.dtype).tobytes())
        self.rows += len(block)

    def __enter__(self) -> "_ColumnFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.seek(0)
        self._write_header()
        self.file.close()


def write(
    prefix: Path,
    source: Source,
    task: Task,
    clip: bool,
    drop_bad: bool,
    record: dict[str, Any],
    permit: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Write the batch and its record (`record` and what was counted); all files or none.

    A column more, `episode`, holds the number of each transition's episode: nothing else says for
    certain where one ends. `permit` is called with the batch's digest before it is moved into
    place.

    Memory: a block's. Raises: InputError where the data do not fit the environment, hold NaN, or
    leave no transition.
    """
    episodes, actions, dropped = Episodes(), Actions(task, clip), Counter[str]()
    bad: list[int] = []
    bad_columns: dict[str, None] = {}  # in the order in which they were found
    count = {"bad": 0, "rows": 0}

    def checked() -> Iterator[Rows]:
        with tqdm(total=source.total, unit="row", unit_scale=True, disable=None, delay=1) as bar:
            for rows in source.rows:
                if not len(rows.state):
                    continue
                count["rows"] += len(rows.state)
                not_finite = np.flatnonzero(~rows.finite)
                count["bad"] += len(not_finite)
                if len(not_finite):
                    bad_columns.update(
                        (source.names[name], None)
                        for name, finite in rows.finite_columns.items()
                        if not finite.all()
                    )
                bad.extend(rows.number[not_finite[: SHOWN - len(bad)]].tolist())
                # Whatever is wrong with a row now shows in its reward: whole numbers have no NaN,
                # and its state, if that is finite, is still the successor of the row before.
                reward = rows.reward.copy()
                reward[not_finite] = np.nan
                episodes.add(reward[:, 0], rows.terminated, rows.truncated)
                yield rows._replace(action=actions(rows), reward=reward)
                bar.update(len(rows.state))

    dtypes = dict.fromkeys(Transitions._fields, "<f4")
    dtypes |= {"action": "<f4" if task.num_actions is None else "<i8"}
    dtypes |= {"episode": "<i8"}
    widths = (task.state_dim, task.action_dim, task.state_dim, 1, 1, 1)
    columns = (*Transitions._fields, "episode")
    numbered: list[np.ndarray] = []
    with replacing_batch(prefix, [*columns, "ptr"], record, permit) as temporaries:
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(_ColumnFile(path, width, np.dtype(dtypes[name])))
                for name, path, width in zip(columns, temporaries, widths, strict=False)
            }
            for block in transitions(checked(), dropped, numbered):
                for name, column in block._asdict().items():
                    files[name].append(column)
                files["episode"].append(numbered.pop())
        kept = files["state"].rows
        if episodes.steps and kept:
            numbers = np.load(temporaries[columns.index("episode")], mmap_mode="r+")
            mark_unfinished(numbers)
            numbers.flush()
        if bad and not drop_bad:
            more = f" and {count['bad'] - len(bad):,} more" if count["bad"] > len(bad) else ""
            where = f"{source.unit} {', '.join(map(str, bad))}{more} ({', '.join(bad_columns)})"
            raise InputError(
                f"{source.what}: NaN or infinity in {where}: "
                "repair the data, or leave such rows out with --drop_bad_rows"
            )
        actions.require_inside(source.what, source.unit)
        if not kept:
            raise InputError(
                f"{source.what} gives no transition: of {count['rows']:,} rows none has a successor"
            )
        write_array(temporaries[-1], np.array(0))  # the batch is full: its oldest row comes first
        record |= counted(kept, episodes) | {"rows_dropped": sum(dropped.values())}
    return Summary(count["rows"], kept, episodes, actions, +dropped)


def counted(kept: int, episodes: Episodes) -> dict[str, Any]:
    """The figures of a batch's record; the returns are those of its finished episodes."""
    returns = episodes.returns
    return {
        "transitions": kept,
        "episodes": len(returns),
        "mean_return": float(returns.mean()) if len(returns) else None,
    }
