"""The batch: a ring of transitions on the device, and the files it is saved as."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from common.data.batch_files import SavedBatch, column_path, replacing_batch
from common.data.episodes import breaks, ends_of, numbers_of
from common.errors import InputError
from common.files import write_array, write_rows
from common.notes import note

LARGE = 1e5  # a state's number from which a line is due
PIECE = 20_000  # rows that are read or written at a time


class Batch(NamedTuple):
    """B transitions: state and next_state (B, S), action (B, A), reward and not_done (B, 1)."""

    state: Tensor
    action: Tensor
    next_state: Tensor
    reward: Tensor
    not_done: Tensor


def checked(
    path: Path, array: np.ndarray, first: int, count: int, dtype: torch.dtype
) -> np.ndarray:
    """`count` rows from row `first` on, round the ring, converted to `dtype`.

    Raises: InputError naming the row where a number is NaN, infinite or none of this type, or
    neither 0 nor 1 in a column whose name says it must be.
    """
    first %= len(array)
    values = array[first : first + count]
    if len(values) < count:
        values = np.concatenate([values, array[: count - len(values)]])
    whole = not dtype.is_floating_point
    with np.errstate(over="ignore", invalid="ignore"):
        column = values.astype(np.int64 if whole else np.float32)
        bad = (column != values) if whole else ~np.isfinite(column)
    if path.name.endswith(("_not_done.npy", "_first_timestep.npy")):
        bad |= (column != 0) & (column != 1)
    if bad.any():
        row, place = np.argwhere(bad)[0]
        raise InputError(
            f"{path}: row {(row + first) % len(array)}, column {place} is "
            f"{values[row, place]:g}; repair or drop that transition"
        )
    return column


def in_place(
    saved: SavedBatch, name: str, count: int, width: int, dtype: torch.dtype
) -> Tensor | None:
    """The first `count` rows of a column over its file, not read; None if it must be converted.

    Runs side by side on one machine then have one copy of a batch, the system's. What is written to
    the rows stays in this process and does not reach the file (copy on write).
    """
    array = saved.array(name, "c")
    if array.dtype != (np.float32 if dtype.is_floating_point else np.int64):
        return None
    if not (array.flags.c_contiguous and array.flags.aligned):
        return None
    return torch.from_numpy(array.reshape(-1, width)[:count])


def large_states(what: str) -> str:
    """A line on states that are not scaled."""
    return (
        f"{what} has states of {LARGE:,.0f} and more: networks learn badly from such numbers, and "
        "float32 keeps seven digits of them; let the environment, or what logs it, scale them"
    )


@contextmanager
def affordable(transitions: int) -> Iterator[None]:
    """Raises: InputError where the block finds no memory for a buffer of so many transitions."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # numpy's, and torch's
        raise InputError(
            f"no memory for a buffer of {transitions:,} transitions: a smaller --buffer_size needs "
            "less, in stage 2 fewer --max_timesteps"
        ) from error


class ReplayBuffer:
    """A ring of the last `max_size` transitions, float32 tensors on the device.

    108 bytes a Hopper transition. Memory is touched only as it fills. `ptr` is the next row to be
    written, `size` the number of rows held, `added` the number of transitions that came in;
    `record` is what the json of a loaded batch says, with the batch's digest.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        device: torch.device | str,
        max_size: int = int(1e6),
        action_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device = torch.device(device)
        self.max_size, self.size, self.ptr, self.added = max_size, 0, 0, 0
        self.record: dict[str, Any] = {}
        widths = Batch(state_dim, action_dim, state_dim, 1, 1)  # type: ignore[arg-type]
        self._widths: dict[str, int] = widths._asdict()
        self._dtypes = dict.fromkeys(Batch._fields, torch.float32) | {"action": action_dtype}
        with affordable(max_size):
            self._columns = self._empty(max_size)
        # Whether an episode ended with each row; None: nothing says so, see `ends`.
        self._ended: np.ndarray | None = np.zeros(max_size, bool)

    def _empty(self, rows: int) -> Batch:
        return Batch(*(self._empty_column(name, rows) for name in Batch._fields))

    def _empty_column(self, name: str, rows: int) -> Tensor:
        shape, dtype = (rows, self._widths[name]), self._dtypes[name]
        return torch.empty(shape, dtype=dtype, device=self.device)

    def add(
        self,
        state: np.ndarray,
        action: np.ndarray | int,
        next_state: np.ndarray,
        reward: float,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Write a transition over the oldest; `next_state` is its true successor, not a reset's."""
        # Only a terminal state stops the bootstrap (FIDELITY.md).
        row = Batch(state, action, next_state, reward, 1.0 - terminated)  # type: ignore[arg-type]
        for column, value in zip(self._columns, row, strict=True):
            if column.is_cpu:  # through numpy: a fifth of the time
                column.numpy()[self.ptr] = value
            else:
                column[self.ptr] = torch.as_tensor(value)
        if self._ended is not None:
            self._ended[self.ptr] = terminated or truncated
        self.added += 1
        self.ptr = (self.ptr + 1) % self.max_size
        self.size = min(self.size + 1, self.max_size)

    def cut(self) -> None:
        """The newest transition's episode goes no further, as if a time limit had cut it."""
        if self._ended is not None:
            self._ended[self.ptr - 1] = True

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions drawn uniformly with replacement by torch's generator."""
        # The ring's rows can be drawn by place: uniform over places is uniform over ages.
        return self._take(torch.randint(self.size, (batch_size,), device=self.device))

    def rows(self, index: Any) -> Batch:
        """The transitions at these positions by age, 0 being the oldest kept.

        Raises: IndexError for a position outside [0, size).
        """
        index = torch.as_tensor(index, device=self.device).reshape(-1)
        if len(index) and not (int(index.min()) >= 0 and int(index.max()) < self.size):
            raise IndexError(f"positions must lie in [0, {self.size})")
        return self._take((index + self._oldest) % self.max_size)

    @property
    def _oldest(self) -> int:
        return self.ptr if self.size == self.max_size else 0

    def _take(self, index: Tensor) -> Batch:
        return Batch(*(column.index_select(0, index) for column in self._columns))

    def tail(self, first: int, end: int) -> dict[str, Any]:
        """The transitions that came in as number `first` … `end` − 1, which must all be held."""
        row = torch.arange(first, end, device=self.device) % self.max_size
        columns = self._take(row)._asdict()
        tail = {"first": first} | {name: column.cpu() for name, column in columns.items()}
        if self._ended is not None:
            tail["ended"] = torch.from_numpy(self._ended[row.cpu().numpy()])
        return tail

    def extend(self, tail: dict[str, Any]) -> None:
        """Put back what `tail` gave, as the newest transitions."""
        end = tail["first"] + len(tail["reward"])
        row = torch.arange(tail["first"], end, device=self.device) % self.max_size
        for name, column in self._columns._asdict().items():
            column[row] = tail[name].to(self.device)
        if "ended" not in tail:  # of older code
            self._ended = None
        if self._ended is not None:
            self._ended[row.cpu().numpy()] = tail["ended"].numpy()
        self.added, self.ptr, self.size = end, end % self.max_size, min(end, self.max_size)

    def save(
        self,
        prefix: str | Path,
        record: dict[str, Any] | None = None,
        simulator: np.ndarray | None = None,
        permit: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Write the columns, oldest transition first, and `record` as json; all files or none.

        A column more, `episode`, holds the number of each transition's episode. `simulator`: exact
        states of some rows (common/environment/simulator.py), saved beside them. `record` is given
        the batch's digest, with which `permit` is called before it is replaced.

        Raises: InputError where they cannot be written.
        """
        more = {"ptr": np.array(self.size % self.max_size), "episode": numbers_of(self.ends())}
        if simulator is not None:
            more["simulator"] = simulator
        names, record = [*Batch._fields, *more], {} if record is None else record
        with replacing_batch(prefix, names, record, permit) as temporaries:
            columns, others = temporaries[: -len(more)], temporaries[-len(more) :]
            for temporary, column in zip(columns, self._columns, strict=True):
                write_rows(temporary, self._pieces(column), self.size)
            for temporary, array in zip(others, more.values(), strict=True):
                write_array(temporary, array)

    def _pieces(self, column: Tensor) -> Iterator[np.ndarray]:
        """The rows held, oldest first, a few at a time: no second copy of a column is in memory."""
        for begin, end in [(self._oldest, self.size), (0, self._oldest)]:
            for start in range(begin, end, PIECE):
                yield column[start : min(start + PIECE, end)].cpu().numpy()

    def load(self, prefix: str | Path, size: int | None = None) -> int:
        """Replace the content by a saved batch or its first `size` transitions; grows if need be.

        Reads float32 and float64, and (N,) columns as (N, 1). A ring saved as it lay (its `ptr`
        inside a full buffer) is put in order, oldest first. On the CPU, columns that need no
        conversion are used where they lie, in the files' pages, which all runs share.

        Returns: the number of transitions in the files, `self.size` being how many were kept.
        Raises: InputError naming the file (and the row) where a column is missing, damaged, empty,
        of another length or width, holds NaN or infinity, or a `not_done` other than 0 and 1;
        where there is no memory for it.
        """
        with SavedBatch(prefix) as saved:
            return self._load(saved, size)

    def _load(self, saved: SavedBatch, size: int | None) -> int:
        total = len(saved.columns(self._widths)["state"])
        kept = total if size is None else min(size, total)
        oldest = self._saved_oldest(saved, total)
        rows = max(kept, self.max_size)
        as_it_lies = self.device.type == "cpu" and not oldest and rows == kept
        try:
            # Others than those held: a refused batch changes nothing.
            columns = Batch(
                *(self._read(saved, n, oldest, kept, rows, as_it_lies) for n in Batch._fields)
            )
        except (MemoryError, RuntimeError) as error:  # numpy's, and torch's
            raise InputError(
                f"no memory for the {kept:,} transitions of {saved.prefix}_*.npy; --buffer_size "
                "takes the first of them"
            ) from error
        self._ended = self._saved_ends(saved, total, oldest, kept, rows)
        self._columns, self.max_size, self.record = columns, rows, saved.record
        self.size, self.ptr, self.added = kept, kept % rows, kept
        return total

    def _read(
        self, saved: SavedBatch, name: str, oldest: int, kept: int, rows: int, as_it_lies: bool
    ) -> Tensor:
        """A saved column's `kept` rows from row `oldest` on, checked, with room for `rows`."""
        path, dtype, width = column_path(saved.prefix, name), self._dtypes[name], self._widths[name]
        shared = in_place(saved, name, kept, width, dtype) if as_it_lies else None
        column = self._empty_column(name, rows) if shared is None else shared
        for start in range(0, kept, PIECE):
            # Mapped anew: what was read through one map counts as memory until it is closed.
            array = saved.array(name)
            piece = checked(
                path, array.reshape(len(array), -1), oldest + start, min(PIECE, kept - start), dtype
            )
            if name == "state" and max(piece.max(), -piece.min()) >= LARGE:
                note(large_states(str(path)))
            if shared is None:
                column[start : start + len(piece)] = torch.from_numpy(piece)
        return column

    @staticmethod
    def _saved_ends(
        saved: SavedBatch, total: int, oldest: int, kept: int, rows: int
    ) -> np.ndarray | None:
        """From the column `episode`, (rows,); None where the batch has none."""
        if "episode" not in saved:
            return None
        numbers = saved.array("episode").reshape(-1)
        if len(numbers) != total or numbers.dtype.kind not in "iu":
            raise InputError(
                f"{column_path(saved.prefix, 'episode')} must hold {total:,} whole numbers, as "
                "many as transitions: delete it, or make the batch again"
            )
        ended = np.zeros(rows, bool)
        ended[:kept] = ends_of(np.roll(numbers, -oldest) if oldest else numbers)[:kept]
        return ended

    def take_up(self, prefix: str | Path, added: int, ended: bool) -> None:
        """Be again the ring that was saved as this batch when `added` transitions had come in.

        `ended`: whether an episode ended with the last of them, which a batch does not say.

        Raises: InputError as `load` does.
        """
        self.load(prefix)
        place = added % self.max_size
        if added > self.size:  # the rows of a full ring lie where they were written
            for column in self._columns:
                column.copy_(column.roll(place, 0))
            self._ended = None if self._ended is None else np.roll(self._ended, place)
        if self._ended is not None:
            self._ended[place - 1] = ended
        self.added, self.ptr = added, place

    @staticmethod
    def _saved_oldest(saved: SavedBatch, total: int) -> int:
        if "ptr" not in saved:
            return 0
        path, ptr = column_path(saved.prefix, "ptr"), saved.array("ptr")
        if (
            ptr.size != 1
            or not np.issubdtype(ptr.dtype, np.integer)
            or not 0 <= ptr.item() <= total
        ):
            raise InputError(f"{path} must hold one whole number from 0 to {total}; make it again")
        return int(ptr.item()) % total

    def episode_returns(self) -> list[float]:
        """Undiscounted returns of the finished episodes held, oldest first."""
        reward = torch.from_numpy(self._in_order(self._columns.reward)[:, 0])
        sums = reward.double().cumsum(0)[torch.from_numpy(self.ends())]
        return sums.diff(prepend=sums.new_zeros(1)).tolist()

    def part(self, index: Tensor) -> Self:
        """A buffer of the transitions at these positions by age alone. Raises: as `rows`."""
        alone = copy(self)
        alone._columns = self.rows(index)
        alone.size = alone.max_size = alone.added = len(index)
        alone.ptr, alone._ended = 0, self.ends()[index.cpu().numpy()]
        return alone

    @property
    def says_ends(self) -> bool:
        """Whether it is known where episodes end; otherwise the states tell, as far as they do."""
        return self._ended is not None

    @property
    def at_end(self) -> bool:
        """Whether an episode ended with the newest transition, as far as that is known."""
        return self._ended is not None and bool(self._ended[self.ptr - 1])

    def ends(self) -> np.ndarray:
        """Whether an episode ends with each transition held, oldest first, (size,) bool."""
        terminal = self._in_order(self._columns.not_done)[:, 0] == 0
        if self._ended is not None:
            return terminal | np.roll(self._ended[: self.size], -self._oldest)
        for start in range(0, self.size, PIECE):  # in pieces: no second copy is in memory
            end = min(start + PIECE + 1, self.size)
            row = torch.arange(start + self._oldest, end + self._oldest, device=self.device)
            row %= self.max_size
            state, following = (
                column.index_select(0, row).cpu().numpy()
                for column in (self._columns.state, self._columns.next_state)
            )
            terminal[start : end - 1] |= breaks(state, following)[:-1]
        return terminal

    def _in_order(self, column: Tensor) -> np.ndarray:
        """A column's rows held, oldest first."""
        return column[: self.size].roll(-self._oldest, 0).cpu().numpy()

    @property
    def state(self) -> Tensor:
        """The states held, in no particular order, (size, S)."""
        return self._columns.state[: self.size]

    @property
    def action(self) -> Tensor:
        """The actions held, in no particular order, (size, A)."""
        return self._columns.action[: self.size]


class GrowingBatch:
    """A batch as its behavioural agent saw it grow: sample t is of the first `start` + t rows.

    Source: Fujimoto, Meger, Precup, ICML 2019, section 3.1, the concurrent task.
    """

    def __init__(self, replay_buffer: ReplayBuffer, start: int) -> None:
        self.replay_buffer, self.visible = replay_buffer, start

    @property
    def state(self) -> Tensor:
        """The states that the next sample is drawn from, (visible + 1, S)."""
        return self.replay_buffer.rows(torch.arange(self.visible + 1)).state

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` of the transitions that had happened, uniformly with replacement.

        Raises: IndexError beyond the sample that sees the whole batch.
        """
        self.visible += 1
        if self.visible > self.replay_buffer.size:
            raise IndexError(f"the batch has {self.replay_buffer.size} transitions, no more came")
        device = self.replay_buffer.device
        return self.replay_buffer.rows(torch.randint(self.visible, (batch_size,), device=device))

    def state_dict(self) -> dict[str, Any]:
        """How many transitions have been seen; the batch itself stays in its files."""
        return {"visible": self.visible}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See on from there."""
        self.visible = state["visible"]
