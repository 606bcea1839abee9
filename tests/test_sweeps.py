"""reproduce.py: a preset's commands, what is skipped, one run after another, what is told."""

import argparse
import io
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, load_variant
from sweep_stages import pretend, stub

from common.errors import InputError
from common.files import write_json
from sweeps import command_line, on_ray, serial
from sweeps.cost import Speeds, disk, seconds
from sweeps.finished import described, finished
from sweeps.graph import Choice, Graph
from sweeps.presets import PRESETS, Settings, choices, graph
from sweeps.process import Killed, run_stage
from sweeps.progress import Board, clock
from sweeps.stage import DONE, FAILED, GENERATE, LEARN, NOT_RUN, TRAIN, Outcome, Stage


def made(preset: str, tmp_path: Path, **other: Any) -> Graph:
    """The graph of a preset on one environment, seed 0, all learners."""
    usual = PRESETS[preset]
    settings = Settings(usual.envs[:1], (0,), usual.algorithms or choices(usual), tmp_path)
    return graph(usual, replace(settings, **other))


def commands(some: Graph) -> list[str]:
    """Without the folder, which a test does not care for."""
    return [re.sub(r" --(output|buffer)_dir \S+", "", s.command) for s in some.stages.values()]


# --- what a preset is


@pytest.mark.parametrize("preset", PRESETS)
def test_every_command_of_a_preset_is_one_that_main_py_understands(
    preset: str, tmp_path: Path
) -> None:
    for stage in made(preset, tmp_path, scale=0.01).stages.values():
        words = shlex.split(stage.command)
        assert words[0] == "python" and (ROOT / words[1]).is_file()
        load_variant(stage.variant).main.parse_args(words[2:])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_runs_every_learner_that_its_variants_parser_offers(
    preset: str, tmp_path: Path
) -> None:
    variant = PRESETS[preset].variant
    offered = list(load_variant(variant).main.ALGORITHMS)
    assert list(choices(PRESETS[preset])) == offered
    learning = [s for s in made(preset, tmp_path).stages.values() if s.kind == LEARN]
    expected = PRESETS[preset].algorithms or offered
    assert {s.label.rsplit("_", 1)[0] for s in learning} == set(expected)


def test_the_four_batches_are_those_of_the_readme(tmp_path: Path) -> None:
    some = made("icml2019", tmp_path, true_value=False)
    of = {s.label: c for s, c in zip(some.stages.values(), commands(some), strict=True)}
    env, main = "--env Hopper-v4 --seed 0", "python continuous_BCQ/main.py"
    quiet = "--gaussian_std 0 --rand_action_p 0 --buffer_name Imitation --threads 1"
    assert of["buffer_performance_Imitation"] == f"{main} --generate_buffer {env} {quiet}"
    robust = f"{main} --generate_buffer {env} --max_timesteps 100000 --threads 1"
    assert of["buffer_performance_Robust"] == robust
    assert of["BCQ_Robust"] == f"{main} {env} --threads 1"
    concurrent = f"{main} {env} --algorithm DDPG --buffer_name Concurrent --concurrent --threads 1"
    assert of["DDPG_Concurrent"] == concurrent
    behaviours = [c for c in commands(some) if "--train_behavioral" in c]
    assert [re.findall(r"gaussian_std (\S+)", c) for c in behaviours] == [["0.5"], ["0.1"]]


def test_a_scale_shrinks_every_step_count_alike(tmp_path: Path) -> None:
    whole, small = (made("imperfect", tmp_path, scale=scale) for scale in (1, 0.01))
    counts: dict[str, Any] = {}
    for some in (whole, small):
        for stage in some.stages.values():
            args = load_variant("continuous_BCQ").main.parse_args(list(stage.words))
            counts.setdefault(stage.label, []).append(
                [args.max_timesteps, *([args.eval_freq] if stage.kind != GENERATE else [])]
                + ([args.start_timesteps] if stage.kind == TRAIN else [])
                + ([args.warm_up] if "BEAR" in stage.label else [])
            )  # fmt: skip
    assert counts["behavioral"] == [[1_000_000, 5000, 25_000], [10_000, 50, 250]]
    assert counts["buffer_performance_Robust"] == [[100_000], [1000]]
    warm_up = load_variant("continuous_BCQ").main.parse_args([]).warm_up
    bear = [[1_000_000, 5000, warm_up], [10_000, 50, round(0.01 * warm_up)]]
    assert counts["BEAR_Robust"] == bear


def test_runs_that_differ_in_a_hyper_parameter_have_folders_of_their_own_and_one_batch(
    tmp_path: Path,
) -> None:
    stages = list(made("tradeoff", tmp_path).stages.values())
    learning = [stage for stage in stages if stage.kind == LEARN]
    assert len({stage.root for stage in learning}) == len(learning) == 12
    assert tmp_path / "sweep" / "phi0.05_n10" in {stage.root for stage in learning}
    for stage in learning:
        assert stage.words[stage.words.index("--buffer_dir") + 1] == str(tmp_path)
    assert len(stages) == 14  # one behaviour and one batch for all


def test_a_stage_comes_after_what_it_needs_and_one_name_is_one_run(tmp_path: Path) -> None:
    some = made("icml2019", tmp_path)
    names = list(some.stages)
    for place, stage in enumerate(some.stages.values()):
        assert all(names.index(need) < place for need in stage.needs)
    learner = next(s for s in some.stages.values() if s.kind == LEARN)
    with pytest.raises(InputError, match="two different runs would be"):
        some.add([replace(learner, words=("--phi", "0.1"))])
    with pytest.raises(InputError, match="needs nobody"):
        some.add([replace(learner, label="X", needs=("nobody",))])


# --- the best of several policies


def chosen(tmp_path: Path, returns: dict[int, Any], failed: int | None = None) -> Graph:
    """`imitation` with three policies for two batches, when these evaluations are there."""
    some = made("imitation", tmp_path, seeds=(0, 1), behavioral_seeds=3, algorithms=("BCQ",))
    outcomes = {}
    for stage in some.stages.values():
        stage.results.parent.mkdir(parents=True, exist_ok=True)
        np.save(stage.results, returns[stage.seed])
        status = FAILED if stage.seed == failed else DONE
        outcomes[stage.name] = Outcome(stage.name, status)
    assert len(some.stages) == 3 and len(some.whole().stages) == 7
    some.decide(outcomes)
    return some


def test_batches_are_made_of_the_best_policies_and_the_record_says_which(tmp_path: Path) -> None:
    # The last ten evaluations count: policy 0 was good once, long ago.
    some = chosen(tmp_path, {0: [99] + 10 * [1], 1: 11 * [2], 2: 11 * [3]})
    batches = [c for c in commands(some) if "--generate_buffer" in c]
    assert ["--behavioral_seed 2" in batches[0], "--seed 0" in batches[0]] == [True, True]
    assert "--behavioral_seed" not in batches[1] and "--seed 1" in batches[1]  # its own policy
    kept = (tmp_path / "results" / "kept_last_behavioral_Hopper-v4.json").read_text()
    assert re.search(r'"kept": \[\s*2,\s*1\s*\]', kept)


def test_a_policy_that_failed_is_not_kept(tmp_path: Path) -> None:
    some = chosen(tmp_path, {0: [1], 1: [2], 2: [3]}, failed=2)
    batches = [c for c in commands(some) if "--generate_buffer" in c]
    assert "--behavioral_seed 1" in batches[0] and "--behavioral_seed 0" in batches[1]


# --- what is there already


@pytest.fixture
def learner(tmp_path: Path) -> Stage:
    """A BCQ run of `imperfect`."""
    return next(s for s in made("imperfect", tmp_path).stages.values() if s.label == "BCQ_Robust")


def test_a_finished_run_with_the_same_arguments_is_skipped_without_starting_it(
    learner: Stage,
) -> None:
    assert finished(learner) is None
    pretend(learner, finished=False)
    assert finished(learner) is None  # main.py goes on with it
    pretend(learner, threads=7, device="cuda", true_value=False)  # what changes nothing learned
    found = finished(learner)
    assert found and found.status == DONE


@pytest.mark.parametrize(
    "other", [{"phi": 0.1}, {"max_timesteps": 5}, {"batch_size": 7}, {"env": "Walker2d-v4"}]
)
def test_a_finished_run_with_other_arguments_is_neither_used_nor_replaced(
    learner: Stage, other: dict[str, Any]
) -> None:
    pretend(learner, **other)
    found = finished(learner)
    assert found and found.status == FAILED
    assert (next(iter(other)) if "max_timesteps" not in other else "of 5 steps, not 1") in found.why


def test_a_longer_finished_run_says_what_to_ask_for_and_a_shorter_one_goes_on(
    learner: Stage,
) -> None:
    for length in (2_000_000, 500_000):
        pretend(learner, max_timesteps=length)
        found = finished(learner)
        assert found and f"{length:,} steps, not 1,000,000: ask for {length:,}" in found.why
    end = learner.folders.end(learner.label)
    end.parent.mkdir(exist_ok=True)
    end.touch()
    assert finished(learner) is None  # main.py goes on with it
    pretend(learner, max_timesteps=2_000_000)
    assert finished(learner)


def test_a_hands_behaviour_without_a_batch_is_used_where_nothing_reads_the_batch(
    tmp_path: Path,
) -> None:
    for preset, status in (("imitation", DONE), ("concurrent", FAILED), ("icml2019", FAILED)):
        [stage] = [
            s
            for s in made(preset, tmp_path).stages.values()
            if s.kind == TRAIN and s.root == tmp_path
        ]
        pretend(stage, save_buffer=False, buffer_name="Robust")
        found = finished(stage)
        assert found and found.status == status, preset


def test_a_concurrent_learner_that_made_all_its_behaviours_updates_is_finished(
    tmp_path: Path,
) -> None:
    [stage] = [
        s for s in made("concurrent", tmp_path).stages.values() if s.label == "BCQ_Concurrent"
    ]
    pretend(stage, max_timesteps=975_000)
    text = stage.record.read_text()
    batch = '"batch": {"transitions": 1000000, "arguments": {"start_timesteps": 25000}}'
    stage.record.write_text(text.replace('"batch": {}', batch))
    found = finished(stage)
    assert found and found.status == DONE, found
    stage.record.write_text(text)  # of nobody knows how many
    assert (found := finished(stage)) and found.status == FAILED


@pytest.mark.parametrize("x_label", [{}, {"x_label": "iterations", "x": [1], "returns": [[2.0]]}])
def test_a_record_is_read_as_far_as_its_evaluations(x_label: Any, tmp_path: Path) -> None:
    record = {"arguments": {"phi": 1}, "finished": True, "seconds": 3.5}
    write_json(tmp_path / "record.json", record | x_label)
    assert described(tmp_path / "record.json") == record
    (tmp_path / "record.json").write_text('{"finished": tru,\n "x_label": 1}')
    with pytest.raises(InputError, match="is damaged"):
        described(tmp_path / "record.json")


def test_five_thousand_finished_runs_are_skipped_in_ten_seconds(learner: Stage) -> None:
    pretend(learner)
    finished(learner)  # the parser is made
    began = time.process_time()
    for _ in range(100):
        finished(learner)
    assert (time.process_time() - began) * 50 < 10


# --- running one after another


def play(*stages: Stage, screen: io.StringIO | None = None) -> Board:
    """Run stages to the end."""
    some = Graph()
    some.add(stages)
    board = Board(lambda _: 1.0, 1, screen or io.StringIO())
    board.expect(some.stages.values())
    serial.run(some, board, 1)
    return board


def test_a_failing_run_stops_nobody_but_those_that_need_it(tmp_path: Path) -> None:
    good, bad = stub(tmp_path, "good"), stub(tmp_path, "bad", "0", "fail")
    after, last = stub(tmp_path, "after", needs=(bad,)), stub(tmp_path, "last", needs=(good,))
    screen = io.StringIO()
    board = play(bad, after, good, last, screen=screen)
    status = {name: outcome.status for name, outcome in board.outcomes.items()}
    assert status == {good.name: DONE, bad.name: FAILED, after.name: NOT_RUN, last.name: DONE}
    assert not after.log.exists()  # it was not started
    assert board.close() == 1
    told = screen.getvalue()
    assert "not run: after_Toy-v0_0: needs bad_Toy-v0_0, which is not done" in told
    assert "| first line of the end" in told and "| error: the last line" in told
    assert "2 done" in told and "1 failed" in told and "1 not run" in told


def test_all_done_is_exit_status_0_and_every_run_has_a_log(tmp_path: Path) -> None:
    stage = stub(tmp_path, "one")
    assert play(stage).close() == 0
    assert "begins" in stage.log.read_text() and str(stage.results) in stage.log.read_text()


def test_a_choice_is_made_when_its_candidates_are_trained(tmp_path: Path) -> None:
    candidates = (stub(tmp_path, "a"), stub(tmp_path, "b"))
    later = stub(tmp_path, "later", needs=candidates[:1])
    some = Graph()
    some.add(candidates)
    some.choices.append(Choice(candidates, 1, False, lambda kept: [later]))
    board = Board(lambda _: 1.0, 1, io.StringIO())
    board.expect(some.stages.values())
    serial.run(some, board, 1)
    assert board.outcomes[later.name].status == DONE and board.close() == 0


def test_a_run_that_a_signal_ended_is_told_from_one_that_failed(tmp_path: Path) -> None:
    stage = stub(tmp_path, "long", "30")

    def kill() -> None:
        found = subprocess.run(
            ["pgrep", "-f", str(stage.results)], capture_output=True, text=True, check=False
        )
        for process in found.stdout.split():
            subprocess.run(["kill", "-KILL", process], check=False)

    with pytest.raises(Killed, match="signal 9"):
        run_stage(stage, tick=kill)


def test_a_run_does_not_outlive_the_one_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from pathlib import Path\n"
        "from sweep_stages import stub\nfrom sweeps.process import run_stage\n"
        "run_stage(stub(Path(sys.argv[3]), 'long', '60'))\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT), str(ROOT / "tests"), str(tmp_path)]
    )
    log = stub(tmp_path, "long").log

    def runs() -> bool:
        ran = subprocess.run(["pgrep", "-f", f"{tmp_path}/stub.py"], capture_output=True)
        return ran.returncode == 0

    deadline = time.monotonic() + 60
    while not (log.exists() and "begins" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert runs()
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    while runs() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs()


# --- what is told


def test_the_time_left_goes_by_what_has_been_done(tmp_path: Path, monkeypatch: Any) -> None:
    stages = [stub(tmp_path, label) for label in "abc"]
    board = Board(lambda stage: {"a": 10, "b": 30, "c": 20}[stage.label], 1, io.StringIO())
    board.expect(stages)
    assert board.left() is None
    begin = board._started
    board.end(Outcome(stages[0].name, DONE, 5.0))
    monkeypatch.setattr("sweeps.progress.time.monotonic", lambda: begin + 5)
    assert board.left() == pytest.approx(25)  # 50 are ahead, 10 took 5 s
    board.start(stages[1])
    monkeypatch.setattr("sweeps.progress.share_done", lambda _: 0.5)
    assert board.left() == pytest.approx(35 * 5 / 25)
    assert [clock(5), clock(3723), clock(90_061)] == ["0:05", "1:02:03", "1 d 01:01"]


def test_costs_are_steps_updates_evaluations_and_true_values_at_the_measured_speeds(
    tmp_path: Path,
) -> None:
    speeds = Speeds(tmp_path / "none.json")
    learner = {"update": 0.01, "act": 0.001, "evaluate": 0.002, "values": 0.004, "bytes": 1000}
    speeds.known["continuous_BCQ Hopper-v4"] = {
        "start": 3.0, "step": 1e-4, "row": 108, "episode": 1000,
        "learners": {"BCQ": learner, "DDPG": learner},
    }  # fmt: skip
    of = {s.label: s for s in made("imperfect", tmp_path).stages.values()}
    evaluations = 200 * 1000 * (10 * 1e-4 + 0.002)
    true = 200 * 688 * (100 * 1e-4 + 0.004)
    assert seconds(of["BCQ_Robust"], speeds) == pytest.approx(3 + 1e6 * 0.01 + evaluations + true)
    stage_1 = 3 + 1e6 * (1e-4 + 0.001) + 975_000 * 0.01 + evaluations
    assert seconds(of["behavioral"], speeds) == pytest.approx(stage_1)
    stage_2 = 3 + 1e5 * (1e-4 + 0.001) + evaluations / 200
    assert seconds(of["buffer_performance_Robust"], speeds) == pytest.approx(stage_2)
    assert disk(of["buffer_performance_Robust"], speeds) == pytest.approx(108e5, rel=0.01)


def test_a_dry_run_refuses_what_the_sweep_would(
    learner: Stage, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(Speeds, "measure", lambda self, stages: None)
    monkeypatch.setattr(command_line, "told", lambda stages, ahead, *_: f"{len(ahead)} ahead")
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, [f"# finished: {learner.command}", "", "0 ahead"]),
        ({"phi": 0.1}, ["# cannot run: ", learner.command, "", "1 ahead"]),
    ]
    for changes, lines in cases:
        pretend(learner, **changes)
        command_line.dry_run([learner], Speeds(tmp_path / "speeds.json"), 1, [])
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) == len(lines) and all(map(str.startswith, shown, lines))


# --- the command line


def run_it(monkeypatch: Any, *words: str) -> None:
    """reproduce.py with these words, in this process."""
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
    command_line.main()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["imperfect", "--algorithms", "SAC"], "--algorithms SAC: continuous_BCQ has BCQ"),
        (["imperfect", "--behavioral_seeds", "2"], "fewer policies than the 5 seeds"),
        (["--report", "/no/such/folder"], "/no/such/folder does not exist"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], error: str, monkeypatch: Any) -> None:
    with pytest.raises(InputError, match=error):
        run_it(monkeypatch, *words)


@pytest.mark.parametrize(
    "words", [[], ["imperfect", "--report"], ["imperfect", "--seeds", "4-0"], ["imperfct"]]
)
def test_what_makes_no_sense_is_argparses_error(words: list[str], monkeypatch: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_it(monkeypatch, *words)


def test_seeds_are_single_ones_and_ranges(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "quick", "--seeds", "0-2", "7"])
    assert command_line.settings(command_line.parse_args()).seeds == (0, 1, 2, 7)


def test_old_ids_are_the_present_ones_and_flags_after_two_dashes_go_to_main_py(
    monkeypatch: Any,
) -> None:
    words = ["imperfect", "--envs", "Hopper-v2", "--", "--checkpoint_minutes", "1"]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
    settings = command_line.settings(command_line.parse_args())
    assert settings.envs == ("Hopper-v4",)
    some = graph(PRESETS["imperfect"], replace(settings, seeds=(0,)))
    assert all(c.endswith("--checkpoint_minutes 1") for c in commands(some))


def test_without_ray_one_run_after_another_still_works_and_says_how_to_get_more(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="need Ray: pip install"):
        run_it(monkeypatch, "quick", "--workers", "2", "--output_dir", str(tmp_path))
    for stage in made("quick", tmp_path).stages.values():
        pretend(stage)
    run_it(monkeypatch, "quick", "--workers", "1", "--output_dir", str(tmp_path))
    said = capsys.readouterr().out
    assert on_ray.INSTALL in said and "4 done" in said and "4 were finished before" in said


@pytest.mark.parametrize("text", ["-1", "3-", "-", ""])
def test_seeds_that_lack_an_end_are_named_whole(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is neither a seed nor two"):
        command_line.seeds(text)
