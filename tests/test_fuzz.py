"""Damaged checkpoints, models, batches, records: an error in one line, or no harm was done."""

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Harmful, fill, random_batch, without_digests

from common.data.replay import ReplayBuffer
from common.errors import InputError
from common.files import read_array, read_json, write_json
from common.resume.parts import Rows
from common.saving import read_sealed, read_state, save_state, write_sealed

CASES = 300  # of each kind of file: with the five kinds 1,500


def damaged(content: bytes, generator: np.random.Generator) -> bytes:
    """One byte string of the same file after something has gone wrong with it."""
    place = int(generator.integers(len(content)))
    length = int(generator.integers(1, 40))
    noise = generator.bytes(length)
    flipped = bytes([content[place] ^ (1 << int(generator.integers(8)))])
    kinds: list[Callable[[], bytes]] = [
        lambda: content[:place] + flipped + content[place + 1 :],
        lambda: content[:place],
        lambda: content[:place] + noise + content[place:],
        lambda: content[:place] + noise + content[place + length :],
        lambda: content[:place] + bytes(length) + content[place + length :],
        lambda: content[:place] + content[place + length :],
        lambda: content + noise,
        lambda: noise,
    ]
    # A single bit is what a checksum is for: as many of those as of all others.
    weights = np.array([7, *[1] * 7]) / 14
    return kinds[int(generator.choice(len(kinds), p=weights))]()


def same(one: Any, other: Any) -> bool:
    """Whether two nested states agree bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def fuzzed(path: Path, read: Callable[[], Any]) -> Iterator[Any]:
    """What `read` gives of each damaged version of a file that it does not refuse."""
    content, generator = path.read_bytes(), np.random.default_rng(len(path.name))
    for _ in range(CASES):
        spoiled = damaged(content, generator)
        path.write_bytes(spoiled)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = read()
            except InputError as error:
                assert "\n" not in str(error)
                continue
        if spoiled != content:
            yield found
    path.write_bytes(content)


STATE: dict[str, Any] = {
    "actor": {"0.weight": torch.arange(60.0).reshape(6, 10), "0.bias": torch.ones(6)},
    "actor_optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
    "updates": 7,
}


def test_no_damaged_checkpoint_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    write_sealed(path, STATE)
    assert same(STATE, read_sealed(path))
    assert list(fuzzed(path, lambda: read_sealed(path))) == []


def test_no_damaged_file_of_a_buffer_under_way_is_read(tmp_path: Path) -> None:
    buffer = fill(ReplayBuffer(3, 2, "cpu", 20), random_batch(30))
    state = Rows(buffer, tmp_path).state_dict()
    [(name, *_)] = state["files"]

    def read() -> Any:
        other = ReplayBuffer(3, 2, "cpu", 20)
        Rows(other, tmp_path).load_state_dict(state)
        return other.rows(range(20))

    for mine, theirs in zip(buffer.rows(range(20)), read(), strict=True):
        assert torch.equal(mine, theirs)
    assert list(fuzzed(tmp_path / name, read)) == []


def test_a_model_is_refused_or_undamaged(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    save_state(path, STATE)
    # What is read in spite of the damage had it where the archive's format holds nothing.
    assert all(same(STATE, found) for found in fuzzed(path, lambda: read_state(path, "cpu")))


def test_no_damaged_batch_is_read_and_one_without_digests_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.data.batch_files.PAUSE", 0)
    prefix = tmp_path / "b"
    fill(ReplayBuffer(3, 2, "cpu", 20), random_batch(20)).save(prefix)

    def read() -> Any:
        buffer = ReplayBuffer(3, 2, "cpu", 20)
        buffer.load(prefix)
        return buffer.rows(range(buffer.size))

    assert list(fuzzed(Path(f"{prefix}_state.npy"), read)) == []
    without_digests(prefix)
    for found in fuzzed(Path(f"{prefix}_state.npy"), read):
        assert all(torch.isfinite(column).all() for column in found)
        assert found.state.shape == (20, 3)


def test_a_damaged_record_is_refused_or_an_object(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(
        path, {"arguments": {"env": "Hopper-v4", "seed": 0}, "x": [1, 2], "returns": [[1.5]]}
    )
    assert all(isinstance(found, dict) for found in fuzzed(path, lambda: read_json(path)))


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"file.{kind}" for kind in ("sealed", "pt", "npy", "json")}
    readers: dict[str, Callable[[Path], Any]] = {
        "sealed": read_sealed,
        "pt": lambda path: read_state(path, "cpu"),
        "npy": read_array,
        "json": read_json,
    }
    write_sealed(files["sealed"], STATE)
    save_state(files["pt"], STATE)
    np.save(files["npy"], np.ones(3))
    write_json(files["json"], {"x": 1})
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for kind, read in readers.items():
        for path in [*files.values(), tmp_path / "empty", tmp_path / "folder"]:
            if path != files[kind]:
                with pytest.raises(InputError):
                    read(path)


def write_harmful_array(path: Path, harmful: Harmful) -> None:
    np.save(path, np.array([harmful], dtype=object), allow_pickle=True)


READERS: dict[str, tuple[Callable[[Path, Harmful], Any], Callable[[Path], Any]]] = {
    "checkpoint": (lambda path, code: write_sealed(path, {"parts": code}), read_sealed),
    "model": (
        lambda path, code: save_state(path, {"actor": code}),
        lambda path: read_state(path, "cpu"),
    ),
    "column": (write_harmful_array, read_array),
}


@pytest.mark.parametrize("kind", READERS)
def test_no_code_is_run_from_a_file(kind: str, tmp_path: Path) -> None:
    write, read = READERS[kind]
    path, marker = tmp_path / "file.npy", tmp_path / "marker"
    write(path, Harmful(marker))
    with pytest.raises(InputError, match=r"file\.npy "):
        read(path)
    assert not marker.exists()


def test_the_code_of_these_files_would_be_seen(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Harmful(tmp_path / "marker")))
    assert (tmp_path / "marker").is_dir()
