"""What a checkpoint is made of beside agents and records, each with its state_dict."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from common.errors import InputError
from common.files import read_json
from common.saving import read_sealed, write_sealed

OTHER_BATCH = "the batch is not the one that the unfinished run learned from"
OTHER_POLICY = "the behavioural policy is not the one that the unfinished run played"
PIECE = 10_000  # rows a file at most, so that no second copy of a large buffer is in memory


class Part(Protocol):
    """Anything whose state is all that it needs to go on."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers, texts, and dicts and lists of them."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Put such a state back."""


@runtime_checkable
class Writer(Protocol):
    """A part that writes files of its own: it calls `permit` before, and is told of stops."""

    permit: Callable[[], None]

    def went_on(self, step: int) -> None:
        """The run was stopped, and goes on after so many steps."""


@runtime_checkable
class Counting(Protocol):
    """A part that counts the steps of the run."""

    @property
    def done(self) -> int:
        """Steps so far."""


class Generators:
    """The global random generators: python's, numpy's, torch's on the CPU and on CUDA."""

    def state_dict(self) -> dict[str, Any]:
        """Draws nothing."""
        legacy: Any = np.random.get_state(legacy=False)
        key = torch.from_numpy(legacy["state"]["key"].astype(np.int64))
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return {
            "python": random.getstate(),
            "numpy": legacy | {"state": legacy["state"] | {"key": key}},
            "torch": torch.get_rng_state(),
            "cuda": cuda,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Where the devices are fewer than they were, the other ones' states are left out."""
        random.setstate(state["python"])
        legacy = state["numpy"]
        key = legacy["state"]["key"].numpy().astype(np.uint32)
        np.random.set_state(legacy | {"state": legacy["state"] | {"key": key}})
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_initialized():
            for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(one, device)


class Rows:
    """A replay buffer as it fills, in files beside the checkpoint that are never written again.

    Each holds the rows that came in since the one before, so that a checkpoint costs what is new,
    not what there is. Files whose rows a ring has overwritten are left out.
    """

    def __init__(self, replay_buffer: Any, folder: Path | None) -> None:
        self.replay_buffer, self.folder = replay_buffer, folder
        self.files: list[tuple[str, int, str]] = []  # name, the row after its last, sha256

    def state_dict(self) -> dict[str, Any]:
        """Writes what is new. Raises: InputError where it cannot be written."""
        assert self.folder is not None
        added, oldest = self.replay_buffer.added, self.replay_buffer.added - self.replay_buffer.size
        self.files = [file for file in self.files if file[1] > oldest]
        if not all((self.folder / name).exists() for name, *_ in self.files):
            self.files = []  # someone has deleted the folder
        first = max(oldest, self.files[-1][1] if self.files else 0)
        for start in range(first, added, PIECE):
            end = min(start + PIECE, added)
            name = f"rows_{start}_{end}.pt"
            digest = write_sealed(self.folder / name, self.replay_buffer.tail(start, end))
            self.files.append((name, end, digest))
        return {"files": self.files}

    def cut(self) -> None:
        """The newest transition's episode goes no further: its file is to be written again."""
        self.replay_buffer.cut()
        self.files = self.files[:-1]

    def as_batch(self, batch: Path) -> dict[str, Any]:
        """What `take_up` needs where the rows have been saved as this batch."""
        buffer, digest = self.replay_buffer, read_json(f"{batch}.json")["digest"]
        return {"digest": digest, "added": buffer.added, "ended": buffer.at_end}

    def take_up(self, batch: Path, state: dict[str, Any]) -> None:
        """The rows of that batch. Raises: InputError where it is another."""
        self.replay_buffer.take_up(batch, state["added"], state["ended"])
        if self.replay_buffer.record["digest"] != state["digest"]:
            raise InputError(f"{batch}_*.npy are not what the finished run saved")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: InputError where a file is missing or damaged."""
        assert self.folder is not None
        self.files = list(state["files"])
        for name, _, digest in self.files:
            self.replay_buffer.extend(read_sealed(self.folder / name, digest))


class Unchanged:
    """What a run reads, such as stage 3's batch: it must be what the run began with.

    Known by a digest of all its bytes.
    """

    def __init__(self, digest: str, other: str) -> None:
        """`other` is what to say of another one."""
        self.digest, self.other = digest, other

    def state_dict(self) -> dict[str, Any]:
        """The digest."""
        return {"digest": self.digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: InputError where it is another."""
        if state["digest"] != self.digest:
            raise InputError(self.other)
