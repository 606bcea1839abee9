"""Learning, judging and acting where there is a batch and nothing else."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import toy_envs
from conftest import Outcome, done, load_variant, random_batch, run_main, snapshot
from import_tools import imported

from common.errors import InputError
from common.judging import held_out
from common.judging.importance import Clone
from common.judging.logs import Log
from common.judging.support import ContinuousSupport, DiscreteSupport
from common.run.normalised import NormalisedStates

CONTINUOUS, DISCRETE = load_variant("continuous_BCQ"), load_variant("discrete_BCQ")
VARIANTS = {"continuous": CONTINUOUS, "discrete": DISCRETE}
SHORT = ["--max_timesteps", "6", "--eval_freq", "3", "--batch_size", "4", "--device", "cpu",
         "--threads", "1", "--estimate_iterations", "5"]  # fmt: skip


def write_log(folder: Path, kind: str, episodes: int = 6, steps: int = 5) -> None:
    """Import a log of some episodes as the batch Clinic."""
    draw = np.random.default_rng(0)
    lines = ["episode,state_0,state_1,action,reward,terminated"]
    for episode in range(episodes):
        for step in range(steps):
            state = draw.normal([0, 200], [1, 50])
            action = draw.integers(3) if kind == "discrete" else draw.uniform(10, 50)
            ended = int(step == steps - 1 and episode % 2 == 0)
            lines.append(f"{episode},{state[0]},{state[1]},{action},{ended},{ended}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    argv = [] if kind == "discrete" else ["--action_low", "0", "--action_high", "60"]
    done(imported(folder, "--csv", folder / "log.csv", *argv, name="Clinic"))


def run_log(folder: Path, kind: str, *argv: Any) -> Outcome:
    """A command on that batch, without --env."""
    words = ["--buffer_name", "Clinic", "--output_dir", str(folder), *map(str, argv)]
    return run_main(VARIANTS[kind].main, *words)


def one_line(outcome: Outcome, *words: str) -> None:
    """A one-line error with these words."""
    assert outcome.status == 1 and outcome.err.startswith("error: "), outcome
    assert outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


@pytest.fixture(autouse=True)
def little_cloning(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The behaviour is cloned in few updates, but where its probabilities are looked at."""
    if "likelihood" not in request.node.name:
        monkeypatch.setattr("common.judging.support.Clone", partial(Clone, updates=5))


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making any environment fails."""

    def make(*_: Any, **__: Any) -> None:
        raise AssertionError("an environment was made")

    monkeypatch.setattr("gymnasium.make", make)
    for variant in VARIANTS.values():
        monkeypatch.setattr(variant.main, "make_env", make)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_learning_without_env_makes_none_and_records_estimates(
    tmp_path: Path, kind: str, no_environment: None
) -> None:
    write_log(tmp_path, kind)
    out = done(run_log(tmp_path, kind, *SHORT))
    record = json.loads((tmp_path / "results" / "BCQ_Clinic_0.json").read_text())
    estimates = record["estimates"]
    saved = np.load(tmp_path / "results" / "BCQ_Clinic_0.npy")
    np.testing.assert_array_equal(saved, [one["value"] for one in estimates])
    own = {"agreement", "log_likelihood"} if kind == "discrete" else {"action_distance"}
    assert estimates[0].keys() == {"value", "low", "high", "td_error", "outside", *own}
    assert all(one["low"] <= one["value"] <= one["high"] for one in estimates)
    # "return" stands for no estimate: what has that name is of the batch.
    assert "returns" not in record and not [key for key in record if "return" in key]
    assert record["arguments"]["env"] is None and record["arguments"]["held_out"] == 0.1
    assert record["batch"]["task"]["kind"] == kind
    assert "return" not in out.replace("mean_return", "")
    assert "best by the estimate on held-out episodes, after" in out
    assert (tmp_path / "models" / "BCQ_Clinic_0_best.pt").exists()


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_held_out_episodes_are_never_sampled(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, kind, episodes=10)
    kept: dict[str, Any] = {}
    main = VARIANTS[kind].main
    real = main.logs.held_out

    def held(*args: Any) -> Any:
        kept["judge"], kept["seen"] = real(*args)
        kept["all"] = args[-1]
        return kept["judge"], kept["seen"]

    monkeypatch.setattr(main.logs, "held_out", held)
    done(run_log(tmp_path, kind, *SHORT, "--held_out", "0.3"))
    judged, training = kept["judge"].parts.judged, kept["judge"].parts.training
    assert judged.episodes == 3 and training.episodes == 7
    states = {tuple(row) for row in judged.state.tolist()}
    seen = {tuple(row) for row in kept["seen"].sample(2000).state.tolist()}
    assert not states & seen
    everything = {tuple(row) for row in kept["all"].state.tolist()}
    assert states | seen == everything
    assert kept["seen"].size == len(training.state)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_run_without_env_that_was_stopped_goes_on_exactly(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        write_log(folder, kind)
    done(run_log(whole, kind, *SHORT))
    real = held_out.HeldOut.__call__
    calls = []

    def once(self: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise InputError("stopped here")
        return real(self)

    with monkeypatch.context() as patched:
        patched.setattr(held_out.HeldOut, "__call__", once)
        one_line(run_log(stopped, kind, *SHORT), "stopped here")
    assert "goes on where it stopped" in done(run_log(stopped, kind, *SHORT))
    for name in ("results/BCQ_Clinic_0.npy", "models/BCQ_Clinic_0.pt"):
        assert (whole / name).read_bytes() == (stopped / name).read_bytes(), name


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_finished_run_without_env_goes_on_to_more_iterations(tmp_path: Path, kind: str) -> None:
    at_once, longer = tmp_path / "at once", tmp_path / "longer"
    for folder in (at_once, longer):
        write_log(folder, kind)
    done(run_log(at_once, kind, *SHORT, "--max_timesteps", 9))
    done(run_log(longer, kind, *SHORT, "--max_timesteps", 3))
    out = done(run_log(longer, kind, *SHORT, "--max_timesteps", 9))
    assert "goes on where it ended" in out
    for name in (
        "results/BCQ_Clinic_0.npy",
        "models/BCQ_Clinic_0.pt",
        "models/BCQ_Clinic_0_best.pt",
    ):
        assert (at_once / name).read_bytes() == (longer / name).read_bytes(), name


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_estimate_says_what_a_policy_is_worth_and_on_how_little(tmp_path: Path, kind: str) -> None:
    write_log(tmp_path, kind)
    done(run_log(tmp_path, kind, *SHORT, "--held_out", "0.4"))
    before = snapshot(tmp_path)
    few = ["--estimate", "--device", "cpu", "--threads", "1", "--estimate_iterations", "5"]
    out = done(run_log(tmp_path, kind, *few))
    assert "2 held out, of batch Clinic" in out  # 0.4, as the run's record says
    assert "95% interval" in out and "discounted return of these episodes" in out
    assert "too thin to say" in out and "2 episodes to judge on" in out
    assert ("effective" in out and "WIS" in out) == (kind == "discrete")
    assert snapshot(tmp_path) == before
    assert out == done(run_log(tmp_path, kind, *few))


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_act_writes_actions_in_the_users_units_and_the_python_form_gives_the_same(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    write_log(tmp_path, kind)
    done(run_log(tmp_path, kind, *SHORT, "--algorithm", "BC", "--normalize_states"))
    states = np.random.default_rng(1).normal([0, 200], [1, 50], (2000, 2)).astype(np.float32)
    given, output = tmp_path / f"states{suffix}", tmp_path / f"actions{suffix}"
    if suffix == ".csv":
        header = "state_0,state_1"
        np.savetxt(given, states, delimiter=",", header=header, comments="", fmt="%.9g")
    else:
        np.savez(given, state=states)
    argv = ["--algorithm", "BC", "--act", given, "--output", output, "--device", "cpu"]
    done(run_log(tmp_path, kind, *argv))
    if suffix == ".csv":
        assert output.read_text().splitlines()[0] == "action"
        actions = np.loadtxt(output, delimiter=",", skiprows=1)
    else:
        actions = np.load(output)["action"].reshape(-1)
    assert len(actions) == len(states)
    if kind == "continuous":
        assert actions.min() >= 0 and actions.max() <= 60 and actions.max() > 1
    else:
        assert set(actions) <= {0, 1, 2}
    policy = VARIANTS[kind].main.load_policy(tmp_path / "models" / "BC_Clinic_0.pt")
    np.testing.assert_allclose(policy(states).reshape(-1), actions, rtol=1e-5)
    one_line(run_log(tmp_path, kind, *argv), "exists: --overwrite")
    # The batch may have stayed elsewhere: the run's record describes the task.
    (tmp_path / "buffers" / "Clinic_0.json").unlink()
    model = ["--model", tmp_path / "models" / "BC_Clinic_0.pt"]
    done(run_log(tmp_path, kind, *argv, *model, "--overwrite"))


def test_with_an_environment_actions_are_in_its_own_units(tmp_path: Path) -> None:
    argv = ["--env", "MountainCarContinuous-v0", "--output_dir", str(tmp_path)]
    agent = CONTINUOUS.BC.BC(2, 1, 1.0, "cpu")
    (tmp_path / "models").mkdir()
    agent.save(tmp_path / "models" / "BC_Robust_MountainCarContinuous-v0_0.pt")
    (tmp_path / "s.csv").write_text("state_0,state_1\n0,0\n1,1\n")
    argv += ["--algorithm", "BC", "--act", str(tmp_path / "s.csv"), "--device", "cpu"]
    output = str(tmp_path / "a.csv")
    done(run_main(CONTINUOUS.main, *argv, "--output", output))
    wanted = agent.select_action(np.array([[0, 0], [1, 1]], np.float32))[:, 0]
    np.testing.assert_allclose(np.loadtxt(output, skiprows=1), wanted, rtol=1e-6)


class Bounded(toy_envs.Reach):
    """As Reach, with actions from 0 to `high`."""

    def __init__(self, high: float = 1.0) -> None:
        self.action_space = gym.spaces.Box(0, high, (2,))


def test_units_are_those_of_the_environment_as_the_run_made_it(tmp_path: Path) -> None:
    gym.register("Bounded-v0", "test_without_simulator:Bounded", max_episode_steps=5)
    agent = CONTINUOUS.BC.BC(2, 2, 1.0, "cpu")
    (tmp_path / "models").mkdir()
    (tmp_path / "results").mkdir()
    model = tmp_path / "models" / "BC_Robust_Bounded-v0_0.pt"
    agent.save(model)
    record = {"arguments": {"algorithm": "BC", "env_kwargs": {"high": 40.0}}}
    (tmp_path / "results" / "BC_Robust_Bounded-v0_0.json").write_text(json.dumps(record))
    (tmp_path / "s.csv").write_text("state_0,state_1\n0,0\n1,1\n")
    argv = ["--env", "Bounded-v0", "--algorithm", "BC", "--output_dir", str(tmp_path)]
    argv += ["--device", "cpu", "--act", str(tmp_path / "s.csv"), "--output"]
    done(run_main(CONTINUOUS.main, *argv, str(tmp_path / "a.csv")))
    states = np.array([[0, 0], [1, 1]], np.float32)
    wanted = 20 + 20 * agent.select_action(states)
    found = np.loadtxt(tmp_path / "a.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    policy = CONTINUOUS.main.load_policy(model, "Bounded-v0")
    np.testing.assert_allclose(policy(states), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--evaluate"], ["no environment to play in", "--estimate"]),
        (["--eval_episodes", "3"], ["--eval_episodes", "no environment"]),
        (["--true_value"], ["--true_value", "no environment"]),
        (["--concurrent"], ["--concurrent", "no environment"]),
        (["--held_out", "0.99"], ["--held_out 0.99 leaves none of 6 episodes"]),
        (["--discount", "1"], ["--discount below 1"]),
        (["--act", "x.csv"], ["--act needs --output"]),
        (["--act", "x.csv", "--output", "y.txt"], ["--act needs --output"]),
        (["--estimate"], ["no policy"]),
    ],
)  # fmt: skip
def test_what_makes_no_sense_without_a_simulator_is_refused(
    tmp_path: Path, argv: list[str], words: list[str]
) -> None:
    write_log(tmp_path, "continuous")
    before = snapshot(tmp_path)
    one_line(run_log(tmp_path, "continuous", *SHORT, *argv), *words)
    assert snapshot(tmp_path) == before


def test_the_other_variant_is_named_and_a_held_out_share_needs_no_simulator(
    tmp_path: Path,
) -> None:
    for kind, other, env in (
        ("discrete", "continuous", "CartPole-v1"), ("continuous", "discrete", "Pendulum-v1")
    ):  # fmt: skip
        folder = tmp_path / kind
        write_log(folder, kind)
        (folder / "results").mkdir(exist_ok=True)
        for words in ([], ["--env", env]):  # also where a run has the name already
            for name in (f"BCQ_Clinic_{env}_0.npy", "BCQ_Clinic_0.npy"):
                (folder / "results" / name).touch()
            outcome = run_log(folder, other, *SHORT[:6], *words)
            one_line(outcome, f"{kind} actions: {kind}_BCQ/main.py")
    folder = tmp_path / "discrete"
    argv = ["--env", "Pendulum-v1", "--held_out", "0.1"]
    one_line(run_log(folder, "continuous", *argv), "--held_out is for judging without")
    (folder / "buffers" / "Clinic_PongNoFrameskip-v0_0.json").write_text("{}")
    one_line(run_log(folder, "discrete", *SHORT), "has no environment and", "takes the latter")


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_name_that_no_batch_has_is_refused_with_those_there_are(
    tmp_path: Path, kind: str
) -> None:
    write_log(tmp_path, kind)
    for name in ("Ward_0", "Other_Pendulum-v1_0", "Elsewhere_1", "Broken_0"):
        text = '{"env": null, "task": {}}' if "Pendulum" not in name else "{}"
        (tmp_path / "buffers" / f"{name}.json").write_text(text if name != "Broken_0" else "{")
    before = snapshot(tmp_path)
    words = ["none of this name was imported without --env, by import_dataset.py: there are Clinic"]
    words += ["Clinic, Ward; and none is of", "--generate_buffer --env", "--buffer_name Clnic"]
    for argv in (SHORT, ["--estimate"]):
        one_line(run_log(tmp_path, kind, *argv, "--buffer_name", "Clnic"), *words)
    refused = run_log(tmp_path, kind, "--buffer_name", "Clnic", "--env", "CartPole-v1")
    assert "without --env" not in refused.err
    assert snapshot(tmp_path) == before


def test_a_damaged_description_is_one_line(tmp_path: Path) -> None:
    write_log(tmp_path, "continuous")
    path = tmp_path / "buffers" / "Clinic_0.json"
    whole = json.loads(path.read_text())
    broken: list[Any] = [
        {}, 3, whole["task"] | {"kind": "other"}, whole["task"] | {"action_low": [70]},
        whole["task"] | {"state_dim": "x"}, whole["task"] | {"action_high": None},
        whole["task"] | {"state_dim": 2.5}, whole["task"] | {"rescaled": "x"},
    ]  # fmt: skip
    for task in broken:
        path.write_text(json.dumps(whole | {"task": task}))
        one_line(run_log(tmp_path, "continuous", *SHORT), "import the data again")
    path.write_text(json.dumps(whole).replace("60", "1e999"))
    one_line(run_log(tmp_path, "continuous", *SHORT), "Clinic_0.json is damaged", "1e999")
    path.write_text(json.dumps(whole))
    np.save(tmp_path / "buffers" / "Clinic_0_episode.npy", np.zeros((3, 1), np.int64))
    one_line(
        run_log(tmp_path, "continuous", *SHORT), "_episode.npy is damaged, or not of the batch"
    )


STATE_FILES = [
    ("state_0\n1\n", "1 wide, the policy takes 2"),
    ("x,y\n1,2\n", "has no states"),
    ("state_0,state_1\n1,high\n", "no number"),
    ("state_0,state_1\n1,nan\n", "NaN or infinity in row 0"),
    ("state_0,state_1\n", "has no states"),
    ("state_0,state_1\n1\n", "1 cells"),
    ("", "has no states"),
]


@pytest.mark.parametrize(("text", "word"), STATE_FILES)
def test_states_that_are_none_are_refused_and_nothing_is_written(
    tmp_path: Path, text: str, word: str
) -> None:
    from datasets.tables import read_states

    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(InputError, match=word):
        read_states(tmp_path / "s.csv", (2,))


def learners(kind: str) -> list[Any]:
    """Every algorithm of a variant, small."""
    main = VARIANTS[kind].main
    sizes: tuple[Any, ...] = (3, 2, 1.0, "cpu") if kind == "continuous" else ((3,), 4, "cpu")
    return [
        pytest.param(make, sizes, id=f"{kind} {name}") for name, make in main.ALGORITHMS.items()
    ]


def raw_and_scaled(discrete: bool) -> tuple[Any, Any]:
    """A buffer of wide states, and one of the same, normalised by hand."""
    batch = random_batch(40)
    if discrete:
        batch = batch._replace(action=torch.randint(4, (40, 1)))
    stretch, shift = torch.tensor([1.0, 1e4, 0.01]), torch.tensor([0.0, 5e4, 3.0])
    wide = batch._replace(
        state=batch.state * stretch + shift, next_state=batch.next_state * stretch + shift
    )
    std, mean = torch.std_mean(wide.state, 0, correction=0)
    small = wide._replace(
        state=(wide.state - mean) / (std + 1e-3), next_state=(wide.next_state - mean) / (std + 1e-3)
    )

    def buffer(rows: Any) -> SimpleNamespace:
        def sample(number: int) -> Any:
            index = torch.randint(40, (number,))
            return type(rows)(*(column[index] for column in rows))

        return SimpleNamespace(sample=sample, state=rows.state)

    return buffer(wide), buffer(small)


@pytest.mark.parametrize(("make", "sizes"), learners("continuous") + learners("discrete"))
def test_normalised_states_are_what_any_learner_learns_from_and_acts_on(
    tmp_path: Path, make: Any, sizes: tuple[Any, ...]
) -> None:
    wide, small = raw_and_scaled(discrete=len(sizes) == 3)
    torch.manual_seed(0)
    wrapped = NormalisedStates(make(*sizes), 3)
    torch.manual_seed(0)
    plain = make(*sizes)
    for agent, buffer in ((wrapped, wide), (plain, small)):
        torch.manual_seed(1)
        agent.train(buffer, 3, 8)
    acted = []
    for agent, states in ((wrapped, wide.state), (plain, small.state)):
        torch.manual_seed(2)
        acted.append(agent.select_action(states.numpy()))
    np.testing.assert_allclose(acted[0], acted[1], rtol=1e-4, atol=1e-5)
    assert hasattr(wrapped, "value") == hasattr(plain, "value")

    wrapped.save(tmp_path / "agent.pt")
    again = NormalisedStates(make(*sizes), 3)
    again.load(tmp_path / "agent.pt")
    torch.manual_seed(2)
    np.testing.assert_array_equal(again.select_action(wide.state.numpy()), acted[0])
    with pytest.raises(InputError, match="state_normalisation"):
        make(*sizes).load(tmp_path / "agent.pt")
    plain.save(tmp_path / "plain.pt")
    with pytest.raises(InputError, match="state_normalisation is missing"):
        again.load(tmp_path / "plain.pt")


def small_log(state: torch.Tensor, action: torch.Tensor) -> Log:
    """A log of one-step episodes."""
    ones = torch.ones(len(state))
    return Log(state, action, state, ones, ones, torch.arange(len(state) + 1))


def test_a_policy_is_outside_where_its_actions_are_farther_than_those_that_were_logged() -> None:
    draw = torch.Generator().manual_seed(0)
    state = torch.rand(1000, 1, generator=draw)
    action = state + 0.1 * torch.randn(1000, 1, generator=draw)  # near the diagonal
    training, judged = (small_log(state[k::2], action[k::2]) for k in (0, 1))
    support = ContinuousSupport(training, judged, 0)

    def acting(offset: float) -> Any:
        return lambda states: ((states + offset)[:, None], torch.ones(len(states), 1))

    inside, far = support(acting(0.0)), support(acting(1.0))
    assert inside["outside"] < 0.05 and far["outside"] == 1
    assert far["action_distance"] == pytest.approx(1, abs=0.05)

    def logged(states: torch.Tensor) -> Any:
        return judged.action[:, None], torch.ones(len(states), 1)

    assert support(logged)["outside"] == pytest.approx(0.05, abs=0.01)
    assert support(logged)["action_distance"] == 0


def test_agreement_and_likelihood_are_those_of_the_logged_actions() -> None:
    state = torch.eye(2).repeat(500, 1)
    action = torch.eye(3)[torch.tensor([0, 1]).repeat(500)]  # 0 in state 0, 1 in state 1
    support = DiscreteSupport(small_log(state, action), small_log(state, action), 0)

    def always(number: int) -> Any:
        return lambda states: (
            torch.eye(3)[number].expand(len(states), 1, 3), torch.ones(len(states), 1)
        )  # fmt: skip

    assert support(always(0))["agreement"] == pytest.approx(0.5)
    assert support(always(0))["outside"] == pytest.approx(0.5)
    assert support(always(2))["agreement"] == 0 and support(always(2))["outside"] == 1
    assert support(always(2))["log_likelihood"] < support(always(0))["log_likelihood"] < 0


def test_coverage_is_too_thin_where_much_is_outside_or_episodes_are_few() -> None:
    assert held_out.too_thin({"outside": 0.1}, 50) == []
    assert "50%" in held_out.too_thin({"outside": 0.5}, 50)[0]
    assert held_out.too_thin({"outside": 0.1}, 1) == ["1 episode to judge on"]


def test_a_part_of_a_log_is_whole_episodes() -> None:
    log = small_log(torch.arange(20.0)[:, None], torch.zeros(20, 1))._replace(
        starts=torch.tensor([0, 7, 10, 20])
    )
    assert held_out.at_most(log, 20, 0) is log
    part = held_out.at_most(log, 11, 0)
    assert len(part.state) <= 11 and part.episodes >= 1
    assert held_out.at_most(log, 1, 0).episodes == 1
