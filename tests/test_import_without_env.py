"""import_dataset.py without --env: what is inferred, what is told, what is refused."""

from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from conftest import Outcome, done
from import_tools import BATCH, imported, pendulum_rows, refused, silence, write_hdf5
from minari.data_collector import EpisodeBuffer

from common.files import read_json

HEADER = "episode,state_0,state_1,action,reward,terminated"


def csv(folder: Path, rows: list[str], *argv: str, header: str = HEADER) -> Outcome:
    """Import these lines as a .csv."""
    path = folder / "log.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return imported(folder, "--csv", path, *argv)


def columns(folder: Path) -> dict[str, np.ndarray]:
    """The columns of the batch, its episodes' numbers among them."""
    return {c: np.load(folder / "buffers" / f"B_0_{c}.npy") for c in (*BATCH, "episode")}


def task(folder: Path) -> dict[str, Any]:
    """What the record says of the task."""
    return read_json(folder / "buffers" / "B_0.json")["task"]


DISCRETE = ["a,1,5,0,0,0", "a,2,6,2,0,0", "a,3,7,1,1,1", "b,9,9,0,0,0", "b,8,8,1,0,0"]


def test_whole_numbers_without_a_gap_are_discrete_actions(tmp_path: Path) -> None:
    out = done(csv(tmp_path, DISCRETE))
    found = columns(tmp_path)
    assert found["action"].dtype == np.int64 and found["action"].tolist() == [[0], [2], [1], [0]]
    assert found["state"].tolist() == [[1, 5], [2, 6], [3, 7], [9, 9]]
    assert found["next_state"][3].tolist() == [8, 8]  # b's last row is cut, and not followed
    assert found["not_done"][:, 0].tolist() == [1, 1, 0, 1]
    assert found["episode"][:, 0].tolist() == [0, 0, 0, 1]
    assert task(tmp_path) == {
        "kind": "discrete", "state_dim": 2, "num_actions": 3, "action_low": None,
        "action_high": None, "rescaled": False, "inferred": ["num_actions"],
    }  # fmt: skip
    assert "no --env: 2 numbers a state, 3 discrete actions, as many as were logged" in out
    assert "discrete_BCQ/main.py --buffer_name B --output_dir" in out and "--env " not in out[-200:]
    assert read_json(tmp_path / "buffers" / "B_0.json")["env"] is None


def test_num_actions_says_of_actions_that_were_never_taken(tmp_path: Path) -> None:
    out = done(csv(tmp_path, DISCRETE, "--num_actions", "5"))
    assert task(tmp_path)["num_actions"] == 5 and task(tmp_path)["inferred"] == []
    assert "as many as were logged" not in out


CONTINUOUS = ["a,1,5,-1.5,0,0", "a,2,6,0.5,0,0", "a,3,7,1,1,1"]


def test_bounds_are_the_extremes_of_the_data_and_a_line_says_so(tmp_path: Path) -> None:
    out = done(csv(tmp_path, CONTINUOUS))
    found = task(tmp_path)
    assert (found["action_low"], found["action_high"]) == ([-1.5], [1])
    assert found["inferred"] == ["action_low", "action_high"] and found["rescaled"]
    assert "action_low and action_high from the extremes of the data: the true bounds may be" in out
    # −1.5 … 1 becomes −1 … 1.
    np.testing.assert_allclose(columns(tmp_path)["action"][:, 0], [-1, 0.6, 1])
    assert "continuous_BCQ/main.py" in out


def test_bounds_that_are_given_are_used_and_need_no_scaling_where_they_are_symmetric(
    tmp_path: Path,
) -> None:
    out = done(csv(tmp_path, CONTINUOUS, "--action_low", "-2", "--action_high", "2"))
    assert task(tmp_path)["inferred"] == [] and not task(tmp_path)["rescaled"]
    np.testing.assert_allclose(columns(tmp_path)["action"][:, 0], [-1.5, 0.5, 1])
    assert "extremes" not in out


def test_bounds_a_dimension(tmp_path: Path) -> None:
    header = "episode,state,action_0,action_1,reward"
    rows = ["a,1,0.5,20,0", "a,2,0.25,30,1", "a,3,1,10,0"]
    argv = ["--action_low", "0", "10", "--action_high", "1", "50"]
    done(csv(tmp_path, rows, *argv, header=header))
    np.testing.assert_allclose(columns(tmp_path)["action"], [[0, -0.5], [-0.5, 0]])


def test_whole_numbers_with_gaps_must_be_called_choices_or_amounts(tmp_path: Path) -> None:
    rows = ["a,1,5,0,0,0", "a,2,6,50,0,0", "a,3,7,100,1,1"]
    refused(tmp_path, csv(tmp_path, rows), "whole numbers from 0 to 100", "--num_actions")
    done(csv(tmp_path, rows, "--action_low", "0", "--action_high", "100"))
    assert task(tmp_path)["kind"] == "continuous"


def test_episodes_are_numbered_where_states_alone_would_not_tell_them_apart(tmp_path: Path) -> None:
    header = "episode,state,action,reward,terminated,next_state"
    rows = ["a,1,0,0,0,2", "a,2,1,0,0,1", "b,1,0,0,0,2", "b,2,1,0,0,1"]
    done(csv(tmp_path, rows, header=header))
    assert columns(tmp_path)["episode"][:, 0].tolist() == [0, 0, 1, 1]


def test_terminated_alone_ends_episodes_where_there_is_no_step_limit(tmp_path: Path) -> None:
    header = "state,action,reward,terminated"
    rows = [f"{i},{i % 2},0,{int(i == 1)}" for i in range(2500)]
    out = done(csv(tmp_path, rows, header=header))
    assert "an episode ends where terminated is 1 alone" in out
    assert columns(tmp_path)["episode"][[1, 2, -1], 0].tolist() == [0, -1, -1]  # unfinished


def test_odd_states_and_rewards_are_told_with_what_to_do(tmp_path: Path) -> None:
    rows = [f"a,{i * 1000},7,{i % 2},0,0" for i in range(6)]
    out = done(csv(tmp_path, rows))
    assert "constant, so of no use: state 1" in out
    assert "every reward is 0" in out
    assert "learn with --normalize_states" in out
    rows = [f"a,{i},{i / 1e6},{i % 2},{i},0" for i in range(6)]  # a million between the columns
    out = done(csv(tmp_path, rows, "--overwrite"))
    assert "learn with --normalize_states" in out and "constant" not in out
    rows = [f"a,{i},{i},{i % 2},{i},0" for i in range(6)]
    assert "normalize" not in done(csv(tmp_path, rows, "--overwrite"))


def test_statistics_block_by_block_are_those_of_all_rows() -> None:
    from datasets.inference import Columns

    rows = np.random.default_rng(0).normal([0, 1e6], [1, 3], (1000, 2))
    found = Columns()
    for block in np.split(rows, [1, 300, 301]):
        found.add("state", block)
    np.testing.assert_allclose(found.std, rows.std(0), rtol=1e-9)
    np.testing.assert_allclose(found.mean, rows.mean(0))
    np.testing.assert_array_equal([found.low, found.high], [rows.min(0), rows.max(0)])


@pytest.mark.parametrize(
    ("rows", "argv", "words"),
    [
        (DISCRETE, ["--num_actions", "2"], ["none of the data's, 0 to 1", "line 3"]),
        (DISCRETE, ["--num_actions", "3", "--action_low", "0"], ["give the one or the others"]),
        (DISCRETE, ["--num_actions", "2000"], ["--num_actions 2,000 is more"]),
        (CONTINUOUS, ["--action_high", "0.5"], ["beyond the data's bounds", "--clip_actions"]),
        (CONTINUOUS, ["--action_low", "-2", "-2"], ["--action_low has 2 numbers and an action 1"]),
        (CONTINUOUS, ["--action_low", "3"], ["leaves no choice", "--action_low and --action_high"]),
        (["a,1,5,0,0,0", "a,1,6,0,0,0"], [], ["every action is 0", "--num_actions"]),
        (["a,1,5,0.5,0,0", "a,1,6,0.5,0,0"], [], ["leaves no choice"]),
        (["a,1,mild,0,0,0"], [], ["line 2, state is 'mild', no number", "categories"]),
        (["a,1,,0,0,0"], [], ["line 2, state is '', no number", "gaps"]),
        (["a,1,5,0,0,maybe"], [], ["'maybe'", "write 1 or 0"]),
        (["a,1,5,0,0,0", "b,1,5,1,0,0", "a,1,5,0,0,0"], [], ["comes back", "sort the rows"]),
        (["a,nan,5,0,0,0", "a,1,nan,1,0,0"], [], ["no row that is all numbers"]),
        (["a,1,5,0,0,0", "a,nan,5,1,0,0", "a,1,5,0,0,1"], [], ["NaN", "--drop_bad_rows"]),
        (["a,1,5,0,0,0", "b,2,6,1,0,0"], [], ["gives no transition"]),
        ([], [], ["no row"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_a_line(
    tmp_path: Path, rows: list[str], argv: list[str], words: list[str]
) -> None:
    refused(tmp_path, csv(tmp_path, rows, *argv), *words)


def test_what_describes_data_is_refused_where_an_environment_does(tmp_path: Path) -> None:
    outcome = csv(tmp_path, DISCRETE, "--env", "Pendulum-v1", "--num_actions", "3")
    refused(tmp_path, outcome, "Pendulum-v1 has its own")


def test_npz_and_d4rl_need_no_environment_either(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "state": np.arange(8.0).reshape(4, 2), "action": np.array([[0.5], [-1], [1], [0]]),
        "reward": np.arange(4), "terminated": [0, 0, 0, 1],
    }  # fmt: skip
    np.savez(tmp_path / "log.npz", **arrays)
    done(imported(tmp_path, "--npz", tmp_path / "log.npz"))
    assert task(tmp_path)["state_dim"] == 2 and len(columns(tmp_path)["state"]) == 4
    path = write_hdf5(tmp_path / "log.hdf5", pendulum_rows([0, 1, 2, 3], timeouts=[0, 1, 0, 1]))
    done(imported(tmp_path, "--d4rl", path, "--overwrite"))
    assert task(tmp_path)["state_dim"] == 3
    assert columns(tmp_path)["episode"][:, 0].tolist() == [0, 1]


def test_a_minari_set_that_names_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gymnasium import spaces

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episodes = [
        EpisodeBuffer(
            observations=np.arange(8.0).reshape(4, 2) + 10 * i,
            actions=np.array([0, 1, 2]),
            rewards=np.ones(3),
            terminations=np.array([False, False, i == 0]),
            truncations=np.array([False, False, i == 1]),
        )
        for i in range(2)
    ]
    with silence(), pytest.warns(UserWarning):
        minari.create_dataset_from_buffers(
            "clinic/log-v0", episodes,
            observation_space=spaces.Box(-np.inf, np.inf, (2,)), action_space=spaces.Discrete(3),
        )  # fmt: skip
    out = done(imported(tmp_path, "--minari", "clinic/log-v0"))
    assert task(tmp_path)["num_actions"] == 3 and "3 discrete actions" in out
    assert columns(tmp_path)["episode"][:, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert columns(tmp_path)["next_state"][2].tolist() == [6, 7]
