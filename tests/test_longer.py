"""A finished run goes on to more steps, and ends as one that was asked for them at once."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, run_main, snapshot, without_digests
from kills import differing, killed_and_finished, reference
from test_endless import stopped_within
from test_resume import CARTPOLE, CONTINUOUS, DISCRETE, SMALL, TOY, done, made, run, stopping  # noqa: F401

from common.data.batch_files import column_path

TRAIN = ["--train_behavioral", "--start_timesteps", "40", "--eval_freq", "55", "--save_buffer"]
RING = ["--buffer_size", "90"]
SLOW = pytest.mark.slow
LEARN = ["--eval_freq", "13", "--buffer_name", "Made"]
TRUE = ["--true_value", "--discount", "0.5"]
# Lengths: at an evaluation, within a chunk of iterations, at the end of one (31 = 26 + 5), before
# the first evaluation; in stage 1 within an episode, and at the end of one.
CASES: dict[str, tuple[Any, list[str], list[int]]] = {
    "train": (CONTINUOUS, [*TOY, *TRAIN, *RING], [60, 93, 165]),
    "train, a ring that grows": (CONTINUOUS, [*TOY, *TRAIN], [55, 120]),
    "learn": (CONTINUOUS, [*TOY, *LEARN, "--algorithm", "DDPG", *TRUE], [7, 26, 33]),
    "learn on": (CONTINUOUS, [*TOY, *LEARN, "--algorithm", "TD3_BC"], [31, 39, 40]),
    "discrete train": (DISCRETE, [*CARTPOLE, *TRAIN, *RING], [60, 165, 200]),
    "discrete learn": (DISCRETE, [*CARTPOLE, *LEARN], [31, 33, 52]),
}


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.run.offline.CHUNK", 5)


def steps(number: int) -> list[str]:
    return ["--max_timesteps", str(number)]


def both(tmp_path: Path, case: str, made: Path) -> list[Path]:  # noqa: F811
    folders = [tmp_path / "at once", tmp_path / "longer"]
    for folder in folders:
        if "learn" in case:
            shutil.copytree(made, folder)
    return folders


@pytest.mark.parametrize("case", CASES)
def test_a_finished_run_goes_on_and_ends_as_one_asked_for_more_at_once(
    case: str,
    made: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    main, argv, lengths = CASES[case]
    folders = both(tmp_path, case, made)
    done(run(main, folders[0], *argv, *steps(lengths[-1])))
    for number in lengths:
        out = done(run(main, folders[1], *argv, *steps(number))).out
        assert ("goes on where it ended" in out) == (number != lengths[0])
    assert differing(*folders) == []


@pytest.mark.parametrize("name", ["learn on", "discrete train"])
@pytest.mark.parametrize("kind", ["the best but the last evaluation", "no evaluation but the last"])
def test_the_best_agent_is_that_of_an_evaluation_that_both_have(
    name: str,
    kind: str,
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main, argv, _ = CASES[name]
    folders, freq = both(tmp_path, name, made), 55 if "train" in name else 13
    lengths, scores = [freq + 5, 2 * freq], [5, 1, 5, 9, 1]
    if kind.startswith("no"):
        lengths, scores = [freq - 8, freq - 4], [1, 1, 1]
    said = iter(scores)
    monkeypatch.setattr("common.environment.rollout.evaluate", lambda *_: [float(next(said))])
    done(run(main, folders[0], *argv, *steps(lengths[-1])))
    for number in lengths:
        done(run(main, folders[1], *argv, *steps(number)))
    assert next(said, None) is None
    assert differing(*folders) == []


@pytest.mark.parametrize(
    "case",
    [
        "discrete learn",
        *(pytest.param(n, marks=SLOW) for n in ("train", "learn", "discrete train")),
    ],
)
def test_so_it_does_when_it_is_killed_on_the_way(
    case: str,
    made: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    main, argv, [first, *_, last] = CASES[case]
    argv = [*SMALL, *argv, "--checkpoint_minutes", "0"]
    folders = both(tmp_path, case, made)
    for folder in folders:
        done(run_main(main, *argv, *steps(first), "--output_dir", str(folder)))
    measured = reference(main, [*argv, *steps(last)], folders[0])
    generator = np.random.default_rng(3)
    killed_and_finished(main, [*argv, *steps(last)], folders[1], measured, 3, generator)
    shutil.rmtree(folders[0])
    if "learn" in case:
        shutil.copytree(made, folders[0])
    done(run_main(main, *argv, *steps(last), "--output_dir", str(folders[0])))
    assert differing(*folders) == []


@pytest.mark.parametrize("at", [2, pytest.param(3, marks=SLOW)])
def test_a_stop_near_an_end_that_a_longer_run_does_not_have(
    at: int,
    made: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    main, argv, _ = CASES["learn on"]
    folders = both(tmp_path, "learn", made)
    done(run(main, folders[0], *argv, *steps(52)))
    with monkeypatch.context() as patched:
        stopping(patched, at)
        assert run(main, folders[1], *argv, *steps(9)).status == 143
    for number in [9, 52]:
        done(run(main, folders[1], *argv, *steps(number)))
    assert differing(*folders) == []


def test_the_concurrent_task_goes_on_as_far_as_its_batch(tmp_path: Path) -> None:
    folders = [tmp_path / "at once", tmp_path / "longer"]
    learn = [*TOY, "--eval_freq", "13", "--concurrent", "--algorithm", "DDPG"]
    for folder in folders:
        done(run(CONTINUOUS, folder, *TOY, *TRAIN, *steps(90)))
    done(run(CONTINUOUS, folders[0], *learn, *steps(1000)))
    for number in [20, 1000]:
        done(run(CONTINUOUS, folders[1], *learn, *steps(number)))
    assert differing(*folders) == []
    outcome = run(CONTINUOUS, folders[1], *learn, *steps(1001))
    assert outcome.status == 1 and "no more than the 50 iterations done" in outcome.err


@SLOW
def test_mujoco_and_atari_go_on_exactly(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("common.environment.simulator.KEPT", 20)
    monkeypatch.setattr("common.environment.doors.ATARI_STEPS", 25)
    hopper, pong = ["--env", "Hopper-v4"], ["--env", "PongNoFrameskip-v0", "--buffer_size", "30"]
    for main, argv in [(CONTINUOUS, [*hopper, *RING]), (DISCRETE, pong)]:
        folders = [tmp_path / argv[1] / name for name in ("at once", "longer")]
        done(run(main, folders[0], *argv, *TRAIN, *steps(110)))
        for number in [45, 80, 110]:
            done(run(main, folders[1], *argv, *TRAIN, *steps(number)))
        assert differing(*folders) == []
    assert len(np.load(next(tmp_path.rglob("at once/buffers/*_simulator.npy")))) == 20


# --- what is kept, and what is refused


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A folder in which ARGV has learned for 26 iterations."""
    folder = shutil.copytree(made, tmp_path / "out")
    done(run(CONTINUOUS, folder, *ARGV, *steps(26)))
    return folder


ARGV = [*TOY, *LEARN, "--algorithm", "DDPG"]
END = "models/DDPG_Made_ToyReach-v0_0_end.pt"


def refused(folder: Path, *words: str, argv: list[str]) -> None:
    before = snapshot(folder)
    outcome: Outcome = run(CONTINUOUS, folder, *argv)
    assert outcome.status == 1 and outcome.err.count("\n") == 1
    for word in words:
        assert word in outcome.err, outcome.err
    assert snapshot(folder) == before


def test_some_kilobytes_are_kept_at_an_evaluation_and_the_agent_between_two(finished: Path) -> None:
    agent = (finished / END.replace("_end", "")).stat().st_size
    assert (finished / END).stat().st_size < 40_000 < agent
    done(run(CONTINUOUS, finished, *ARGV, *steps(28)))
    assert agent < (finished / END).stat().st_size < 2 * agent + 60_000


def test_stage_1_keeps_its_replay_buffer_in_its_batch_or_nowhere(tmp_path: Path) -> None:
    unsaved = [word for word in TRAIN if word != "--save_buffer"]
    done(run(CONTINUOUS, tmp_path, *TOY, *TRAIN, *steps(55)))
    assert (tmp_path / "models" / "behavioral_ToyReach-v0_0_end.pt").stat().st_size < 40_000
    done(run(CONTINUOUS, tmp_path, *TOY, *unsaved, *steps(60), "--overwrite"))
    assert not list((tmp_path / "models").glob("*_end.pt"))
    refused(
        tmp_path,
        "exists: --overwrite",
        "only where --save_buffer",
        argv=[*TOY, *unsaved, *steps(70)],
    )


def test_as_many_steps_or_fewer_are_refused_and_more_are_named(finished: Path) -> None:
    for number in [26, 20]:
        refused(
            finished, "exists", "a larger --max_timesteps than 26", argv=[*ARGV, *steps(number)]
        )


def test_other_arguments_another_batch_and_other_files_are_refused(finished: Path) -> None:
    more = [*ARGV, *steps(39)]
    refused(finished, "finished run with other", "discount 0.99", argv=[*more, "--discount", "0.5"])
    batch = without_digests(finished / "buffers" / "Made_ToyReach-v0_0")
    batch = column_path(batch, "reward")
    for path in [batch, finished / END.replace("_end", ""), finished / END]:
        content = path.read_bytes()
        if path == batch:
            np.save(path, np.load(path) + 1)
        else:
            path.write_bytes(content[:-50] + bytes(50))
        refused(finished, "--overwrite starts the run anew", argv=more)
        path.write_bytes(content)
    done(run(CONTINUOUS, finished, *more))


def test_another_batch_of_stage_1_is_refused(tmp_path: Path) -> None:
    argv = [*TOY, *TRAIN]
    done(run(CONTINUOUS, tmp_path, *argv, *steps(60)))
    path = without_digests(tmp_path / "buffers" / "Robust_ToyReach-v0_0")
    path = column_path(path, "reward")
    np.save(path, np.load(path) + 1)
    refused(tmp_path, "a batch that another run has made since", argv=[*argv, *steps(70)])


def test_overwrite_begins_anew_with_fewer_or_more(finished: Path, tmp_path: Path) -> None:
    for number in [39, 13]:
        out = done(run(CONTINUOUS, finished, *ARGV, *steps(number), "--overwrite")).out
        assert "goes on" not in out
    assert not (finished / "checkpoints").exists()


@SLOW
def test_a_stop_within_an_episode_and_then_more_steps(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("common.resume.checkpoint.PATIENCE", 0)
    main, argv, lengths = CASES["train"]
    folders = [tmp_path / "at once", tmp_path / "longer"]
    done(run(main, folders[0], *argv, *steps(lengths[-1])))
    done(run(main, folders[1], *argv, *steps(lengths[1])))
    stopped_within(monkeypatch, main, folders[1], [*argv, *steps(lengths[-1])], 4, 9)
    assert differing(*folders) == []
