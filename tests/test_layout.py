"""How the house is built: folders that do not mix, nothing done at import, names of files."""

import ast
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, load_variant, module_names

from common.errors import InputError
from common.files import ROOT as OUTPUT_ROOT
from common.files import Folders, read_json, refuse_existing, write_json

VARIANTS = sorted(folder.name for folder in ROOT.glob("*_BCQ") if (folder / "main.py").exists())


def imported(path: Path) -> set[str]:
    """The first part of every module that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("variant", VARIANTS)
def test_importing_a_variant_does_nothing_else(variant: str) -> None:
    generators = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # type: ignore[index]
    threads, default = torch.get_num_threads(), torch.get_default_dtype()
    folders = {path.name for path in ROOT.iterdir() if path.name[0] != "."}
    load_variant.__wrapped__(variant)
    assert generators[:2] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    assert torch.equal(generators[2], torch.get_rng_state())
    assert (threads, default) == (torch.get_num_threads(), torch.get_default_dtype())
    assert folders == {path.name for path in ROOT.iterdir() if path.name[0] != "."}


def test_every_variant_has_its_own_modules() -> None:
    loaded = {variant: vars(load_variant(variant)) for variant in VARIANTS}
    for variant, modules in loaded.items():
        assert set(modules) == set(module_names(ROOT / variant))
        for name, module in modules.items():
            assert Path(module.__file__) == ROOT / variant / f"{name}.py"
            assert sys.modules.get(name) is not module


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_imports_main(variant: str) -> None:
    assert not [p for p in (ROOT / variant).glob("*.py") if "main" in imported(p)]


def test_what_is_common_imports_no_variant() -> None:
    siblings = {name for variant in VARIANTS for name in module_names(ROOT / variant)}
    folders = ("common", "datasets", "plotting")
    shared = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    for path in [*shared, *ROOT.glob("*.py")]:
        assert not imported(path) & siblings, path


# The rooms of common/ by floor; a module without a room is on the ground floor, but for the agent.
FLOORS = {"agent": 2, "data": 1, "environment": 3, "judging": 3, "resume": 3, "run": 4}


def floor(module: str) -> int:
    """The floor of `common.room.module`."""
    return FLOORS.get(module.split(".")[1], 0)


def test_nothing_in_common_imports_from_a_floor_above_its_own() -> None:
    for path in (ROOT / "common").rglob("*.py"):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
        for name in names:
            assert not name.startswith("common.") or floor(name) <= floor(own), (own, name)


def test_outputs_hang_on_the_repository_root_and_have_their_written_names() -> None:
    assert OUTPUT_ROOT == ROOT
    folders = Folders(Path("/out"), "ALE/Pong-v5", 3)
    assert folders.results("BCQ_Robust") == Path("/out/results/BCQ_Robust_ALE-Pong-v5_3.npy")
    assert folders.model("behavioral") == Path("/out/models/behavioral_ALE-Pong-v5_3.pt")
    assert folders.buffer("Robust") == Path("/out/buffers/Robust_ALE-Pong-v5_3")


def test_committed_records_name_the_learner_that_ran() -> None:
    for path in (ROOT / "results" / "reference").rglob("*.json"):
        record = read_json(path)
        own = "DQN" if "discrete" in path.relative_to(ROOT).parts else "DDPG"
        for made in (record, record.get("batch") or {}):
            arguments = made.get("arguments") or {}
            if arguments.get("train_behavioral") or arguments.get("generate_buffer"):
                assert arguments["algorithm"] == own, path


def test_the_first_file_that_exists_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    refuse_existing(paths, overwrite=False)
    paths[1].touch()
    paths[2].touch()
    with pytest.raises(InputError, match=r"/b exists: --overwrite replaces it"):
        refuse_existing(paths, overwrite=False)
    refuse_existing(paths, overwrite=True)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(InputError, match=r"run\.json does not exist"):
        read_json(path)
    write_json(path, {"x": [1, 2], "σ": "0.1"})
    assert read_json(path) == {"x": [1, 2], "σ": "0.1"}
    path.write_text(path.read_text()[:-4])
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(InputError, match=r"run\.json holds no json object"):
        read_json(path)
