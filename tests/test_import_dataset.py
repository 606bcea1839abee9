"""import_dataset.py: which rows become transitions, what is refused, what main.py learns from."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import toy_envs
from conftest import done, load_variant, run_main
from import_tools import batch, imported, pendulum_rows, refused, write_hdf5

from common.environment.making import needs_rescaling
from common.errors import InputError
from datasets import rows as rows_module
from datasets import tables
from datasets.rows import transitions
from datasets.task import task_of

ROWS = [0.0, 1, 2, 10, 11]


def d4rl(folder: Path, columns: dict[str, Any], *argv: str, env: str = "Pendulum-v1") -> Any:
    path = write_hdf5(folder / "data.hdf5", columns)
    return imported(folder, "--d4rl", path, "--env", env, *argv)


def pairs(folder: Path, env: str = "Pendulum-v1") -> list[tuple[float, ...]]:
    """(state, next state, not_done) of each transition, by their first number."""
    columns = batch(folder, env)
    return [
        (float(s[0]), float(n[0]), float(d[0]))
        for s, n, d in zip(
            columns["state"], columns["next_state"], columns["not_done"], strict=True
        )
    ]


def test_a_terminal_row_is_kept_and_a_row_that_a_time_limit_cut_is_not(tmp_path: Path) -> None:
    out = done(
        d4rl(tmp_path, pendulum_rows(ROWS, terminals=[0, 0, 1, 0, 0], timeouts=[0, 0, 0, 0, 1]))
    )
    assert pairs(tmp_path) == [(0, 1, 1), (1, 2, 1), (2, 2, 0), (10, 11, 1)]
    np.testing.assert_array_equal(batch(tmp_path)["reward"][:, 0], [0, 1, 2, 3])
    np.testing.assert_allclose(batch(tmp_path)["action"][:, 0], [0, 0.2, 0.4, 0.6])
    assert "read 4 transitions" in out and "2 finished: 1 in a terminal state, 1 by time" in out
    assert "return     mean 5, from 3 to 7" in out  # of all five rows
    assert "dropped    1: ended by time-out" in out


def test_a_time_out_within_the_data_loses_its_row_unless_next_states_are_given(
    tmp_path: Path,
) -> None:
    rows = pendulum_rows(ROWS, timeouts=[0, 0, 1, 0, 1])
    done(d4rl(tmp_path, rows))
    assert pairs(tmp_path) == [(0, 1, 1), (1, 2, 1), (10, 11, 1)]
    rows["next_observations"] = rows["observations"] + 1
    done(d4rl(tmp_path, rows, "--overwrite"))
    assert pairs(tmp_path) == [(0, 1, 1), (1, 2, 1), (2, 3, 1), (10, 11, 1), (11, 12, 1)]


def six_episodes(**columns: Any) -> dict[str, Any]:
    """Episodes of 50 rows with rewards −1, −2, … −6: the next states alone show their ends."""
    first = np.repeat(1000.0 * np.arange(6), 50)
    states = first + np.tile(np.arange(50.0), 6)
    rows = pendulum_rows(states.tolist(), timeouts=None) | columns
    rows["rewards"] = np.repeat(-np.arange(1.0, 7), 50)
    return rows


def next_states(rows: dict[str, Any], step: float = 1.0) -> dict[str, Any]:
    return rows | {"next_observations": rows["observations"] + np.float32(step)}


@pytest.mark.parametrize("block", [1, 7, 2**20])
@pytest.mark.parametrize("kind", ["whole", "rounded", "at the limit"])
def test_a_row_whose_next_state_is_not_the_next_rows_ends_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, block: int
) -> None:
    rows = next_states(six_episodes())
    if kind == "rounded":  # 0.1 has no end in binary: states and next states round differently
        states = (0.1 * rows["observations"].astype(np.float64)).astype(np.float32)
        rows["observations"] = states
        rows["next_observations"] = states + np.float32(0.1)
        assert (rows["next_observations"][:-1] != states[1:]).any()
    limit = 50 if kind == "at the limit" else 200
    gym.register("Steps-v0", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=limit)
    monkeypatch.setattr("datasets.d4rl.BLOCK", block * 33)
    out = done(d4rl(tmp_path, rows, env="Steps-v0"))
    del gym.registry["Steps-v0"]
    # The last one ends with the data: it is as long as those that were cut.
    assert "6 finished: 0 in a terminal state, 6 by time-out" in out
    assert "mean -175" in out
    assert ("end by next_observations alone" in out) == (kind != "at the limit")
    episode = np.load(tmp_path / "buffers" / "B_Steps-v0_0_episode.npy")
    np.testing.assert_array_equal(episode, np.repeat(np.arange(6), 50)[:, None])
    columns = batch(tmp_path, "Steps-v0")
    assert columns["not_done"].all() and len(columns["state"]) == 300


def test_an_episode_that_the_end_of_the_data_cuts_is_unfinished(tmp_path: Path) -> None:
    rows = next_states(six_episodes())
    rows = {name: column[:280] for name, column in rows.items() if column is not None}
    assert "5 finished" in (out := done(d4rl(tmp_path, rows))) and "mean -150" in out


def test_next_states_show_ends_in_tables_too(tmp_path: Path) -> None:
    rows = next_states(six_episodes())
    arrays = {
        "state": rows["observations"],
        "action": rows["actions"],
        "reward": rows["rewards"],
        "next_state": rows["next_observations"],
        "terminated": np.arange(300) == 299,
    }
    np.savez(tmp_path / "log.npz", **arrays)
    out = done(imported(tmp_path, "--npz", tmp_path / "log.npz", "--env", "Pendulum-v1"))
    assert "6 finished: 1 in a terminal state, 5 by time-out" in out and "mean -175" in out


@pytest.mark.parametrize("name", ["episode_terminals", "truncations"])
def test_other_marks_of_where_episodes_end_are_read(tmp_path: Path, name: str) -> None:
    marks = np.arange(20) % 5 == 4
    rows = pendulum_rows([100.0 * (i // 5) + i for i in range(20)], timeouts=None)
    out = done(d4rl(tmp_path, rows | {name: marks[:, None].astype(np.float32)}))
    assert all(n == s + 1 for s, n, _ in pairs(tmp_path)) and len(pairs(tmp_path)) == 16
    assert "4 finished" in out and "no timeouts column" not in out
    # and beside time-outs, each of both counts
    rows["timeouts"] = np.arange(20) == 1
    done(d4rl(tmp_path, rows | {name: marks}, "--overwrite"))
    assert len(pairs(tmp_path)) == 15
    rows["timeouts"] = np.full(20, b"no")
    (tmp_path / "x").mkdir()
    refused(tmp_path / "x", d4rl(tmp_path / "x", rows | {name: marks}), "timeouts holds", "numbers")


def test_data_sets_nobody_reads_are_named(tmp_path: Path) -> None:
    rows = pendulum_rows(ROWS) | {"version": "3", "done": np.zeros(5)}
    rows |= {f"infos/{name}": np.zeros(5) for name in ("qvel", "qpos")}
    rows |= {f"many/{i}": np.zeros(5) for i in range(9)}
    out = done(d4rl(tmp_path, rows))
    assert "ignored: the data sets done, infos/qpos, infos/qvel, many/, version" in out


def test_a_row_both_terminal_and_timed_out_is_terminal(tmp_path: Path) -> None:
    done(d4rl(tmp_path, pendulum_rows(ROWS, terminals=[0, 0, 1, 0, 0], timeouts=[0, 0, 1, 0, 0])))
    assert pairs(tmp_path) == [(0, 1, 1), (1, 2, 1), (2, 2, 0), (10, 11, 1)]


def test_the_last_row_of_an_unfinished_episode_has_no_successor(tmp_path: Path) -> None:
    out = done(d4rl(tmp_path, pendulum_rows(ROWS, terminals=[0, 0, 1, 0, 0])))
    assert pairs(tmp_path) == [(0, 1, 1), (1, 2, 1), (2, 2, 0), (10, 11, 1)]
    assert "the last one unfinished" in out and "dropped    1: the last row" in out
    assert "return     mean 3, from 3 to 3" in out  # the unfinished one has none


def test_episodes_of_one_row(tmp_path: Path) -> None:
    rows = pendulum_rows(ROWS, terminals=[1, 0, 1, 0, 0], timeouts=[0, 1, 0, 1, 1])
    done(d4rl(tmp_path, rows))
    assert pairs(tmp_path) == [(0, 0, 0), (2, 2, 0)]
    rows = pendulum_rows(ROWS, timeouts=np.ones(5))
    (tmp_path / "other").mkdir()
    outcome = d4rl(tmp_path / "other", rows)
    refused(tmp_path / "other", outcome, "data.hdf5 gives no transition", "5 rows")


@pytest.mark.parametrize("limit", [2, 3])
def test_without_timeouts_the_step_limit_splits_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    gym.register(id="Short-v0", entry_point="toy_envs:Walk", max_episode_steps=limit)
    columns = pendulum_rows(list(range(8)), terminals=[0, 0, 0, 1, 0, 0, 0, 0], timeouts=None)
    columns["observations"] = columns["observations"][:, :2]
    monkeypatch.setattr("datasets.d4rl.BLOCK", 40)  # two rows at a time
    out = done(d4rl(tmp_path, columns, env="Short-v0"))
    kept = {2: [0, 2, 3, 4, 6], 3: [0, 1, 3, 4, 5]}[limit]
    # Limit 2: ends after 1, at 3 (terminal), after 5 and 7. Limit 3: after 2, 3, 6; 7 goes on.
    assert [pair[0] for pair in pairs(tmp_path, "Short-v0")] == kept
    assert all(n == s + 1 or d == 0 for s, n, d in pairs(tmp_path, "Short-v0"))
    assert f"no timeouts column: episodes are split at Short-v0's limit of {limit} steps" in out
    del gym.registry["Short-v0"]


def test_all_zero_terminals_and_no_timeouts_are_split_by_the_limit(tmp_path: Path) -> None:
    out = done(d4rl(tmp_path, pendulum_rows(list(range(450)), timeouts=None)))
    assert len(pairs(tmp_path)) == 447  # Pendulum's limit is 200: rows 199, 399 and 449 are lost
    assert "2 finished: 0 in a terminal state, 2 by time-out" in out


def test_an_episode_longer_than_the_environment_allows_is_noticed(tmp_path: Path) -> None:
    out = done(d4rl(tmp_path, pendulum_rows(list(range(450)))))
    assert "the longest episode has 450 steps and Pendulum-v1 allows 200: are time-outs" in out


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    draw = np.random.default_rng(size)
    rows = pendulum_rows(list(range(50)), terminals=draw.random(50) < 0.2)
    rows["timeouts"] = draw.random(50) < 0.2
    done(d4rl(tmp_path, rows))
    whole, record = (
        batch(tmp_path),
        json.loads((tmp_path / "buffers/B_Pendulum-v1_0.json").read_text()),
    )
    monkeypatch.setattr("datasets.d4rl.BLOCK", size * 22)
    done(d4rl(tmp_path, rows, "--overwrite"))
    for name, column in batch(tmp_path).items():
        np.testing.assert_array_equal(column, whole[name])
    again = json.loads((tmp_path / "buffers/B_Pendulum-v1_0.json").read_text())
    assert again["mean_return"] == record["mean_return"]
    assert again["episodes"] == record["episodes"]


def test_any_number_type_and_flat_or_wide_rewards(tmp_path: Path) -> None:
    rows = pendulum_rows(ROWS, terminals=np.array([0, 0, 1, 0, 0], np.float64))
    rows["observations"] = rows["observations"].astype(np.float64)
    rows["rewards"] = rows["rewards"].astype(np.int64)[:, None]
    rows["timeouts"] = np.array([0, 0, 0, 0, 1], np.uint8)[:, None]
    done(d4rl(tmp_path, rows))
    assert {name: (c.dtype, c.shape) for name, c in batch(tmp_path).items()} == {
        "state": (np.float32, (4, 3)),
        "action": (np.float32, (4, 1)),
        "next_state": (np.float32, (4, 3)),
        "reward": (np.float32, (4, 1)),
        "not_done": (np.float32, (4, 1)),
    }


def test_actions_beyond_the_bounds_are_refused_and_clipped_only_where_asked(tmp_path: Path) -> None:
    rows = pendulum_rows(ROWS, actions=np.array([[0], [2.5], [-7], [2], [-2.0000001]]))
    words = ["2 actions are beyond", "[-2, 2]", "the largest is -7", "row 1", "--clip_actions"]
    refused(tmp_path, d4rl(tmp_path, rows), "data.hdf5", *words)
    out = done(d4rl(tmp_path, rows, "--clip_actions"))
    np.testing.assert_array_equal(batch(tmp_path)["action"][:, 0], [0, 2, -2, 2])
    assert "clipped    2 actions, the largest -7" in out


def test_rows_with_nan_are_named_and_left_out_only_where_asked(tmp_path: Path) -> None:
    rows = pendulum_rows(list(range(9)))
    rows["observations"][3, 1] = np.nan
    rows["rewards"][6] = np.inf
    refused(tmp_path, d4rl(tmp_path, rows), "row 3, 6 (observations, rewards)", "--drop_bad_rows")
    out = done(d4rl(tmp_path, rows, "--drop_bad_rows"))
    # Row 2 leads to a bad state, row 5 to a good one.
    assert [pair[0] for pair in pairs(tmp_path)] == [0, 1, 4, 5, 7]
    assert "dropped    3: NaN or infinity" in out


def test_a_return_is_of_an_episode_without_bad_rows(tmp_path: Path) -> None:
    rows = pendulum_rows(list(range(9)), terminals=[0, 0, 1, 0, 0, 1, 0, 0, 1])
    rows["rewards"][1], rows["observations"][8, 0] = np.inf, np.nan
    out = done(d4rl(tmp_path, rows, "--drop_bad_rows"))
    assert "return     mean 12, from 12 to 12" in out
    record = json.loads((tmp_path / "buffers" / "B_Pendulum-v1_0.json").read_text())
    assert record["episodes"] == 1 and record["mean_return"] == 12


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    rows = pendulum_rows(list(range(30)))
    rows["actions"] = np.full((30, 1), np.nan)
    refused(tmp_path, d4rl(tmp_path, rows), "row 0, 1, 2, 3, 4 and 25 more")


def test_what_float32_cannot_hold_is_infinite(tmp_path: Path) -> None:
    rows = pendulum_rows(ROWS)
    rows["rewards"] = np.array([0, 0, 1e300, 0, 0])
    refused(tmp_path, d4rl(tmp_path, rows), "NaN or infinity in row 2")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"terminals": None}, ["has no terminals", "actions, observations, rewards, timeouts"]),
        ({"rewards": np.zeros(4)}, ["differ in length", "rewards 4"]),
        ({"rewards": np.zeros((5, 2))}, ["rewards is 2 wide"]),
        ({"terminals": [0, 2, 0, 0, 0]}, ["terminals holds 2, not 0 and 1"]),
        ({"terminals": [0, np.nan, 0, 0, 0]}, ["terminals holds nan"]),
        ({"terminals": np.zeros((5, 2))}, ["terminals", "not one flag a row"]),
        ({"actions": np.zeros((5, 2))}, ["actions is 2 wide", "Pendulum-v1 have 1 number"]),
        ({"observations": np.zeros((5, 3, 2))}, ["observations has rows of shape (3, 2)"]),
        ({"observations": np.array([b"a"] * 5)}, ["observations holds |S1, not numbers"]),
        ({"observations": np.zeros((5, 4))}, ["observations is 4 wide", "have 3 numbers"]),
        ({"observations": np.zeros((0, 3))}, ["differ in length", "observations 0"]),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused(
    tmp_path: Path, columns: dict[str, Any], words: list[str]
) -> None:
    refused(tmp_path, d4rl(tmp_path, pendulum_rows(ROWS, **columns)), "data.hdf5", *words)


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
def test_what_is_too_wide_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = write_hdf5(tmp_path / "data.hdf5", pendulum_rows([0.0] * 10, **{name: None}))
    with h5py.File(path, "a") as file:
        file.create_dataset(name, (10, 10**8), "f4", chunks=(1, 1000))

    def never(*_: Any) -> None:
        raise AssertionError("a column was read")

    monkeypatch.setattr("h5py.Dataset.__getitem__", never)
    outcome = imported(tmp_path, "--d4rl", path, "--env", "Pendulum-v1")
    refused(tmp_path, outcome, name, "flag" if name == "terminals" else "100000000 wide")


def test_a_name_that_is_no_text_is_damage(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "data.hdf5", pendulum_rows(ROWS))
    content = path.read_bytes()
    assert b"observations" in content
    path.write_bytes(content.replace(b"observations", b"obs\xffrvations"))
    outcome = imported(tmp_path, "--d4rl", path, "--env", "Pendulum-v1")
    refused(tmp_path, outcome, "data.hdf5 is damaged or no HDF5 file (the name", "is no UTF-8")


def test_states_of_another_version_of_the_environment_name_it(tmp_path: Path) -> None:
    rows = pendulum_rows(ROWS, observations=np.zeros((5, 105)), actions=np.zeros((5, 8)))
    outcome = d4rl(tmp_path, rows, env="Ant-v4")
    refused(tmp_path, outcome, "105 wide", "Ant-v4 have 27 numbers", "those of Ant-v5 have 105")


def test_a_file_of_d4rls_was_recorded_in_v2_and_v5_is_another_task(tmp_path: Path) -> None:
    rows = pendulum_rows(ROWS, observations=np.zeros((5, 11)), actions=np.zeros((5, 3)))
    rows["timeouts"][-1] = True
    path = write_hdf5(tmp_path / "hopper_medium-v2.hdf5", rows)
    out = done(imported(tmp_path, "--d4rl", path, "--env", "Hopper-v5"))
    assert "recorded in Hopper-v2, and --env is Hopper-v5" in out
    out = done(imported(tmp_path, "--d4rl", path, "--env", "Hopper-v2"))
    assert "Hopper-v2 runs as Hopper-v4" in out and "warning" not in out
    assert "score      0.9" in out  # a return of 10
    outcome = imported(tmp_path / "other", "--d4rl", path, "--env", "Walker2d-v4")
    refused(tmp_path / "other", outcome, "was recorded in Hopper-v2, not in Walker2d-v4")


def test_a_damaged_file_is_to_be_fetched_again(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "d.hdf5", pendulum_rows(list(range(999)), terminals=np.ones(999)))
    path.write_bytes(path.read_bytes()[:-5000])
    words = ["d.hdf5 is damaged or no HDF5 file", "fetch it again"]
    refused(tmp_path, imported(tmp_path, "--d4rl", path, "--env", "Pendulum-v1"), *words)
    outcome = imported(tmp_path, "--d4rl", tmp_path / "none.hdf5", "--env", "Pendulum-v1")
    refused(tmp_path, outcome, "none.hdf5 is no file")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--d4rl", "x"], ["x is no file"]),
        (["--dqn_replay", "x"], ["--env is missing"]),
        (["--export_minari", "x/y-v0"], ["--env is missing"]),
        (["--d4rl", "x", "--env", "NoSuch-v0"], ["--env NoSuch-v0 cannot be made"]),
        (["--d4rl", "x", "--env", "PongNoFrameskip-v0"], ["--dqn_replay alone"]),
        (["--d4rl", "x", "--env", "ToyPictures-v0"], ["continuous_BCQ needs a vector"]),
        (["--d4rl", "x", "--env", "Pendulum-v1", "--shards", "0"], ["--shards belongs to"]),
        (["--dqn_replay", "x", "--env", "Pendulum-v1"], ["no Atari game"]),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    tmp_path: Path, argv: list[str], words: list[str]
) -> None:
    refused(tmp_path, imported(tmp_path, *argv), *words)


def test_exactly_one_source_is_named(tmp_path: Path) -> None:
    assert imported(tmp_path).status == 2
    assert imported(tmp_path, "--npz", "a", "--csv", "b").status == 2


@pytest.mark.parametrize(
    "flag", ["--d4rl", "--minari", "--dqn_replay", "--npz", "--csv", "--export_minari"]
)
def test_an_empty_name_is_refused(tmp_path: Path, flag: str) -> None:
    outcome = imported(tmp_path, flag, "", "--env", "Pendulum-v1")
    assert outcome.status == 2 and f"argument {flag}: the name is empty" in outcome.err


def test_what_learns_from_the_batch_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "a folder; $(x)"
    folder.mkdir()
    out = done(d4rl(folder, pendulum_rows(ROWS)))
    assert shlex.split(out.splitlines()[-1])[-2:] == ["--output_dir", str(folder)]


def test_a_batch_is_replaced_whole_and_only_where_asked(tmp_path: Path) -> None:
    done(d4rl(tmp_path, pendulum_rows(ROWS)))
    before = batch(tmp_path)
    outcome = d4rl(tmp_path, pendulum_rows(list(range(9))))
    assert outcome.status == 1 and "exists: --overwrite replaces it" in outcome.err
    for bad in (np.full((9, 1), 9.0), np.full((9, 1), np.nan)):
        outcome = d4rl(tmp_path, pendulum_rows(list(range(9)), actions=bad), "--overwrite")
        assert outcome.status == 1
        for name, column in batch(tmp_path).items():
            np.testing.assert_array_equal(column, before[name])
    stale = tmp_path / "buffers" / "B_Pendulum-v1_0_simulator.npy"
    performance = tmp_path / "results" / "buffer_performance_B_Pendulum-v1_0.npy"
    performance.parent.mkdir()
    for path in (stale, performance):
        np.save(path, np.zeros(1))
    performance.with_suffix(".json").write_text("{}")
    done(d4rl(tmp_path, pendulum_rows(list(range(9))), "--overwrite"))
    assert len(batch(tmp_path)["state"]) == 8
    assert not stale.exists() and not performance.with_suffix(".json").exists()


def test_the_record_says_where_the_data_are_from_and_no_path(tmp_path: Path) -> None:
    done(d4rl(tmp_path, pendulum_rows(ROWS, terminals=[0, 0, 1, 0, 0])))
    text = (tmp_path / "buffers" / "B_Pendulum-v1_0.json").read_text()
    assert str(tmp_path) not in text
    record = json.loads(text)
    assert record["env"] == "Pendulum-v1" and record["seed"] == 0 and record["in_order"] is True
    assert record["transitions"] == 4 and record["episodes"] == 1 and record["mean_return"] == 3
    assert record["rows_dropped"] == 1 and record["source"]["file"] == "data.hdf5"
    assert re.fullmatch("[0-9a-f]{64}", record["source"]["sha256"])


NPZ: dict[str, Any] = {
    "state": np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2], [10, 10, 10], [11, 11, 11]], np.float32),
    "action": np.zeros(5),
    "reward": np.arange(5.0),
}


def npz(folder: Path, *argv: str, env: str = "Pendulum-v1", **columns: Any) -> Any:
    folder.mkdir(exist_ok=True)
    kept: dict[str, Any] = {k: v for k, v in (NPZ | columns).items() if v is not None}
    np.savez(folder / "log.npz", **kept)
    return imported(folder, "--npz", folder / "log.npz", "--env", env, *argv)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"terminated": [0, 0, 1, 0, 0]}, [(0, 1, 1), (1, 2, 1), (2, 2, 0), (10, 11, 1)]),
        ({"episode": [7, 7, 7, 3, 3]}, [(0, 1, 1), (1, 2, 1), (10, 11, 1)]),
        ({"episode": ["a", "a", "a", "b", "b"], "terminated": [0, 0, 1, 0, 0]},
         [(0, 1, 1), (1, 2, 1), (2, 2, 0), (10, 11, 1)]),
        ({"truncated": [0, 0, 1, 0, 0]}, [(0, 1, 1), (1, 2, 1), (10, 11, 1)]),
        ({"episode": [0, 0, 0, 1, 1], "next_state": NPZ["state"] + 1,
          "terminated": [0, 0, 0, 0, 1]},
         [(0, 1, 1), (1, 2, 1), (2, 3, 1), (10, 11, 1), (11, 12, 0)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("block", [1, 2, 100])
def test_own_arrays_end_episodes_by_flags_or_by_an_id(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, Any],
    expected: list[tuple[float, ...]],
    block: int,
) -> None:
    monkeypatch.setattr(tables, "BLOCK", block)
    out = done(npz(tmp_path, **columns))
    assert pairs(tmp_path) == expected
    assert ("no terminated column" in out) == ("terminated" not in columns)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, ["log.npz does not say where episodes end"]),
        ({"episode": [0, 0, 1, 1, 1], "done": np.zeros(5)}, ["a column done and none named term"]),
        ({"reward": None, "terminated": np.zeros(5)}, ["has no column reward", "state"]),
        ({"episode": [0, 0, 1, 0, 0]}, ["episode 0 comes back"]),
        ({"episode": np.zeros((5, 2))}, ["not one id a row"]),
        ({"episode": [0, np.nan, np.nan, 1, 1]}, ["episode is empty or NaN in row 1, 2:"]),
        ({"episode": ["a", "a", " ", "b", "NaN"]}, ["episode is empty or NaN in row 2, 4:"]),
        ({"episode": [b"a", b"a", b"a", b"", b"nan"]}, ["episode is empty or NaN in row 3, 4:"]),
        ({"terminated": np.zeros(4)}, ["differ in length", "terminated 4"]),
        ({"terminated": 0.0}, ["differ in length", "terminated 0"]),
    ],
)
def test_own_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, columns: dict[str, Any], words: list[str]
) -> None:
    refused(tmp_path, npz(tmp_path, **columns), "log.npz", *words)


def test_columns_nobody_reads_are_named(tmp_path: Path) -> None:
    out = done(npz(tmp_path, terminated=np.zeros(5), time=np.zeros(5), who=np.zeros(5)))
    assert "ignored: the columns time, who" in out


HEADER = "state_0,state_1,state_2,action,reward,terminated,truncated"


def csv_file(folder: Path, text: str, *argv: str, env: str = "Pendulum-v1") -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "log.csv").write_text(text, encoding="utf-8")
    return imported(folder, "--csv", folder / "log.csv", "--env", env, *argv)


def test_a_table_is_read_whatever_the_order_of_its_columns(tmp_path: Path) -> None:
    text = (
        "\ufeffreward, state_1 ,state_0,state_2,note,action,terminated,truncated\n"
        "0,0.5,0,9,a,1,False,0\n\n1,1.5,1,9,b,-1,TRUE,0\n2,2.5,2,9,c,1,0,0\n3,3.5,3,9,d,1,0,true\n\n"
    )
    out = done(csv_file(tmp_path, text))
    assert pairs(tmp_path) == [(0, 1, 1), (1, 1, 0), (2, 3, 1)]
    columns = batch(tmp_path)
    np.testing.assert_array_equal(columns["state"][0], [0, 0.5, 9])
    np.testing.assert_array_equal(columns["reward"][:, 0], [0, 1, 2])
    np.testing.assert_array_equal(columns["action"][:, 0], [1, -1, 1])
    assert "ignored: the columns note" in out


def test_next_states_may_be_empty_where_they_are_terminal(tmp_path: Path) -> None:
    header = HEADER + ",next_state_0,next_state_1,next_state_2\n"
    rows = "0,0,0,1,0,0,1,5,5,5\n1,1,1,1,0,1,0,,,\n"
    done(csv_file(tmp_path, header + rows))
    assert pairs(tmp_path) == [(0, 5, 1), (1, 1, 0)]
    outcome = csv_file(tmp_path / "other", header + rows.replace("1,0,,,", "0,1,,,"))
    refused(tmp_path / "other", outcome, "NaN or infinity in line 3 (next_state): repair")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["has no column state (or state_0"]),
        (HEADER + "\n", ["gives no transition"]),
        (HEADER + "\n0,0,0,0,0,0,0\n0,0,0,x,0,0,0\n", ["line 3, action is 'x', no number"]),
        (HEADER + "\n0,0,0,0,,0,0\n", ["line 2, reward is '', no number"]),
        (HEADER + "\n0,0,0,0,0\n", ["line 2 has 5 cells, the header 7"]),
        (HEADER.replace("state_1", "state_3") + "\n", ["has no state_1"]),
        (HEADER.replace("state_1", "state_0") + "\n", ["several columns state_0"]),
        (HEADER.replace("terminated,truncated", "x,y") + "\n", ["where episodes end"]),
        (HEADER.replace("terminated", "Done") + "\n", ["a column Done and none named terminated"]),
        (HEADER.replace(",", ";") + "\n", ["gives no transition"]),
        (HEADER.replace(",", ":") + "\n", ["has no column state"]),
        (HEADER + "\n0,0,0,0,0,0,nan\n", ["truncated holds nan"]),
        (HEADER + "\n0,0,0,0,nan,1,0\n", ["NaN or infinity in line 2"]),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    refused(tmp_path, csv_file(tmp_path, text), "log.csv", *words)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be",
                                      "gbk", "latin-1"])  # fmt: skip
@pytest.mark.parametrize(("delimiter", "comma"), [(",", "."), (";", ","), ("\t", ","), (";", ".")])
def test_a_table_is_read_as_spreadsheets_write_it(
    tmp_path: Path, delimiter: str, comma: str, encoding: str
) -> None:
    note = "é" if encoding == "latin-1" else "时间"
    lines = [
        f"{HEADER},{note}",
        "0,1.5,-2.25,0.5,1e-3,0,0,a",
        "1,1,1234.5,0,7,0,0,b",
        "2,3,4,0,0,1,0,",
    ]
    text = "\r\n".join(line.replace(",", delimiter).replace(".", comma) for line in lines)
    hint = "sep=;\r\n" if delimiter == ";" else ""
    (tmp_path / "log.csv").write_bytes((hint + text + "\r\n").encode(encoding))
    out = done(imported(tmp_path, "--csv", tmp_path / "log.csv", "--env", "Pendulum-v1"))
    columns = batch(tmp_path)
    expected = [[0, 1.5, -2.25], [1, 1, 1234.5], [2, 3, 4]]
    np.testing.assert_array_equal(columns["state"], expected)
    assert columns["reward"][:, 0].tolist() == [np.float32(1e-3), 7, 0]
    assert f"ignored: the columns {note}" in out


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["0\t0\t0\t1,234\t0\t0\t0"], ["line 2 has a comma within a number, which could be"]),
        (['0,0,0,"1,234",0,0,0'], ["line 2 has a comma within a number, which could be decimal"]),
        (["0;0;0;0,5;0;0;0", "0;0;0;0.5;0;0;0"], ["line 2 has a comma", "and line 3 a point"]),
        (["0;0;0;1.234,5;0;0;0"], ["line 2 has a comma within a number and line 2 a point"]),
    ],
)
@pytest.mark.parametrize("block", [1, 100])
def test_commas_that_could_mean_either_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str], words: list[str], block: int
) -> None:
    monkeypatch.setattr(tables, "BLOCK", block)
    delimiter = next(one for one in ("\t", ";", ",") if one in rows[0])
    text = "\n".join([HEADER.replace(",", delimiter), *rows, ""])
    refused(tmp_path, csv_file(tmp_path, text), *words, "write numbers with a decimal point")


def test_between_semicolons_a_comma_is_decimal_whatever_follows_it(tmp_path: Path) -> None:
    text = "\n".join([HEADER.replace(",", ";"), "1,234;0;0;0;0;1;0", ""])
    done(csv_file(tmp_path, text))
    assert batch(tmp_path)["state"][0, 0] == np.float32(1.234)


def test_what_is_no_number_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes((HEADER + "\n0,0,0,0,0,0,\xff\n").encode("latin-1"))
    outcome = imported(tmp_path, "--csv", tmp_path / "log.csv", "--env", "Pendulum-v1")
    refused(tmp_path, outcome, "log.csv: line 2, truncated is 'ÿ', no number")


@pytest.mark.parametrize("name", ["log.csv", "log.npz"])
def test_ones_own_file_is_not_to_be_fetched_again(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    kind = "--csv" if name == "log.csv" else "--npz"
    outcome = imported(tmp_path, kind, tmp_path / name, "--env", "Pendulum-v1")
    refused(tmp_path, outcome, name, "repair it, or write it again")
    assert "fetch" not in outcome.err


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_numbers_that_float32_cannot_tell_apart_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(tables, "BLOCK", block)
    state = np.stack([np.arange(38.0), 1.7e9 + np.arange(38), np.full(38, 1e9)], 1)
    end = np.arange(38) == 37
    reward = np.float64(1e12) + np.arange(38) if block == 7 else np.ones(38)
    state = state.astype(np.uint32) if block == 1 else state
    out = done(npz(tmp_path, state=state, action=np.zeros(38), reward=reward, terminated=end))
    assert "state 1: float32, in which a batch is held, keeps 0 of its 37 changes" in out
    assert "state 0" not in out and "state 2" not in out
    assert ("reward 0: float32" in out) == (block == 7)
    rows = pendulum_rows(ROWS, observations=1.7e9 + np.arange(15.0).reshape(5, 3))
    (tmp_path / "d4rl").mkdir()
    assert "observations 2: float32" in done(d4rl(tmp_path / "d4rl", rows))


def test_an_episode_without_an_id_is_refused_with_its_lines(tmp_path: Path) -> None:
    lines = ["0,0,0,0,0,a", "0,0,0,0,0,a", *["0,0,0,0,0, "] * 6]
    text = "\n".join([HEADER.replace("terminated,truncated", "episode"), *lines, ""])
    outcome = csv_file(tmp_path, text)
    refused(tmp_path, outcome, "log.csv: episode is empty or NaN in line 4, 5, 6, 7, 8 and others")


def test_commas_at_the_end_of_lines_are_columns_without_a_name(tmp_path: Path) -> None:
    out = done(csv_file(tmp_path, HEADER + ",,\n0,0,0,0,0,0,0,,\n1,1,1,0,0,1,0,,\n"))
    assert pairs(tmp_path) == [(0, 1, 1), (1, 1, 0)]
    assert "ignored: the columns (no name)\n" in out


def test_discrete_actions_are_whole_numbers_of_the_environments(tmp_path: Path) -> None:
    rows = {
        "state": np.zeros((5, 4)),
        "action": np.array([0, 1, 1, 0, 1]),
        "terminated": np.ones(5),
    }
    done(npz(tmp_path, env="CartPole-v1", **rows))
    columns = batch(tmp_path, "CartPole-v1")
    assert columns["action"].dtype == np.int64 and columns["action"].shape == (5, 1)
    for wrong in (2, -1, 0.5):
        rows["action"] = np.array([0, 1, 1, wrong, 1])
        outcome = npz(tmp_path / f"x{wrong}", "--clip_actions", env="CartPole-v1", **rows)
        words = ["1 actions are none of CartPole-v1's, 0 to 1, the first in row 3"]
        refused(tmp_path / f"x{wrong}", outcome, *words)
    rows["action"] = np.array([0, 1, np.nan, 0, 1])
    refused(tmp_path / "nan", npz(tmp_path / "nan", env="CartPole-v1", **rows), "row 2")
    done(npz(tmp_path / "nan", "--drop_bad_rows", env="CartPole-v1", **rows))
    np.testing.assert_array_equal(
        batch(tmp_path / "nan", "CartPole-v1")["action"][:, 0], [0, 1, 0, 1]
    )


def test_states_that_are_whole_numbers_are_one_hot_as_main_py_sees_them(tmp_path: Path) -> None:
    rows = {"state": np.array([0, 4, 8, 0, 15]), "action": np.ones(5), "terminated": np.ones(5)}
    done(npz(tmp_path, env="FrozenLake-v1", **rows))
    state = batch(tmp_path, "FrozenLake-v1")["state"]
    np.testing.assert_array_equal(state.argmax(1), [0, 4, 8, 0, 15])
    assert state.shape == (5, 16) and (state.sum(1) == 1).all()
    rows["state"] = np.array([0, 4, 16, 0, 15])
    outcome = npz(tmp_path / "x", env="FrozenLake-v1", **rows)
    refused(tmp_path / "x", outcome, "holds 16; FrozenLake-v1 has the states 0 to 15")


@pytest.mark.parametrize(
    ("variant", "env_id"),
    [
        ("continuous_BCQ", "Pendulum-v1"),
        ("continuous_BCQ", "Hopper-v4"),
        ("continuous_BCQ", "ToySkewed-v0"),
        ("discrete_BCQ", "CartPole-v1"),
        ("discrete_BCQ", "FrozenLake-v1"),
        ("discrete_BCQ", "Blackjack-v1"),
    ],
)
def test_sizes_are_those_of_main_pys_environment(variant: str, env_id: str) -> None:
    utils, task = load_variant(variant).utils, task_of(env_id)
    env = utils.make_env(env_id)
    assert (task.state_dim,) == env.observation_space.shape
    if variant == "discrete_BCQ":
        assert utils.dimensions(env)[1] == task.num_actions
        for seed in range(20):
            inner = env.env if hasattr(env, "env") else env
            seen, _ = inner.reset(seed=seed)
            raw = np.array([seen], np.float32).reshape(1, -1)
            flat, _ = env.reset(seed=seed)
            np.testing.assert_array_equal(task.states("x", raw)[0], flat)
    else:
        assert utils.dimensions(env)[1] == task.action_dim
        assert task.rescaled == (env_id == "ToySkewed-v0")


class Pictures(toy_envs.Reach):
    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)


gym.register(id="ToyPictures-v0", entry_point="test_import_dataset:Pictures")


class Skewed(toy_envs.Reach):
    """Bounds that are neither symmetric nor the same in both dimensions; pays the action taken."""

    action_space = gym.spaces.Box(np.array([-1, 0], np.float32), np.array([3, 7], np.float32))

    def step(self, action: np.ndarray) -> Any:
        self.taken = np.array(action)
        return super().step(action)


gym.register(id="ToySkewed-v0", entry_point="test_import_dataset:Skewed", max_episode_steps=5)


class Narrow(toy_envs.Reach):
    """Bounds far from zero; `width=0` leaves no choice."""

    def __init__(self, width: float) -> None:
        low = np.full(2, 5, np.float32)
        self.action_space = gym.spaces.Box(low, low + np.float32(width))


for narrow_id, width in [("ToyNarrow-v0", 0.5), ("ToyNoChoice-v0", 0)]:
    gym.register(narrow_id, "test_import_dataset:Narrow", kwargs={"width": width})


def test_what_float32_rounds_is_not_beyond_a_bound(tmp_path: Path) -> None:
    action = np.full((5, 2), 5.5, np.float32)
    action[1] = np.nextafter(action[1], np.float32(9))
    action[2] = np.nextafter(np.float32(5), np.float32(0))
    rows = {"state": np.zeros((5, 2)), "action": action, "terminated": np.ones(5)}
    done(npz(tmp_path, env="ToyNarrow-v0", **rows))
    np.testing.assert_array_equal(batch(tmp_path, "ToyNarrow-v0")["action"][:3, 0], [1, 1, -1])
    rows["action"] = np.full((5, 2), 5.5001)
    refused(tmp_path / "x", npz(tmp_path / "x", env="ToyNarrow-v0", **rows), "are beyond")


@pytest.mark.filterwarnings("ignore:.*A Box action space maximum and minimum values are equal")
def test_bounds_without_a_choice_are_refused_as_main_py_does(tmp_path: Path) -> None:
    rows = {"state": np.zeros((5, 2)), "action": np.full((5, 2), 5), "terminated": np.ones(5)}
    outcome = npz(tmp_path, env="ToyNoChoice-v0", **rows)
    refused(tmp_path, outcome, "--env ToyNoChoice-v0", "a dimension leaves no choice")
    with pytest.raises(InputError) as error:
        load_variant("continuous_BCQ").utils.make_env("ToyNoChoice-v0")
    assert outcome.err == f"error: {error.value}\n"


@pytest.mark.parametrize(
    ("low", "high", "rescaled"),
    [([-2, -2], [2, 2], False), ([0, 0], [2, 2], True), ([-1, -2], [1, 2], True)],
)
def test_bounds_are_rescaled_where_they_are_not_one_m(
    low: list[float], high: list[float], rescaled: bool
) -> None:
    box = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    assert needs_rescaling(box) == rescaled


def test_actions_of_a_rescaled_environment_are_rescaled_as_main_py_does(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    raw = draw.uniform([-1, 0], [3, 7], (50, 2)).astype(np.float32)
    raw[:3] = np.array([[-1, 0], [3, 7], [1, 3.5]])
    rows = {
        "state": np.zeros((50, 2)),
        "action": raw,
        "reward": raw[:, 0],
        "terminated": np.ones(50),
    }
    out = done(npz(tmp_path, env="ToySkewed-v0", **rows))
    action = batch(tmp_path, "ToySkewed-v0")["action"]
    np.testing.assert_array_equal(action[:3], [[-1, -1], [1, 1], [0, 0]])
    env = load_variant("continuous_BCQ").utils.make_env("ToySkewed-v0")
    for scaled, wanted in zip(action, raw, strict=True):
        env.reset(seed=0)
        env.step(scaled)
        np.testing.assert_allclose(env.unwrapped.taken, wanted, atol=1e-6)
    assert "scaled to [-1, 1] in the batch" in out
    # and back again, bit by bit
    task = task_of("ToySkewed-v0")
    np.testing.assert_array_equal(task.to_batch(task.from_batch(action)), action)


def test_a_row_waits_for_its_successor_in_the_next_block() -> None:
    from collections import Counter

    def block(states: list[float], terminated: list[int], truncated: list[int]) -> rows_module.Rows:
        state = np.array(states, np.float32)[:, None]
        ends = np.array(terminated, bool), np.array(truncated, bool)
        return rows_module.Rows(np.arange(len(states)), state, state, state, *ends, None)

    dropped: Counter[str] = Counter()
    blocks = [
        block([0, 1], [0, 0], [0, 0]),
        block([2], [0], [0]),
        block([3, 9], [0, 0], [1, 0]),
        block([10], [1], [0]),
        block([20], [0], [0]),
    ]
    found = [
        (s, n, d)
        for part in transitions(blocks, dropped)
        for s, n, d in zip(
            part.state[:, 0].tolist(), part.next_state[:, 0], part.not_done[:, 0], strict=True
        )
    ]
    assert found == [(0, 1, 1), (1, 2, 1), (2, 3, 1), (9, 10, 1), (10, 10, 0)]
    assert dropped[rows_module.NO_SUCCESSOR] == 1 and dropped[rows_module.UNFINISHED] == 1


def test_both_variants_learn_from_what_was_imported(tmp_path: Path) -> None:
    sizes = [
        "--max_timesteps",
        "4",
        "--eval_freq",
        "4",
        "--eval_episodes",
        "1",
        "--batch_size",
        "2",
    ]
    done(d4rl(tmp_path, pendulum_rows(ROWS)))
    done(npz(tmp_path, env="CartPole-v1", state=np.zeros((5, 4)), terminated=np.ones(5)))
    for variant, env_id in [("continuous_BCQ", "Pendulum-v1"), ("discrete_BCQ", "CartPole-v1")]:
        argv = ["--env", env_id, "--buffer_name", "B", "--output_dir", str(tmp_path), *sizes]
        done(run_main(load_variant(variant).main, *argv, "--device", "cpu", "--threads", "1"))
        assert np.isfinite(np.load(tmp_path / "results" / f"BCQ_B_{env_id}_0.npy")).all()
