"""Every file of a batch is of that batch: what is changed, damaged or of another one is told."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fill, random_batch, without_digests
from test_parts import FRAME, HISTORY, transitions

from common.data import batch_files
from common.data.batch_files import SavedBatch, identity
from common.data.frames import FrameBuffer
from common.data.replay import ReplayBuffer
from common.errors import InputError

KINDS = ["vectors", "frames"]


def saved(kind: str, prefix: Path, seed: int, rows: int = 20) -> None:
    """A batch that each seed makes otherwise."""
    record = {"env": "Toy-v0", "seed": seed}
    if kind == "vectors":
        states = np.full((3, 4), float(seed))
        fill(ReplayBuffer(3, 2, "cpu", rows), random_batch(rows, seed=seed)).save(
            prefix, record, states
        )
        return
    buffer = FrameBuffer((HISTORY, *FRAME), "cpu", rows)
    for transition in transitions(HISTORY, seed, rows):
        buffer.add(*transition)
    buffer.save(prefix, record)


def loaded(kind: str, prefix: Path) -> Any:
    """All of its numbers, and its record."""
    buffer: Any = ReplayBuffer(3, 2, "cpu", 1)
    if kind == "frames":
        buffer = FrameBuffer((HISTORY, *FRAME), "cpu", 1)
    buffer.load(prefix)
    rows = torch.cat([column.flatten().float() for column in buffer.rows(range(buffer.size))])
    return rows.tolist(), buffer.record


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_files, "PAUSE", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_has_the_sha256_of_every_file_and_one_for_all(kind: str, tmp_path: Path) -> None:
    saved(kind, tmp_path / "b", 0)
    record = json.loads((tmp_path / "b.json").read_text())
    files = {path.stem.removeprefix("b_"): path for path in tmp_path.glob("b_*.npy")}
    assert record["files"] == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }
    lines = [f"{digest}  {name}\n" for name, digest in sorted(record["files"].items())]
    assert record["digest"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert loaded(kind, tmp_path / "b")[1] == record
    saved(kind, tmp_path / "again", 0)
    saved(kind, tmp_path / "other", 1)
    digests = [
        json.loads((tmp_path / f"{n}.json").read_text())["digest"] for n in ("again", "other")
    ]
    assert digests[0] == record["digest"] != digests[1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_bit_in_any_file_is_told_by_its_name(kind: str, tmp_path: Path) -> None:
    saved(kind, tmp_path / "b", 0)
    draw = np.random.default_rng(0)
    for path in sorted(tmp_path.glob("b_*.npy")):
        content = path.read_bytes()
        for place in [0, len(content) - 1, *draw.integers(len(content), size=5)]:
            spoiled = bytearray(content)
            spoiled[place] ^= 1 << int(draw.integers(8))
            path.write_bytes(spoiled)
            with pytest.raises(InputError, match=rf"{path.name} is damaged, or not of the batch"):
                loaded(kind, tmp_path / "b")
        path.write_bytes(content)
    loaded(kind, tmp_path / "b")


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_older_code_and_made_by_hand_are_read_as_they_are(
    kind: str, tmp_path: Path
) -> None:
    saved(kind, tmp_path / "b", 0)
    rows, record = loaded(kind, tmp_path / "b")
    without_digests(tmp_path / "b")
    older, of_older = loaded(kind, tmp_path / "b")
    assert older == rows and of_older == {k: v for k, v in record.items() if k != "files"}
    (tmp_path / "b.json").unlink()
    assert loaded(kind, tmp_path / "b") == (rows, {"digest": record["digest"]})
    path = tmp_path / "b_reward.npy"
    np.save(path, np.load(path) / 2)
    changed, other = loaded(kind, tmp_path / "b")
    assert changed != rows and other["digest"] != record["digest"]


def test_a_file_that_the_record_does_not_name_is_none_of_the_batch(tmp_path: Path) -> None:
    saved("vectors", tmp_path / "b", 0)
    (tmp_path / "b_simulator.npy").rename(tmp_path / "b_other.npy")
    with SavedBatch(tmp_path / "b") as batch:
        assert "other" not in batch and "simulator" not in batch and "state" in batch


class Replaced(dict[str, Path]):
    """The files of a batch, which another one replaces just before the `at`-th is opened."""

    def __init__(self, files: dict[str, Path], at: int, replace: Callable[[], None]) -> None:
        super().__init__(files)
        self.at, self.replace = at, replace

    def items(self) -> Iterator[Any]:  # type: ignore[override]
        for number, item in enumerate(super().items()):
            if number == self.at:
                self.replace()
            yield item
        if self.at == len(self):
            self.replace()


@pytest.mark.parametrize("older", ["of this code", "of older code", "by hand"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_replaced_while_it_is_read_is_read_whole(
    kind: str, older: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = batch_files.column_files
    saved(kind, tmp_path / "b", 1, rows=25)
    new = loaded(kind, tmp_path / "b")
    opened = 0
    for at in range(10):
        for path in tmp_path.glob("b*"):
            path.unlink()
        saved(kind, tmp_path / "b", 0)
        if older != "of this code":
            without_digests(tmp_path / "b")
        if older == "by hand":
            (tmp_path / "b.json").unlink()
        old = loaded(kind, tmp_path / "b")

        def once(prefix: Any, at: int = at) -> Any:
            nonlocal opened
            files = find(prefix)
            if opened:
                return files
            opened = len(files)
            return Replaced(files, at, lambda: saved(kind, tmp_path / "b", 1, rows=25))

        opened = 0
        with monkeypatch.context() as patched:
            patched.setattr(batch_files, "column_files", once)
            found = loaded(kind, tmp_path / "b")
        assert found == (new if at <= opened else old)


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_between_two_moves_is_whole_or_refused(
    kind: str, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(kind, tmp_path / "b", 1)
    new = loaded(kind, tmp_path / "b")
    saved(kind, tmp_path / "b", 0)
    if older:
        without_digests(tmp_path / "b")
        (tmp_path / "b.json").unlink()
    old, replace, seen = loaded(kind, tmp_path / "b"), Path.replace, []

    def watched(self: Path, target: Path) -> Any:
        replace(self, target)
        try:
            seen.append(loaded(kind, tmp_path / "b"))
        except InputError:
            seen.append(None)

    monkeypatch.setattr(Path, "replace", watched)
    saved(kind, tmp_path / "b", 1)
    assert all(found in (None, old, new) for found in seen) and seen[-1] == new


def test_a_mixed_batch_is_refused(tmp_path: Path) -> None:
    for name, seed in [("b", 0), ("c", 1)]:
        saved("vectors", tmp_path / name, seed)
    for path in sorted(tmp_path.glob("b_*.npy")):
        content = path.read_bytes()
        path.write_bytes((tmp_path / path.name.replace("b_", "c_", 1)).read_bytes())
        if path.read_bytes() != content:
            with pytest.raises(InputError, match=path.name):
                loaded("vectors", tmp_path / "b")
        path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_not_permitted_replaces_nothing(kind: str, tmp_path: Path) -> None:
    saved(kind, tmp_path / "b", 0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refuse(digest: str) -> None:
        assert len(digest) == 64
        raise InputError("not yours")

    buffer: Any = fill(ReplayBuffer(3, 2, "cpu", 9), random_batch(9))
    if kind == "frames":
        buffer = FrameBuffer((HISTORY, *FRAME), "cpu", 9)
        for transition in transitions(HISTORY, 2, 9):
            buffer.add(*transition)
    with pytest.raises(InputError, match="not yours"):
        buffer.save(tmp_path / "b", {}, permit=refuse)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_identity_is_of_names_and_contents() -> None:
    assert identity({"a": "1", "b": "2"}) == identity({"b": "2", "a": "1"})
    assert len({identity({"a": "1"}), identity({"a": "2"}), identity({"b": "1"})}) == 3
