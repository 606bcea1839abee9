"""The batch of frames: one a transition, states put together as they are sampled.

A frame of Atari stands in four states and four successors; kept once, as bytes, it takes 7 kB a
transition. Small images, stacks of one, are kept alike.
"""

import warnings
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.data import frame_files
from common.data.batch_files import SavedBatch
from common.data.replay import Batch, affordable

TAIL = 10_000  # transitions copied at a time
CHUNK = 100_000  # frames a file, and frames of memory asked for at a time


class FrameBuffer:
    """A ring of the last `max_size` transitions whose states are H stacked frames, uint8.

    Frame n is the newest of transition n's state, and the newest of its successor is frame n + 1 of
    the ring, or, where n ended its episode, a frame kept aside. A state's older frames are those
    before it in the ring, zeros before its episode's first, as in the environment's own stacks. The
    ring holds `max_size` + H frames, so that the oldest transition has its history too.

    7.06 GB at 1e6 transitions of Atari, taken from the system as it fills. A batch that was loaded
    stays in its files, is read from there (the system keeps in memory what it can) and cannot grow.

    Rewards are clipped to [−1, 1], as learning on Atari takes them, unless `clip` is False. `ptr`
    is the next row to be written, `size` the number of transitions held.

    Warns: RuntimeWarning where `max_size` transitions will not fit into the memory that is free.
    """

    def __init__(
        self,
        state_shape: tuple[int, ...],
        device: torch.device | str,
        max_size: int = int(1e6),
        clip: bool = True,
    ) -> None:
        self.device = torch.device(device)
        self.history, *frame = state_shape
        self.frame_shape = tuple(frame)
        self.largest = 1.0 if clip else np.inf  # reward
        self._offsets = np.arange(1 - self.history, 1)  # from a state's oldest frame to its newest
        self._age_limit = max(1, self.history - 1)
        self.max_size, self.size, self.ptr = max_size, 0, 0
        self.added = 0  # transitions written since the buffer was made
        self.record: dict[str, Any] = {}  # what the json of a loaded batch says, with its digest
        self._begins = True  # whether the next transition is the first of an episode
        self._read_only = False

        with affordable(max_size):
            self._action = np.zeros((max_size, 1), np.int64)
            self._reward = np.zeros((max_size, 1), np.float32)
            self._not_done = np.zeros((max_size, 1), np.float32)
            # Earlier frames of its episode, at most H − 1; of stacks of one, at most 1.
            self._age = np.zeros(max_size, np.int64)
            self._last_frame = np.full(max_size, -1)  # where its episode's last frame is, or −1
        self._last_frames = np.empty((0, *self.frame_shape), np.uint8)
        self._free: list[int] = []  # places in _last_frames whose transition was overwritten
        self._number: np.ndarray | None = None  # of the transition at each position

        slots = max_size + self.history
        self._block_starts = np.arange(0, slots, CHUNK)
        self._blocks: list[np.ndarray | None] = [None] * len(self._block_starts)
        self._slots = slots
        needed, free = slots * int(np.prod(self.frame_shape)), _free_memory()
        if free is not None and needed > free:
            warnings.warn(
                f"{max_size:,} transitions will take {needed / 1e9:.2f} GB as they come in, and "
                f"{free / 1e9:.2f} GB of memory are free: a smaller --buffer_size needs less, in "
                "stage 2 fewer --max_timesteps",
                RuntimeWarning,
                stacklevel=2,
            )

    def add(
        self,
        state: np.ndarray,
        action: int,
        next_state: np.ndarray,
        reward: float,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Write a transition over the oldest; `next_state` is its true successor, not a reset's.

        Only the newest frame of each is kept: transitions must come in the order of their episode.

        Raises: RuntimeError where the batch was loaded.
        """
        if self._read_only:
            raise RuntimeError("a loaded batch cannot grow: add to a new FrameBuffer")
        row, previous = self.ptr, (self.ptr - 1) % self.max_size
        if self.size == self.max_size and self._last_frame[row] >= 0:
            self._free.append(int(self._last_frame[row]))
        ended = terminated or truncated
        self._action[row] = action
        self._reward[row] = np.clip(reward, -self.largest, self.largest)
        self._not_done[row] = 1 - terminated  # only a terminal state stops the bootstrap
        self._age[row] = 0 if self._begins else min(self._age[previous] + 1, self._age_limit)
        self._write(self.added, state[-1])
        if ended:
            self._last_frame[row] = self._keep(next_state[-1])
        else:
            self._last_frame[row] = -1
            self._write(self.added + 1, next_state[-1])
        self._begins = ended
        self.added += 1
        self.ptr = self.added % self.max_size
        self.size = min(self.added, self.max_size)

    def cut(self) -> None:
        """The newest transition's episode goes no further, as if a time limit had cut it."""
        if not self._begins:
            successor = self._frames(np.array([self.added]))[0]
            self._last_frame[(self.added - 1) % self.max_size] = self._keep(successor)
            self._begins = True

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions drawn uniformly with replacement by torch's CPU generator.

        `state` and `next_state` (B, H, 84, 84) are uint8 on the device; they share memory.
        """
        return self._take(torch.randint(self.size, (batch_size,)).numpy())

    def rows(self, index: Any) -> Batch:
        """The transitions at these positions by age, 0 being the oldest kept.

        Raises: IndexError for a position outside [0, size).
        """
        positions = np.asarray(index).reshape(-1)
        if len(positions) and not (positions.min() >= 0 and positions.max() < self.size):
            raise IndexError(f"positions must lie in [0, {self.size})")
        return self._take(positions)

    @property
    def at_end(self) -> bool:
        """Whether an episode ended with the newest transition."""
        return self._begins

    @property
    def action(self) -> Tensor:
        """The actions held, oldest first, (size, 1)."""
        return torch.from_numpy(self._action[self._numbers() % self.max_size])

    def _numbers(self, positions: np.ndarray | None = None) -> np.ndarray:
        """The number of the transition at each position; row and frame follow from it."""
        positions = np.arange(self.size) if positions is None else positions
        if self._number is not None:
            return self._number[positions]
        return positions + (self.added - self.size)

    def _take(self, positions: np.ndarray) -> Batch:
        number = self._numbers(positions)
        row = number % self.max_size
        last_frame = self._last_frame[row]
        is_last = last_frame >= 0
        # One window of H + 1 frames holds both stacks. Where there is no such frame in the ring the
        # transition's own, which always exists, is taken in its stead and then replaced.
        own = number[:, None]
        absent = -self._offsets > self._age[row][:, None]  # (B, H)
        older = np.where(absent, own, own + self._offsets)
        successor = np.where(is_last, number, number + 1)[:, None]
        window = self._frames(np.concatenate([older, successor], 1))
        window[:, :-1][absent] = 0
        window[is_last, -1] = self._last_frames[last_frame[is_last]]

        frames = torch.from_numpy(window).to(self.device)
        action, reward, not_done = (
            torch.from_numpy(column[row]).to(self.device)
            for column in (self._action, self._reward, self._not_done)
        )
        return Batch(frames[:, :-1], action, frames[:, 1:], reward, not_done)

    def _frames(self, number: np.ndarray) -> np.ndarray:
        """A copy of the frames of these numbers, (…) -> (…, 84, 84)."""
        slot = number.reshape(-1) % self._slots
        block_of = np.searchsorted(self._block_starts, slot, side="right") - 1
        found = np.empty((len(slot), *self.frame_shape), np.uint8)
        for block in np.unique(block_of):
            here = np.flatnonzero(block_of == block)
            place = slot[here] - self._block_starts[block]
            content = self._blocks[block]
            assert content is not None
            if len(here) == len(slot):  # straight to where they go, with no copy between
                content.take(place, axis=0, out=found, mode="clip")
            else:
                found[here] = content[place]
        return found.reshape(*number.shape, *self.frame_shape)

    def _write(self, number: int, frame: np.ndarray) -> None:
        block, place = divmod(number % self._slots, CHUNK)
        content = self._blocks[block]
        if content is None:
            size = min(CHUNK, self._slots - block * CHUNK)
            with affordable(self.max_size):
                content = np.empty((size, *self.frame_shape), np.uint8)
            self._blocks[block] = content
        content[place] = frame

    def _keep(self, frame: np.ndarray) -> int:
        """Put an episode's last frame aside; where it is kept."""
        if not self._free:
            held = len(self._last_frames)
            self._free = list(range(held, 2 * held + 8))
            with affordable(self.max_size):
                more = np.empty((held + 8, *self.frame_shape), np.uint8)
                self._last_frames = np.concatenate([self._last_frames, more])
        place = self._free.pop()
        self._last_frames[place] = frame
        return place

    def tail(self, first: int, end: int) -> dict[str, Any]:
        """The transitions that came in as number `first` … `end` − 1, which must all be held.

        With the frames before the first, which its state needs.
        """
        row = np.arange(first, end) % self.max_size
        last_frame = self._last_frame[row]
        is_last = last_frame >= 0
        earliest = first - min(int(self._age[row[0]]), self.history - 1)
        # Where the newest ended its episode, its successor is not in the ring.
        frames = self._frames(np.arange(earliest, end + (not is_last[-1])))
        arrays = {
            "action": self._action[row],
            "reward": self._reward[row],
            "not_done": self._not_done[row],
            "age": self._age[row],
            "is_last": is_last,
            "last_frames": self._last_frames[last_frame[is_last]],
            "frames": frames,
        }
        numbers = {"first": first, "earliest": earliest}
        return numbers | {name: torch.from_numpy(array) for name, array in arrays.items()}

    def extend(self, tail: dict[str, Any]) -> None:
        """Put back what `tail` gave, as the newest transitions."""
        arrays = {name: part.numpy() for name, part in tail.items() if isinstance(part, Tensor)}
        end = tail["first"] + len(arrays["reward"])
        row, is_last = np.arange(tail["first"], end) % self.max_size, arrays["is_last"]
        for name in ("action", "reward", "not_done", "age"):
            getattr(self, f"_{name}")[row] = arrays[name]
        for number, frame in enumerate(arrays["frames"], tail["earliest"]):
            self._write(number, frame)
        overwritten = self._last_frame[row]
        self._free += overwritten[overwritten >= 0].tolist()
        self._last_frame[row] = -1
        for place, frame in zip(row[is_last], arrays["last_frames"], strict=True):
            self._last_frame[place] = self._keep(frame)
        self._begins = bool(is_last[-1])
        self.added, self.ptr, self.size = end, end % self.max_size, min(end, self.max_size)

    def take_up(self, prefix: str | Path, added: int, ended: bool) -> None:
        """Be again the ring that was saved as this batch when `added` transitions had come in.

        `ended`: whether an episode ended with the last of them; of frames the batch says it.

        Raises: InputError as `load` does.
        """
        del ended
        saved = copy(self)  # whose frames stay in the files
        saved.load(prefix)
        self.record, dropped = saved.record, added - saved.size
        for start in range(0, saved.size, TAIL):
            tail = saved.tail(start, min(start + TAIL, saved.size))
            moved = {name: tail[name] + dropped for name in ("first", "earliest")}
            self.extend(tail | moved)

    def save(
        self,
        prefix: str | Path,
        record: dict[str, Any] | None = None,
        simulator: np.ndarray | None = None,
        permit: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Write the batch, oldest transition first, and `record` as json; all files or none.

        `simulator`: exact states of some rows (common/environment/simulator.py), saved beside them.
        `record` is given the batch's digest, with which `permit` is called before it is replaced.

        Raises: InputError where they cannot be written; RuntimeError for a loaded batch, some of
        whose rows are not used.
        """
        if self._number is not None:
            raise RuntimeError("a batch of which some rows cannot be used is not saved again")
        number = self._numbers()
        row = number % self.max_size
        last_frame = self._last_frame[row]
        is_last = np.flatnonzero(last_frame >= 0)
        before = -np.arange(1, min(self._age[row[0]], self.history - 1) + 1)
        columns = {
            "action": self._action[row],
            "reward": self._reward[row],
            "not_done": self._not_done[row],
            "first_timestep": (self._age[row] == 0).astype(np.uint8).reshape(-1, 1),
            "edge_row": np.concatenate([before, is_last]),
            "edge_state": np.concatenate(
                [self._frames(before + number[0]), self._last_frames[last_frame[is_last]]]
            ),
            "replay_info": np.array([self.size % self.max_size, CHUNK]),
        } | ({} if simulator is None else {"simulator": simulator})
        # Where the newest transition ended its episode its successor is at the edge, not here.
        frames = np.append(number, number[-1] + (last_frame[-1] < 0))
        record = {} if record is None else record
        frame_files.write(
            prefix, columns, self.size + 1, CHUNK, lambda rows: self._frames(frames[rows]), record,
            permit,
        )  # fmt: skip

    def load(self, prefix: str | Path, size: int | None = None) -> int:
        """Read a saved batch, or its first `size` transitions, from its files as it is sampled.

        Files as the authors' code writes them are read too. They lack the frames at the edges, so
        that some of their transitions have no true state or successor; these are left out: the last
        one before a time limit, the newest, and the first three of a ring that begins within an
        episode.

        Returns: the number of transitions in the files, `self.size` being how many are used.
        Raises: InputError naming the file (and the row) where one is missing, damaged, empty, of
        another length or shape, holds NaN or infinity, or a flag other than 0 and 1; where the
        batch holds vector states.
        """
        with SavedBatch(prefix) as batch:
            saved = frame_files.read(batch, (self.history, *self.frame_shape), size)
        self.record = batch.record
        kept = len(saved.action)
        place = np.arange(kept)
        began = np.maximum.accumulate(np.where(saved.first, place, -saved.before))
        self._age = np.minimum(place - began, self._age_limit)
        self._action, self._reward = saved.action, saved.reward.clip(-self.largest, self.largest)
        self._not_done = saved.not_done
        self._last_frame, self._last_frames = saved.last_frame, saved.last_frames
        self._number = saved.number if len(saved.number) < kept else None
        self._blocks, self._slots = list(saved.blocks), kept + self.history
        self._block_starts = np.cumsum([0, *(len(block) for block in saved.blocks[:-1])])
        self.max_size, self.ptr, self.added = kept, 0, kept
        self.size = len(saved.number)
        self._read_only = True
        return saved.total


def _free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return 1024 * int(text.split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None
