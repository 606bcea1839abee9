"""The page docs/no_simulator.md, run as it is written; the clinic whose best policy is known."""

import csv
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, done, load_variant, run_main
from test_readme import commands

import import_dataset
from common.judging.FQE import FQE
from common.judging.logs import Log

sys.path.insert(0, str(ROOT / "examples"))
clinic = importlib.import_module("clinic")
sys.path.pop(0)

PAGE = ROOT / "docs" / "no_simulator.md"


def typed(words: list[str], folder: Path) -> str:
    """A command of the page, in this process, with its outputs in a folder."""
    script, *argv = words[1:]
    argv = [str(folder / word) if word == "actions.csv" else word for word in argv]
    module = load_variant(Path(script).parent.name).main if "/" in script else import_dataset
    threads = [] if module is import_dataset else ["--threads", "1", "--device", "cpu"]
    return done(run_main(module, *argv, "--output_dir", str(folder), *threads))


def test_four_commands_lead_from_two_episodes_to_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = PAGE.read_text(encoding="utf-8").split("## Importing")[0]
    four = [command.words for command in commands(page, ROOT)]
    assert len(four) == 4
    printed = [typed(words, tmp_path) for words in four]
    assert "no --env: 3 numbers a state, 1 continuous per action" in printed[0]
    assert "best by the estimate on held-out episodes" in printed[1]
    assert "too thin to say: 1 episode to judge on" in printed[2]
    actions = np.loadtxt(tmp_path / "actions.csv", skiprows=1)
    assert actions.shape == (20,) and np.abs(actions).max() <= 2


def test_the_python_form_of_the_page_is_five_lines_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = PAGE.read_text(encoding="utf-8")
    four = [command.words for command in commands(page.split("## Importing")[0], ROOT)]
    for words in four[:2]:
        typed(words, tmp_path)
    [code] = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    assert len(list(filter(None, code.splitlines()))) == 5
    code = code.replace("models/", f"{tmp_path}/models/").replace("from main", "from clinic_main")
    sys.modules["clinic_main"] = load_variant("continuous_BCQ").main
    path = sys.path[:]
    try:
        names: dict[str, Any] = {"states": np.zeros((4, 3), np.float32)}
        exec(code, names)
    finally:
        sys.path[:] = path
        del sys.modules["clinic_main"]
    assert names["actions"].shape == (4, 1)


def test_the_clinics_probabilities_are_such_and_its_best_policy_cannot_be_bettered() -> None:
    p = clinic.transitions()
    np.testing.assert_allclose(p.sum(2), 1)
    assert p.min() >= 0
    np.testing.assert_allclose(clinic.doctors().sum(1), 1)
    best = clinic.best_policy()
    value = clinic.values(best)
    q = p[:, :, len(clinic.STATES)] + clinic.DISCOUNT * p[:, :, : len(clinic.STATES)] @ value
    np.testing.assert_allclose(q.max(1), value)  # Bellman's optimality
    told = clinic.judge(best)
    assert told["optimal"] == told["this policy"] == pytest.approx(0.8497, abs=1e-4)
    assert told["the doctors"] == pytest.approx(0.4491, abs=1e-4)


def test_the_log_shows_the_doctors_and_ends_irregularly(tmp_path: Path) -> None:
    clinic.write_log(tmp_path / "log.csv", 5000, 0)
    with (tmp_path / "log.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 5000
    lengths = np.unique([line["episode"] for line in lines], return_counts=True)[1]
    assert len(set(lengths)) > 20 and len(lengths) > 300
    rewards = np.array([float(line["reward"]) for line in lines])
    ended = np.array([line["terminated"] == "1" for line in lines])
    assert set(rewards) == {0, 1} and not (rewards > 0)[~ended].any()
    first = clinic.Patient(3, 0, 1)
    here = [line for line in lines if (float(line["state_0"]), float(line["state_1"]), float(
        line["state_2"])) == first.logged]  # fmt: skip
    shares = np.bincount([int(line["action"]) for line in here], minlength=4) / len(here)
    np.testing.assert_allclose(shares, clinic.doctors()[first.place], atol=0.1)


def clinic_log(path: Path) -> Log:
    """The clinic's log as critics take it."""
    with path.open() as file:
        lines = list(csv.DictReader(file))
    state = torch.tensor([[float(line[c]) for c in clinic.COLUMNS] for line in lines])
    action = torch.eye(4)[[int(line["action"]) for line in lines]]
    reward, terminated, episode = (
        torch.tensor([float(line[c]) for line in lines])
        for c in ("reward", "terminated", "episode")
    )
    last = torch.cat([episode[1:] != episode[:-1], torch.ones(1, dtype=torch.bool)])
    kept = ~last | (terminated == 1)
    after = torch.cat([state[1:], state[-1:]])
    ids = episode[kept]
    begins = torch.cat([torch.ones(1, dtype=torch.bool), ids[1:] != ids[:-1]]).nonzero()[:, 0]
    starts = torch.cat([begins, torch.tensor([len(ids)])])
    return Log(state[kept], action[kept], after[kept], reward[kept], 1 - terminated[kept], starts)


@pytest.mark.slow
def test_on_the_clinics_log_estimates_come_near_the_exact_values(tmp_path: Path) -> None:
    clinic.write_log(tmp_path / "log.csv", 5000, 0)
    log = clinic_log(tmp_path / "log.csv")
    places = {patient.logged: patient.place for patient in clinic.STATES}
    best, doctors = clinic.best_policy(), clinic.doctors()
    for policy in (doctors, np.eye(4)[doctors.argmax(1)], (doctors + best) / 2):
        table = torch.tensor(policy).float()

        def act(state: torch.Tensor, table: torch.Tensor = table) -> Any:
            rows = torch.tensor([places.get(tuple(row), 0) for row in state.tolist()])
            return torch.eye(4).expand(len(state), 4, 4), table[rows]

        fqe = FQE(log, clinic.DISCOUNT, 0)
        fqe.fit(act, 2500)
        estimate = fqe.estimate()
        assert estimate.value == pytest.approx(clinic.worth(policy), abs=0.1)
        assert estimate.low - 0.02 < clinic.worth(policy) < estimate.high + 0.02


@pytest.mark.slow
def test_bcq_gains_over_cloning_and_over_the_doctors_who_were_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clinic.write_log(tmp_path / "clinic.csv", 5000, 0)
    clinic.write_states(tmp_path / "states.csv")
    done(run_main(import_dataset, "--csv", "clinic.csv", "--buffer_name", "Clinic"))
    main = load_variant("discrete_BCQ").main
    on = ["--buffer_name", "Clinic", "--threads", "1", "--device", "cpu"]
    learning = ["--normalize_states", "--max_timesteps", "4000", "--eval_freq", "4000"]
    worth = {}
    for algorithm in ("BCQ", "BC"):
        argv = [*on, "--algorithm", algorithm]
        done(run_main(main, *argv, *learning, "--estimate_iterations", "1"))
        done(run_main(main, *argv, "--act", "states.csv", "--output", f"{algorithm}.csv"))
        worth[algorithm] = clinic.worth(clinic.read_policy(tmp_path / f"{algorithm}.csv"))
    doctors, best = clinic.worth(clinic.doctors()), clinic.worth(clinic.best_policy())
    print(worth)
    assert worth["BCQ"] > doctors + 0.2 and worth["BCQ"] > worth["BC"] + 0.2, worth
    assert worth["BCQ"] > best - 0.15, worth
