"""The batches of the ICML paper from the command line: who made them, what is kept, who learns."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, Outcome, done, load_variant, run_main, snapshot
from test_cli import ALGORITHMS, TOY, made, model, toy

from common.errors import InputError
from common.files import Folders, write_json

__all__ = ["made"]  # a fixture of test_cli, used here too

main = load_variant("continuous_BCQ").main
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the stages' files that a test may change."""
    return shutil.copytree(made, tmp_path / "out")


def batch(folder: Path, name: str, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The columns of a batch, and its record."""
    prefix = folder / "buffers" / f"{name}_ToyReach-v0_{seed}"
    columns = {c: np.load(f"{prefix}_{c}.npy") for c in ("state", "action", "reward")}
    return columns, json.loads(Path(f"{prefix}.json").read_text())


def refused(folder: Path, outcome: Outcome, *words: str) -> None:
    """The run ended with one line that holds these words."""
    assert outcome.status == 1 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("error: ") and "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


# --- who makes a batch


def test_an_imitation_batch_holds_exactly_the_policys_own_actions(folder: Path) -> None:
    no_noise = ["--gaussian_std", "0", "--rand_action_p", "0", "--buffer_name", "Imitation"]
    done(toy(folder, "generate", *no_noise))
    columns, _ = batch(folder, "Imitation")
    agent = load_variant("continuous_BCQ").DDPG.DDPG(2, 2, 1.0, "cpu")
    agent.load(folder / "models" / "behavioral_ToyReach-v0_0.pt")
    expected = np.stack([agent.select_action(state) for state in columns["state"]])
    assert np.array_equal(columns["action"], expected)


def test_stage_1_keeps_the_policy_of_its_best_evaluation(tmp_path: Path) -> None:
    done(toy(tmp_path, "train", "--max_timesteps", "120", "--eval_freq", "20"))
    returns = np.load(tmp_path / "results" / "behavioral_ToyReach-v0_0.npy")
    place = int(returns.argmax())
    until = tmp_path / "until"
    done(toy(until, "train", "--max_timesteps", str(20 * (place + 1)), "--eval_freq", "20"))

    def weights(path: Path) -> dict[str, torch.Tensor]:
        return torch.load(path, weights_only=True)["actor"]

    best = weights(tmp_path / "models" / "behavioral_ToyReach-v0_0_best.pt")
    then = weights(until / "models" / "behavioral_ToyReach-v0_0.pt")
    assert all(torch.equal(best[key], then[key]) for key in best)


def test_the_best_policy_is_the_one_asked_for(folder: Path) -> None:
    agent = load_variant("continuous_BCQ").DDPG.DDPG(2, 2, 1.0, "cpu")
    agent.save(folder / "models" / "behavioral_ToyReach-v0_0_best.pt")
    no_noise = ["--gaussian_std", "0", "--rand_action_p", "0", "--buffer_name", "Best"]
    done(toy(folder, "generate", *no_noise, "--behavioral_policy", "best"))
    columns, made_by = batch(folder, "Best")
    assert np.array_equal(columns["action"], [agent.select_action(s) for s in columns["state"]])
    assert made_by["policy"] == "behavioral_ToyReach-v0_0_best"


def test_a_batch_has_a_seed_of_its_own(folder: Path) -> None:
    for seed in ["1", "2"]:
        done(toy(folder, "generate", "--behavioral_seed", "0", "--seed", seed))
    (one, made_by), (two, _) = batch(folder, "Robust", 1), batch(folder, "Robust", 2)
    assert (made_by["seed"], made_by["policy"]) == (1, "behavioral_ToyReach-v0_0")
    assert not np.array_equal(one["action"], two["action"])
    done(toy(folder, "learn", "--seed", "2"))


def test_a_missing_policy_names_the_command_that_makes_it(folder: Path) -> None:
    outcome = toy(folder, "generate", "--behavioral_seed", "7", "--seed", "3")
    refused(folder, outcome, "behavioral_ToyReach-v0_7.pt does not exist", "--seed 7")
    refused(folder, toy(folder, "train", "--behavioral_seed", "7"), "stage 1 takes its --seed")


# --- what is kept


def test_a_smaller_buffer_keeps_the_newest_and_says_what_it_dropped(tmp_path: Path) -> None:
    done(toy(tmp_path / "all", "train", "--save_buffer", "--buffer_name", "Final"))
    # As many as are kept while learning begins, so that both learn the same until then.
    more = ["--buffer_size", "35", "--start_timesteps", "60"]
    done(toy(tmp_path / "all", "train", "--save_buffer", "--overwrite", *more[2:]))
    done(toy(tmp_path / "part", "train", "--save_buffer", *more))
    whole, made_by = batch(tmp_path / "all", "Robust")
    part, part_made_by = batch(tmp_path / "part", "Robust")
    for column in whole:
        assert np.array_equal(part[column], whole[column][-35:])
    assert (made_by["transitions"], made_by["dropped"], made_by["episodes"]) == (60, 0, 6)
    # 60 steps are six episodes of ten; of the last 35 three lie in the batch as a whole.
    assert (part_made_by["transitions"], part_made_by["dropped"]) == (35, 25)
    assert part_made_by["episodes"] == 3
    returns = whole["reward"].reshape(6, 10).sum(1)
    assert part_made_by["mean_return"] == pytest.approx(returns[3:].mean(), rel=1e-5)
    assert part_made_by["in_order"] and made_by["in_order"]


def test_learning_from_a_part_is_recorded_with_that_parts_episodes(folder: Path) -> None:
    done(toy(folder, "learn", "--buffer_size", "25"))
    columns, whole = batch(folder, "Robust")
    name = "BCQ_Robust_ToyReach-v0_0.json"
    record = json.loads((folder / "results" / name).read_text())
    assert record["arguments"]["buffer_size"] == record["batch"]["transitions"] == 25
    assert record["batch"]["episodes"] == 2  # the third is not at its end
    returns = columns["reward"][:20].reshape(2, 10).sum(1)
    assert record["batch"]["mean_return"] == pytest.approx(returns.mean(), rel=1e-5)
    done(toy(folder, "learn", "--overwrite"))
    assert json.loads((folder / "results" / name).read_text())["batch"] == whole


def test_an_unfinished_run_names_its_batch_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(recorder: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.Recorder, "finish", stopped)
    assert toy(folder, "learn").status == 130
    record = json.loads((folder / "results" / "BCQ_Robust_ToyReach-v0_0.json").read_text())
    assert record["finished"] is False and record["batch"] == batch(folder, "Robust")[1]


def test_a_batch_whose_record_says_little_is_learned_from(folder: Path) -> None:
    write_json(folder / "buffers" / "Robust_ToyReach-v0_0.json", {"env": "ToyReach-v0"})
    done(toy(folder, "learn", "--algorithm", "VAE_BC"))


# --- the concurrent task


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with the batch of a training of 60 steps, learning from step 30 on."""
    folder = tmp_path_factory.mktemp("trained")
    done(toy(folder, "train", "--save_buffer", "--buffer_name", "Concurrent"))
    return folder


@pytest.fixture
def concurrent(trained: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return shutil.copytree(trained, tmp_path / "out")


CONCURRENT = ["--concurrent", "--buffer_name", "Concurrent"]


@every_algorithm
def test_a_concurrent_learner_makes_as_many_iterations_as_the_behaviour_made_updates(
    algorithm: str, concurrent: Path
) -> None:
    more = ["--algorithm", algorithm, "--max_timesteps", "1000", "--eval_freq", "20"]
    done(toy(concurrent, "learn", *CONCURRENT, *more))
    state = model(concurrent, f"{algorithm}_Concurrent")
    optimisers = [part for name, part in state.items() if name.endswith("_optimizer")]
    steps = {float(s["step"]) for one in optimisers for s in one["state"].values()}
    assert max(steps) == 30 and (steps == {30} or algorithm == "TD3_BC")  # its actor learns less
    path = concurrent / "results" / f"{algorithm}_Concurrent_ToyReach-v0_0.json"
    record = json.loads(path.read_text())
    assert record["arguments"]["concurrent"] and record["x"] == [20, 30]


def test_a_concurrent_learner_makes_fewer_iterations_where_fewer_are_asked_for_or_seen(
    concurrent: Path,
) -> None:
    # Of 45 transitions 15 came after the first update; the stage's own length is 6.
    for size, iterations in [("45", 6), ("33", 3)]:
        more = ["--algorithm", "BC", "--overwrite", "--buffer_size", size]
        done(toy(concurrent, "learn", *CONCURRENT, *more))
        path = concurrent / "results" / "BC_Concurrent_ToyReach-v0_0.json"
        assert json.loads(path.read_text())["x"][-1] == iterations


def test_a_concurrent_learner_wants_a_training_run_from_its_first_step(concurrent: Path) -> None:
    name = ["--buffer_name", "Concurrent"]
    task = ["--concurrent", *name]
    before = snapshot(concurrent / "results")
    refused(
        concurrent,
        toy(concurrent, "learn", *task, "--buffer_size", "30"),
        "began to learn at step 30",
    )
    done(toy(concurrent, "generate", "--buffer_name", "Made"))
    refused(
        concurrent, toy(concurrent, "learn", "--concurrent", "--buffer_name", "Made"),
        "batch Made is none", "--train_behavioral --save_buffer",
    )  # fmt: skip
    Path(concurrent / "buffers" / "Made_ToyReach-v0_0.json").unlink()
    refused(
        concurrent, toy(concurrent, "learn", "--concurrent", "--buffer_name", "Made"),
        "batch Made is none",
    )  # fmt: skip
    ring = ["--save_buffer", "--overwrite", *name, "--buffer_size", "50"]
    done(toy(concurrent, "train", *ring))
    refused(concurrent, toy(concurrent, "learn", *task), "batch Concurrent is none")
    new = set(snapshot(concurrent / "results")) - set(before)
    assert new == {f"buffer_performance_Made_ToyReach-v0_0{end}" for end in (".npy", ".json")}


# --- value estimates


@every_algorithm
def test_every_evaluation_has_its_value_estimate(algorithm: str, folder: Path) -> None:
    done(toy(folder, "learn", "--algorithm", algorithm, "--true_value", "--discount", "0.8"))
    path = folder / "results" / f"{algorithm}_Robust_ToyReach-v0_0.json"
    record, saved = json.loads(path.read_text()), path.with_name(f"{path.stem}_value.npy")
    if algorithm in ("BC", "VAE_BC"):  # cloning values nothing
        assert "values" not in record and not saved.exists()
        return
    assert record["value_pairs"] == {"number": 50, "source": "simulator"}
    pairs = [[one["estimate"], one["true"]] for one in record["values"]]
    assert np.load(saved).tolist() == pairs and np.shape(pairs) == (2, 2)
    # A reward lies in [-2, 0], and the episodes have no end: γ 0.8 makes a value of -10 to 0.
    assert all(-10 <= true < 0 for _, true in pairs)


def test_measuring_values_does_not_change_what_is_learned(folder: Path, tmp_path: Path) -> None:
    done(toy(folder, "learn", "--discount", "0.8"))
    saved = folder / "results" / "BCQ_Robust_ToyReach-v0_0_value.npy"
    without = model(folder, "BCQ_Robust"), np.load(saved)
    assert np.isnan(without[1][:, 1]).all() and np.isfinite(without[1][:, 0]).all()
    done(toy(folder, "learn", "--discount", "0.8", "--true_value", "--overwrite"))
    measured = model(folder, "BCQ_Robust")
    for part in ("actor", "critic", "vae"):
        assert all(torch.equal(without[0][part][k], measured[part][k]) for k in measured[part])


def test_a_discount_of_1_has_no_true_value(folder: Path) -> None:
    outcome = toy(folder, "learn", "--true_value", "--discount", "1")
    refused(folder, outcome, "--true_value needs a --discount below 1")
    assert not list((folder / "results").glob("BCQ*"))


def test_a_bin_alone_leaves_no_choice() -> None:
    outcome = run_main(main, "--bins", "1")
    assert outcome.status == 2 and "1 leaves no choice" in outcome.err


# --- a saved policy, evaluated


def lines_of(out: str) -> dict[str, str]:
    """What was printed, by the first word or words before two spaces."""
    pairs = [line.strip().split("  ", 1) for line in out.splitlines()]
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


@every_algorithm
def test_a_saved_policy_is_evaluated_as_the_run_evaluated_it(algorithm: str, folder: Path) -> None:
    done(toy(folder, "learn", "--algorithm", algorithm, "--eval_episodes", "3"))
    before = snapshot(folder)
    out = done(toy(folder, "evaluate", "--algorithm", algorithm, "--eval_episodes", "3"))
    path = folder / "results" / f"{algorithm}_Robust_ToyReach-v0_0.json"
    returns = json.loads(path.read_text())["returns"][-1]
    shown = lines_of(out)
    mean, std, median = np.mean(returns), np.std(returns), np.median(returns)
    assert shown["return"] == (
        f"mean {mean:.2f}  std {std:.2f}  median {median:.2f}  min {min(returns):.2f}  "
        f"max {max(returns):.2f}"
    )
    assert shown["episodes"] == "3" and shown["D4RL score"] == "n/a"
    assert shown["steps"] == "mean 10.0  min 10  max 10"
    assert snapshot(folder) == before


def test_an_evaluation_takes_the_runs_hyper_parameters_but_for_those_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(toy(folder, "learn", "--phi", "0.5", "--acting_candidates", "7"))
    argv = [*TOY[:6], "--evaluate", "--output_dir", str(folder)]
    shown = lines_of(done(run_main(main, *argv)))
    assert (shown["phi"], shown["acting_candidates"]) == ("0.5", "7")
    # Also where what is asked for is the default, and wherever the file is named from.
    monkeypatch.chdir(folder / "models")
    argv += ["--model", "BCQ_Robust_ToyReach-v0_0.pt", "--acting_candidates", "100"]
    shown = lines_of(done(run_main(main, *argv)))
    assert (shown["phi"], shown["acting_candidates"]) == ("0.5", "100")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (None, "is no record of a run"),
        ([], "is no record of a run"),
        ({"phi": "y"}, "phi is 'y', which no --phi can be"),
        ({"target_candidates": None}, "target_candidates is None"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(arguments: Any, message: str, folder: Path) -> None:
    done(toy(folder, "learn"))
    path = folder / "results" / "BCQ_Robust_ToyReach-v0_0.json"
    write_json(path, {"arguments": arguments})
    refused(folder, toy(folder, "evaluate"), message, path.name)


def test_a_recorded_kernel_that_does_not_exist_is_refused(folder: Path) -> None:
    done(toy(folder, "learn", "--algorithm", "BEAR"))
    path = folder / "results" / "BEAR_Robust_ToyReach-v0_0.json"
    write_json(path, {"arguments": {"kernel_type": "foo"}})
    outcome = toy(folder, "evaluate", "--algorithm", "BEAR")
    refused(folder, outcome, "does not fit", "kernel_type is 'foo'; choose from laplacian")


def test_a_run_of_bear_that_ends_within_its_warm_up_is_said_to_clone(folder: Path) -> None:
    flags = ["--algorithm", "BEAR", "--max_timesteps", "3", "--overwrite", "--warm_up"]
    said = "BEAR clones the batch for its first 3 iterations, and this run ends after 3"
    assert said in done(toy(folder, "learn", *flags, "3"))
    assert "BEAR clones" not in done(toy(folder, "learn", *flags, "2"))


def test_without_a_record_the_flags_count_and_a_line_says_so(folder: Path) -> None:
    done(toy(folder, "learn", "--algorithm", "DQN"))
    (folder / "results" / "DQN_Robust_ToyReach-v0_0.json").unlink()
    out = done(toy(folder, "evaluate", "--algorithm", "DQN"))
    assert "no record " in out and "those of the flags" in out


def test_a_counter_that_is_no_number_is_refused(tmp_path: Path) -> None:
    agent = load_variant("continuous_BCQ").TD3_BC.TD3_BC(2, 2, 1.0, "cpu")
    torch.save(agent.state_dict() | {"updates": "x"}, tmp_path / "agent.pt")
    with pytest.raises(InputError, match=r"agent\.pt: .*train it again"):
        agent.load(tmp_path / "agent.pt")


def test_a_batch_whose_name_begins_alike_is_another(folder: Path) -> None:
    done(toy(folder, "generate", "--buffer_name", "Robust_ToyReach-v0_0_x"))
    folders = Folders(folder, "ToyReach-v0", 0)
    files = {path.name for path in folders.batch_files("Robust")}  # what --overwrite may remove
    assert len(files) == 6 + 2 + 1 + 2 and not [name for name in files if "_x_" in name]
    assert len(folders.batch_files("Robust_ToyReach-v0_0_x")) == 6 + 2 + 1 + 2


def test_any_saved_policy_can_be_named(folder: Path) -> None:
    best = folder / "models" / "behavioral_ToyReach-v0_0_best.pt"
    shown = lines_of(done(toy(folder, "evaluate", "--model", str(best))))
    assert shown["algorithm"] == "DDPG"  # as its record says
    returns = np.load(folder / "results" / "behavioral_ToyReach-v0_0.npy")
    assert shown["return"].startswith(f"mean {returns.max():.2f} ")


def test_a_policy_that_is_not_there_or_another_algorithms_is_refused(folder: Path) -> None:
    refused(folder, toy(folder, "evaluate"), "no policy: ", "BCQ_Robust_ToyReach-v0_0.pt")
    refused(folder, toy(folder, "evaluate", "--model", str(folder)), "no policy: ")
    other = shutil.copy(folder / "models" / "behavioral_ToyReach-v0_0.pt", folder / "other.pt")
    outcome = toy(folder, "evaluate", "--model", str(other))
    refused(folder, outcome, "another algorithm than BCQ")


def test_stage_2_plays_a_saved_policy_from_anywhere(folder: Path, tmp_path: Path) -> None:
    policy, elsewhere = tmp_path / "given" / "Toy.pt", tmp_path / "elsewhere"
    whole = folder / "models" / "behavioral_ToyReach-v0_0.pt"
    save = ("--model", str(whole), "--save_policy", str(policy))
    assert f"saved {policy} and Toy.json" in done(toy(folder, "evaluate", *save))
    assert policy.stat().st_size < whole.stat().st_size / 3
    done(toy(elsewhere, "generate", "--model", str(policy)))
    for path in (folder / "buffers").glob("Robust_*.npy"):
        assert (elsewhere / "buffers" / path.name).read_bytes() == path.read_bytes()
    made = json.loads((elsewhere / "buffers" / "Robust_ToyReach-v0_0.json").read_text())
    assert made["policy"] == "Toy" and made["arguments"]["model"] == str(policy)
    outcome = toy(elsewhere, "evaluate", "--model", str(policy))  # by the record beside it
    assert lines_of(done(outcome))["algorithm"] == "DDPG"
    # Of a learner of stage 3, too, with the settings of its run.
    done(toy(folder, "learn", "--phi", "0.5"))
    bcq = ("--model", str(folder / "models" / "BCQ_Robust_ToyReach-v0_0.pt"))
    assert lines_of(done(toy(folder, "generate", *bcq, "--buffer_name", "Second")))["phi"] == "0.5"


@pytest.mark.parametrize("policy", sorted((ROOT / "models" / "reference").glob("*-v4.pt")))
def test_the_policies_to_begin_with_are_good(policy: Path, tmp_path: Path) -> None:
    argv = ["--evaluate", "--env", policy.stem, "--model", str(policy), "--eval_episodes", "1"]
    out = done(run_main(main, *argv, "--threads", "1", "--output_dir", str(tmp_path)))
    assert float(lines_of(out)["D4RL score"]) > 50


def test_a_policy_that_is_handed_on_is_refused_where_it_cannot_be(
    folder: Path, tmp_path: Path
) -> None:
    whole = ("--model", str(folder / "models" / "behavioral_ToyReach-v0_0.pt"))
    policy = ("--save_policy", str(tmp_path / "given.pt"))
    for stage in ("train", "learn"):
        refused(folder, toy(folder, stage, *whole), "--model is a policy to play or to judge")
        refused(folder, toy(folder, stage, *policy), "add --evaluate")
    for flag, value in (("behavioral_seed", "0"), ("behavioral_policy", "best")):
        refused(folder, toy(folder, "generate", *whole, f"--{flag}", value), f"leave --{flag} out")
    refused(folder, toy(folder, "generate", "--model", "nothing.pt"), "no policy: ")
    wrong = ("--save_policy", str(tmp_path / "given.json"))
    refused(folder, toy(folder, "evaluate", *whole, *wrong), "a policy's ends in .pt")
    own = (*whole, "--save_policy", whole[1], "--overwrite")
    refused(folder, toy(folder, "evaluate", *own), "the whole agent lies there")
    (tmp_path / "given.json").touch()
    refused(folder, toy(folder, "evaluate", *whole, *policy), "given.json exists: --overwrite")
    (folder / "results" / "behavioral_ToyReach-v0_0.json").unlink()
    again = toy(folder, "evaluate", "--algorithm", "DDPG", *whole, *policy)
    refused(folder, again, "which must go with it")
    assert snapshot(tmp_path / "given.json") == {} and not (tmp_path / "given.pt").exists()


def test_a_policy_of_another_environment_is_played_and_a_line_says_so(folder: Path) -> None:
    record = folder / "results" / "behavioral_ToyReach-v0_0.json"
    made = json.loads(record.read_text())
    made["arguments"]["env"] = "Other-v4"
    write_json(record, made)
    whole = ("--model", str(folder / "models" / "behavioral_ToyReach-v0_0.pt"))
    said = "behavioral_ToyReach-v0_0.pt learned in Other-v4, and plays in ToyReach-v0"
    assert said in done(toy(folder, "evaluate", *whole))


def test_a_policy_of_another_environment_than_the_default_needs_its_env(folder: Path) -> None:
    policy = ("--model", str(folder / "models" / "behavioral_ToyReach-v0_0.pt"))
    flags = ("--threads", "1", "--output_dir", str(folder))
    for stage in ("--evaluate", "--generate_buffer"):
        outcome = run_main(main, stage, *policy, *flags)
        refused(folder, outcome, "learned in ToyReach-v0: add --env ToyReach-v0")


def test_a_batch_of_another_environment_than_the_default_needs_its_env(folder: Path) -> None:
    done(toy(folder, "generate", "--buffer_name", "Mine"))
    outcome = run_main(main, "--buffer_name", "Mine", "--output_dir", str(folder))
    refused(folder, outcome, "no batch Mine of Hopper-v4", "add --env ToyReach-v0")


@pytest.mark.parametrize(("first", "said"), [(40, True), (39, False)])
def test_a_behaviour_that_never_learns_says_so(first: int, said: bool, tmp_path: Path) -> None:
    steps = ("--max_timesteps", "40", "--start_timesteps", str(first))
    assert ("nothing will be learned" in done(toy(tmp_path, "train", *steps))) == said


def test_a_known_environments_score_is_shown() -> None:
    played = main.rollout.Played(np.array([3234.3, 3234.3]), np.array([1000, 1000]))
    assert lines_of(main.playing.report(played, "Hopper-v4"))["D4RL score"] == "100.00"


def test_a_video_is_made_and_not_replaced_unasked(tmp_path: Path) -> None:
    agent = load_variant("continuous_BCQ").DDPG.DDPG(3, 1, 2.0, "cpu")
    agent.save(tmp_path / "policy.pt")
    argv = ["--env", "Pendulum-v1", "--threads", "1", "--eval_episodes", "1", "--video"]
    argv += ["--evaluate", "--algorithm", "DDPG", "--output_dir", str(tmp_path)]
    argv += ["--model", str(tmp_path / "policy.pt")]
    assert "saved " in done(run_main(main, *argv))
    video = tmp_path / "results" / "policy.mp4"
    assert video.stat().st_size > 5000 and video.read_bytes()[4:8] == b"ftyp"
    refused(tmp_path, run_main(main, *argv), "policy.mp4 exists: --overwrite replaces it")


def test_where_nothing_can_be_drawn_the_error_says_what_to_do(folder: Path) -> None:
    best = folder / "models" / "behavioral_ToyReach-v0_0_best.pt"
    outcome = toy(folder, "evaluate", "--model", str(best), "--video")
    refused(folder, outcome, "cannot be drawn here", "MUJOCO_GL=egl", "pip install moviepy")
    assert not list((folder / "results").glob("*mp4*"))


# --- a batch in another folder


def test_buffer_dir_reads_the_batch_where_it_lies_and_changes_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    done(toy(folder, "learn"))
    other = tmp_path / "other"
    assert "no batch" in toy(other, "learn").err
    done(toy(other, "learn", "--buffer_dir", str(folder)))
    assert not (other / "buffers").exists()
    name = next((folder / "results").glob("BCQ_*_0.npy")).name
    assert (folder / "results" / name).read_bytes() == (other / "results" / name).read_bytes()
    records = [
        json.loads((p / "results" / name).with_suffix(".json").read_text()) for p in (folder, other)
    ]
    assert records[0]["arguments"] == records[1]["arguments"]
    assert records[0].get("batch") == records[1].get("batch")


@pytest.mark.parametrize("stage", ["train", "generate"])
def test_buffer_dir_is_of_stage_3_alone(stage: str, tmp_path: Path) -> None:
    outcome = toy(tmp_path, stage, "--buffer_dir", str(tmp_path))
    assert outcome.status == 1 and "--buffer_dir is where stage 3 reads" in outcome.err
