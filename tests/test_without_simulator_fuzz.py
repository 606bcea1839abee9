"""Two hundred hostile inputs without --env: done rightly, or one line and nothing half-written."""

import csv
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Outcome, done, load_variant, run_main, snapshot, without_digests
from import_tools import BATCH, imported

from common.judging.importance import Clone
from common.saving import read_state

CASES, FAST = 50, 5  # a door
VARIANTS = {
    "continuous": load_variant("continuous_BCQ").main,
    "discrete": load_variant("discrete_BCQ").main,
}
BOUNDS = {"continuous": ["--action_low", "0", "--action_high", "60"], "discrete": []}
QUICK = ["--device", "cpu", "--threads", "1", "--estimate_iterations", "3"]
SHORT = ["--max_timesteps", "4", "--eval_freq", "2", "--batch_size", "4"]
ODD: list[Any] = [None, -1, 0, 1, 2.5, True, "x", "", [], [[1]], {}, 10**9, 1e300, float("nan")]
Draw = np.random.Generator
Table = dict[str, list[Any]]


class Case(NamedTuple):
    """A command, what is odd about it, and what must hold where it ends with status 0."""

    run: Callable[[], Outcome]
    what: str
    check: Callable[[Outcome, dict[str, bytes]], None]


def pick(draw: Draw, things: list[Any]) -> Any:
    """One of them, as it is."""
    return things[int(draw.integers(len(things)))]


# --- import


def table(draw: Draw, kind: str, episodes: int = 5) -> Table:
    """A log that can be imported, of episodes of 2 to 5 steps."""
    lengths = draw.integers(2, 6, episodes)
    rows = int(lengths.sum())
    ends = np.zeros(rows)
    ends[np.cumsum(lengths) - 1] = draw.integers(0, 2, episodes)
    action = np.resize([2, 0, 1], rows) if kind == "discrete" else draw.uniform(10, 50, rows)
    return {
        "episode": np.repeat(np.arange(episodes), lengths).tolist(),
        "state_0": draw.normal(size=rows).tolist(),
        "state_1": draw.normal(200, 50, rows).tolist(),
        "action": action.tolist(),
        "reward": draw.normal(size=rows).tolist(),
        "terminated": ends.astype(int).tolist(),
    }


def damage_table(columns: Table, draw: Draw) -> str:
    """Make something of a log odd; says what."""
    kinds = ["nothing", "cell", "constant", "repeated id", "unsorted", "text", "lost", "more",
             "uneven", "empty", "one row", "shape"]  # fmt: skip
    kind, name = str(draw.choice(kinds)), str(draw.choice(list(columns)))
    rows = len(columns[name])
    if kind == "cell":
        value = pick(draw, ["", "nan", "inf", "1e300", "-1", "0.5", "7", "x", " ", "1,5", "é"])
        columns[name][int(draw.integers(rows))] = value
    elif kind == "constant":
        columns[name] = [columns[name][0]] * rows
    elif kind == "repeated id":
        columns["episode"][-1] = columns["episode"][0]
    elif kind == "unsorted":
        order = draw.permutation(rows)
        columns.update({k: [column[i] for i in order] for k, column in columns.items()})
    elif kind == "text":
        columns[name] = [pick(draw, ["mild", "strong", "rest"]) for _ in range(rows)]
    elif kind == "lost":
        del columns[name]
    elif kind == "more":
        columns[pick(draw, ["note", "state_3", "action_0", "truncated"])] = ["0"] * rows
    elif kind == "uneven":
        columns[name] = columns[name][:-1]
    elif kind in ("empty", "one row"):
        columns.update({k: column[: kind == "one row"] for k, column in columns.items()})
    return f"{kind} of {name}"


def odd_flags(draw: Draw, kind: str) -> list[str]:
    """Flags that describe the data, mostly wrongly."""
    numbers = ["0", "60", "-1", "1e30", "nan", "x", "30", "-60", "100"]
    if draw.random() < 0.7:
        return BOUNDS[kind]
    if draw.random() < 0.5:
        return ["--num_actions", pick(draw, ["0", "1", "2", "3", "4", "1000", "1001", "-3", "2.5"])]
    flags = []
    for flag in ("--action_low", "--action_high"):
        if draw.random() < 0.7:
            flags += [flag, *(pick(draw, numbers) for _ in range(int(draw.integers(1, 3))))]
    return flags


def write_csv(path: Path, columns: Table) -> None:
    """A .csv; columns may differ in length."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in range(max(map(len, columns.values()), default=0)):
            writer.writerow([column[row] for column in columns.values() if row < len(column)])


def write_npz(path: Path, columns: Table, draw: Draw, odd: bool) -> None:
    """A .npz; where it is to be odd, one array has another shape."""
    wide = [np.array(columns[name]) for name in ("state_0", "state_1") if name in columns]
    arrays: dict[str, Any] = {
        name: np.array(column) for name, column in columns.items() if name[:5] != "state"
    }
    if wide and len({len(column) for column in wide}) == 1:
        arrays["state"] = np.stack(wide, 1)
    if odd:
        name = pick(draw, list(arrays))
        array = arrays[name]
        shapes = [array[None], array[..., None, None], array[:0], array.sum(), array.reshape(-1)]
        arrays[name] = pick(draw, shapes)
    np.savez(path, **arrays)


def damage_bytes(path: Path, draw: Draw) -> str:
    """Cut a file, or change some of its bytes; says which."""
    content = bytearray(path.read_bytes())
    if draw.random() < 0.5:
        del content[int(draw.integers(len(content))) :]
    else:
        for where in draw.integers(len(content), size=5):
            content[where] = draw.integers(256)
    path.write_bytes(bytes(content))
    return f"bytes of {path.name}"


def check_import(folder: Path, columns: Table | None) -> None:
    """The batch is whole, and what a loop over the rows makes of them."""
    task = json.loads((folder / "buffers" / "B_0.json").read_text())["task"]
    batch = {name: np.load(folder / "buffers" / f"B_0_{name}.npy") for name in BATCH}
    assert len({len(column) for column in batch.values()}) == 1 and len(batch["state"])
    assert all(np.isfinite(column).all() for column in batch.values())
    if task["kind"] == "discrete":
        assert ((batch["action"] >= 0) & (batch["action"] < task["num_actions"])).all()
    if columns is None:
        return
    rows = [list(map(float, row)) for row in zip(*(columns[name] for name in (
        "state_0", "state_1", "action", "reward")), strict=True)]  # fmt: skip
    count = len(rows)
    ids = columns.get("episode", [0] * count)
    ended = [float(cell) == 1 for cell in columns.get("terminated", [0] * count)]
    wanted = []
    for row, (*state, action, reward) in enumerate(rows):
        goes_on = row + 1 < count and ids[row + 1] == ids[row]
        if ended[row] or goes_on:
            after = state if ended[row] else rows[row + 1][:2]
            wanted.append((state, action, after, reward, not ended[row]))
    if task["rescaled"]:
        low, high = task["action_low"][0], task["action_high"][0]
        wanted = [(s, (a - (low + high) / 2) / ((high - low) / 2), *rest) for s, a, *rest in wanted]
    for name, column in zip(BATCH, zip(*wanted, strict=True), strict=True):
        expected = np.array(column, np.float64).reshape(len(wanted), -1)
        np.testing.assert_allclose(batch[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def importing(folder: Path, homes: Path, draw: Draw) -> Case:
    """import_dataset.py on an odd log."""
    kind, form = pick(draw, ["continuous", "discrete"]), pick(draw, ["csv", "npz"])
    columns = table(draw, kind)
    what = damage_table(columns, draw)
    path = folder / f"log.{form}"
    if form == "csv":
        write_csv(path, columns)
    else:
        write_npz(path, columns, draw, what.startswith("shape"))
    known = {"state_0", "state_1"} <= columns.keys() and what[:4] != "more" and form == "csv"
    if draw.random() < 0.1:
        what, known = f"{what}, {damage_bytes(path, draw)}", False
    argv = odd_flags(draw, kind)
    cells = {str(cell) for column in columns.values() for cell in column}
    known = known and not {"1,5", "é"} & cells

    def check(outcome: Outcome, before: dict[str, bytes]) -> None:
        check_import(folder, columns if known else None)

    return Case(partial(imported, folder, f"--{form}", path, *argv), f"{what}, {argv}", check)


# --- learning, judging, acting


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For either kind a folder with a batch, and what BCQ and BC learned from it."""
    folder = tmp_path_factory.mktemp("homes")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("common.judging.support.Clone", partial(Clone, updates=3))
        for kind in VARIANTS:
            home = folder / kind
            home.mkdir()
            write_csv(home / "log.csv", table(np.random.default_rng(0), kind, 8))
            done(imported(home, "--csv", home / "log.csv", *BOUNDS[kind], name="Clinic"))
            for algorithm in ("BCQ", "BC"):
                done(command(home, kind, *SHORT, "--algorithm", algorithm))
    return folder


def command(folder: Path, kind: str, *argv: Any) -> Outcome:
    """A stage of a variant on the batch Clinic."""
    words = ["--buffer_name", "Clinic", "--output_dir", folder, *QUICK, *argv]
    return run_main(VARIANTS[kind], *map(str, words))


def damage_batch(folder: Path, draw: Draw) -> str:
    """Make something of the batch odd: its record, its task's description, or a column."""
    record, kind = folder / "buffers" / "Clinic_0.json", str(draw.choice(
        ["nothing", "json", "task", "task", "column", "column"]))  # fmt: skip
    if kind == "json":
        if draw.random() < 0.3:
            record.unlink()
            return "no json"
        return damage_bytes(record, draw)
    if kind == "task":
        whole = json.loads(record.read_text())
        key, value = pick(draw, list(whole["task"])), pick(draw, ODD)
        if draw.random() < 0.2:
            del whole["task"][key]
        else:
            whole["task"][key] = value
        record.write_text(json.dumps(whole))
        return f"task's {key} {value!r}"
    if kind == "column":
        if draw.random() < 0.7:  # as of a batch that was changed on purpose
            without_digests(folder / "buffers" / "Clinic_0")
        name = pick(draw, [*BATCH, "episode"])
        path = folder / "buffers" / f"Clinic_0_{name}.npy"
        if draw.random() < 0.3:
            return damage_bytes(path, draw)
        column = np.load(path)
        odd = [column[:-1], column[:0], column[:, :0], column[0], np.concatenate([column] * 2, 1),
               column[..., None], column.astype(str), column.astype(complex), column + 5,
               column * np.nan, column - 7]  # fmt: skip
        np.save(path, pick(draw, odd))
        return f"column {name}"
    return "a right batch"


def odd_settings(draw: Draw) -> list[str]:
    """Flags of learning and judging without a simulator, at or beyond their limits."""
    flags = {
        "--held_out": ["0", "0.5", "0.99", "1", "-1", "nan", "1e-9"],
        "--discount": ["0", "1", "2"],
        "--estimate_iterations": ["0", "1"],
        "--estimate_rows": ["0", "1", "2"],
    }
    if draw.random() < 0.7:
        return []
    flag = pick(draw, list(flags))
    return [flag, pick(draw, flags[flag])]


def home_of(folder: Path, homes: Path, draw: Draw) -> str:
    """Copy a home to the case's folder; its kind."""
    kind: str = pick(draw, list(VARIANTS))
    shutil.copytree(homes / kind, folder, dirs_exist_ok=True)
    return kind


def learning(folder: Path, homes: Path, draw: Draw) -> Case:
    """main.py on an odd batch."""
    kind = home_of(folder, homes, draw)
    for made in ("results", "models"):
        shutil.rmtree(folder / made)
    what, argv = damage_batch(folder, draw), odd_settings(draw)
    run_by = kind if draw.random() < 0.9 else pick(draw, list(VARIANTS))

    def check(outcome: Outcome, before: dict[str, bytes]) -> None:
        [record] = (folder / "results").glob("BC_Clinic_*.json")
        values = [one["value"] for one in json.loads(record.read_text())["estimates"]]
        np.testing.assert_array_equal(np.load(record.with_suffix(".npy")), values)
        assert len(values) == 2 and np.isfinite(values).all()
        read_state(folder / "models" / f"{record.stem}.pt", "cpu")
        after = snapshot(folder)
        assert all(after[name] == content for name, content in before.items())

    run = partial(command, folder, run_by, "--algorithm", "BC", *SHORT, *argv)
    return Case(run, f"{kind} by {run_by}, {what}, {argv}", check)


def damage_model(folder: Path, homes: Path, kind: str, draw: Draw) -> tuple[str, list[Any]]:
    """Make something of the policy or its run's record odd; what, and flags."""
    model, record = folder / "models" / "BCQ_Clinic_0.pt", folder / "results" / "BCQ_Clinic_0.json"
    odd = str(draw.choice(
        ["nothing", "nothing", "other kind", "algorithm", "lost", "bytes", "record", "set", "set"]
    ))  # fmt: skip
    if odd == "other kind":
        [other] = set(VARIANTS) - {kind}
        return odd, ["--model", homes / other / "models" / "BCQ_Clinic_0.pt"]
    if odd == "algorithm":
        return odd, ["--model", model, "--algorithm", pick(draw, ["BC", "DQN", "DDPG", "x"])]
    if odd == "lost":
        model.unlink()
    elif odd == "bytes":
        return damage_bytes(model, draw), []
    elif odd == "record":
        return damage_bytes(record, draw), []
    elif odd == "set":
        whole = json.loads(record.read_text())
        key, value = pick(draw, list(whole["arguments"])), pick(draw, ODD[:-3])
        whole["arguments"][key] = value
        record.write_text(json.dumps(whole))
        return f"argument {key} {value!r}", []
    return odd, []


def judging(folder: Path, homes: Path, draw: Draw) -> Case:
    """--estimate of an odd policy on an odd batch."""
    kind = home_of(folder, homes, draw)
    what, argv = damage_model(folder, homes, kind, draw)
    if draw.random() < 0.4:
        what = f"{what}, {damage_batch(folder, draw)}"
    argv += odd_settings(draw)

    def check(outcome: Outcome, before: dict[str, bytes]) -> None:
        assert "95% interval" in outcome.out and "coverage" in outcome.out
        assert "nan" not in outcome.out
        assert snapshot(folder) == before

    return Case(partial(command, folder, kind, "--estimate", *argv), f"{kind}, {what}", check)


def states_file(path: Path, draw: Draw) -> str:
    """States that may be none; says what is odd."""
    odd = str(
        draw.choice(
            ["nothing", "nothing", "width", "nan", "empty", "text", "bytes", "lost", "shape"]
        )
    )
    states = draw.normal([0, 200], [1, 50], (6, 2))
    if odd == "width":
        states = states[:, :1] if draw.random() < 0.5 else np.concatenate([states, states], 1)
    elif odd == "nan":
        states[3, 1] = pick(draw, [np.nan, np.inf, 1e300])
    elif odd == "empty":
        states = states[:0]
    if path.suffix == ".npz":
        shaped = [states[None], states.ravel(), np.float64(3), states.astype(str)]
        array = pick(draw, shaped) if odd in ("shape", "text") else states
        named: dict[str, Any] = {"states" if odd == "lost" else "state": array}
        np.savez(path, **named)
    else:
        cells = {f"state_{i}": column.tolist() for i, column in enumerate(states.T)}
        if odd in ("text", "shape"):
            cells["state_0"][2:4] = ["mild"] if odd == "text" else []
        write_csv(path, {} if odd == "lost" else cells)
    return damage_bytes(path, draw) if odd == "bytes" else odd


def acting(folder: Path, homes: Path, draw: Draw) -> Case:
    """--act on odd states, or to an odd place."""
    kind = home_of(folder, homes, draw)
    given = folder / pick(draw, ["states.csv", "states.npz", "states.txt"])
    what = states_file(given, draw)
    output, argv = folder / pick(draw, ["actions.csv", "actions.npz"]), []
    if draw.random() < 0.3:
        taken = folder / "taken.csv"
        taken.mkdir()
        places: list[Any] = [
            folder / "a.txt",
            given,
            folder / "log.csv" / "a.csv",
            taken,
            "",
            "/proc/a.csv",
        ]
        output, argv = pick(draw, places), pick(draw, [[], ["--overwrite"]])
    if draw.random() < 0.3:
        odd, more = damage_model(folder, homes, kind, draw)
        what, argv = f"{what}, {odd}", argv + more

    def check(outcome: Outcome, before: dict[str, bytes]) -> None:
        path = Path(output)
        if path.suffix == ".csv":
            actions = np.loadtxt(path, skiprows=1, ndmin=1)
        else:
            actions = np.load(path)["action"].reshape(-1)
        assert len(actions) == 6 or "bytes" in what
        assert (actions >= 0).all() and (actions <= (60 if kind == "continuous" else 2)).all()
        after = snapshot(folder)
        assert {name for name in after if after[name] != before.get(name)} == {path.name}

    run = partial(command, folder, kind, "--act", given, "--output", output, *argv)
    return Case(run, f"{kind}, {what}, to {output}", check)


DOORS = {"import": importing, "learn": learning, "estimate": judging, "act": acting}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "cases", [range(FAST), pytest.param(range(FAST, CASES), marks=pytest.mark.slow)], ids=len
)
def test_hostile_inputs_are_done_rightly_or_refused_in_one_line_with_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, homes: Path, door: str, cases: range
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("common.judging.support.Clone", partial(Clone, updates=3))
    outcomes: Counter[str] = Counter()
    found = []
    for case in cases:
        folder = tmp_path / str(case)
        folder.mkdir()
        draw = np.random.default_rng([case, list(DOORS).index(door)])
        made = DOORS[door](folder, homes, draw)
        before = snapshot(folder)
        try:
            outcome = made.run()
            if outcome.status == 0:
                assert outcome.err == "", outcome.err
                made.check(outcome, before)
            else:
                assert outcome.status in (1, 2), outcome
                said = outcome.err
                if outcome.status == 2:  # argparse's own: how it is used comes before its line
                    said = re.sub(
                        r"\Ausage: main\.py .*\n(  )?(?=main\.py: )", "", said, flags=re.S
                    )
                assert re.fullmatch(r"(main\.py: )?error: [^\n]+\n", said), said
                assert snapshot(folder) == before
            assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
        except Exception as error:
            found.append(f"case {case} of {door}, {made.what}: {error!r}"[:700])
        outcomes["done" if outcome.status == 0 else "refused"] += 1
    assert not found, "\n".join(found)
    print(door, dict(outcomes))
    assert len(cases) == FAST or min(outcomes["done"], outcomes["refused"]) >= 5, outcomes
