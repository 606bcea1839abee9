"""A signal within an episode that does not end: seconds, and then exactly on from there."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from kills import differing
from test_resume import CARTPOLE, CONTINUOUS, DISCRETE, TRAIN, done, run
from toy_envs import Reach

from common.data.frames import FrameBuffer
from common.environment import rollout
from common.resume.checkpoint import Checkpoint


class Endless(Reach):
    """As Reach; registered without a limit, so that an episode takes 100,000 steps."""


class Spin(gym.Env[np.ndarray, Any]):
    """Two actions, no end, and a drift drawn at every step."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.x.astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x[action] = 0.9 * self.x[action] + self.np_random.normal()
        return self.x.astype(np.float32), -float(np.abs(self.x).sum()), False, False, {}


class Remembers(Endless):
    """Keeps a count of its own from episode to episode, which pays a reward."""

    made: ClassVar[int] = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        Remembers.made += 1
        return super().reset(seed=seed)

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state, reward, *ends = super().step(action)
        return state, reward + self.made, *ends  # type: ignore[return-value]


gym.register("ToyEndless-v0", "test_endless:Endless")
gym.register("ToySpin-v0", "test_endless:Spin")
gym.register("ToyRemembers-v0", "test_endless:Remembers")
GENERATE = ["--generate_buffer", "--max_timesteps", "150", "--buffer_name", "Made"]
ENDLESS = ["--env", "ToyEndless-v0", "--acting_candidates", "3"]
SPIN = ["--env", "ToySpin-v0"]
CASES: dict[str, tuple[Any, list[str]]] = {
    "continuous train": (CONTINUOUS, [*ENDLESS, *TRAIN]),
    "continuous generate": (CONTINUOUS, [*ENDLESS, *GENERATE]),
    "discrete train": (DISCRETE, [*SPIN, *TRAIN]),
    "discrete generate": (DISCRETE, [*SPIN, *GENERATE, "--low_noise_p", "0.5"]),
    "Hopper": (CONTINUOUS, ["--env", "Hopper-v4", *TRAIN]),
    "CartPole": (DISCRETE, [*CARTPOLE, *TRAIN]),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations that end, unlike a stage of so few steps; no waiting for an episode's end."""
    monkeypatch.setattr("common.resume.checkpoint.PATIENCE", 0)
    monkeypatch.setattr("common.environment.making.EPISODE_STEPS", 170)


def stopped_within(
    monkeypatch: pytest.MonkeyPatch, main: Any, folder: Path, argv: list[str], *after: int
) -> str:
    """Stop the run so many steps after it begins or goes on, each time; what the last one said."""
    step = rollout.EpisodeUnderWay.step
    for count in after:
        taken = 0

        def counted(self: Any, *given: Any, count: int = count) -> Any:
            nonlocal taken
            taken += self._saved is None
            if taken == count:
                os.kill(os.getpid(), signal.SIGTERM)
            assert taken <= count + 1, "it went on"
            return step(self, *given)

        with monkeypatch.context() as patched:
            patched.setattr(rollout.EpisodeUnderWay, "step", counted)
            assert run(main, folder, *argv).status == 143
    return done(run(main, folder, *argv)).out


QUICK = ["continuous train", "discrete generate", "Hopper"]


@pytest.mark.parametrize(
    "case",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_a_signal_within_an_episode_saves_there_and_the_run_ends_as_one_never_stopped(
    case: str, tmp_path: Path, monkeypatch: Any
) -> None:
    main, argv = CASES[case]
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    for folder in folders:
        if "generate" in case:
            done(run(main, folder, *CASES[case.replace("generate", "train")][1]))
    done(run(main, folders[0], *argv))
    out = stopped_within(monkeypatch, main, folders[1], argv, 50, 80)
    assert "goes on where it stopped" in out and "given up" not in out
    assert differing(*folders) == []


@pytest.mark.slow
def test_so_does_atari_with_its_sticky_actions(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("common.environment.doors.ATARI_STEPS", 40)
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    pong = ["--env", "PongNoFrameskip-v0", *TRAIN, "--max_timesteps", "60", "--buffer_size", "30"]
    done(run(DISCRETE, folders[0], *pong))
    stopped_within(monkeypatch, DISCRETE, folders[1], pong, 35, 40)
    assert differing(*folders) == []


def test_a_signal_while_stage_1_evaluates_ends_it_at_once_and_it_is_evaluated_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    folders = [tmp_path / "whole", tmp_path / "stopped"]
    argv = [*ENDLESS, *TRAIN]
    done(run(CONTINUOUS, folders[0], *argv))
    play = rollout.play
    for number in [1, 2, 1]:  # at the first evaluation, at the second, and at the last
        calls = 0

        def signalled(*given: Any, number: int = number) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGTERM)
                raise AssertionError("it went on")
            return play(*given)

        with monkeypatch.context() as patched:
            patched.setattr(rollout, "play", signalled)
            assert run(CONTINUOUS, folders[1], *argv).status == 143
    done(run(CONTINUOUS, folders[1], *argv))
    assert differing(*folders) == []


def test_a_checkpoint_waits_for_the_end_of_an_episode_but_not_for_long(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("common.resume.checkpoint.PATIENCE", 5)
    clock = 1000.0
    monkeypatch.setattr("common.resume.checkpoint.time.monotonic", lambda: clock)
    args = CONTINUOUS.parse_args(["--checkpoint_minutes", "2"])
    checkpoint = Checkpoint(args)
    checkpoint._saved, waited = clock, []
    for clock in [1119.0, 1124.0, 1126.0]:  # noqa: B007 - what monotonic gives
        waited.append(checkpoint.overdue)
    assert waited == [False, False, True]
    clock = checkpoint._saved = 2000.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "_patient", True)
        checkpoint._hear(signal.SIGTERM, None)
    for clock in [2004.0, 2006.0]:  # noqa: B007
        waited.append(checkpoint.overdue)
    assert waited[3:] == [False, True]
    assert not Checkpoint().overdue


def test_an_episode_that_leads_elsewhere_is_given_up_and_begun_again_deterministically(
    tmp_path: Path, monkeypatch: Any
) -> None:
    argv = ["--env", "ToyRemembers-v0", *TRAIN, "--buffer_size", "500"]
    monkeypatch.setattr(Remembers, "made", 0)
    folders = [tmp_path / "one", tmp_path / "other"]
    with monkeypatch.context() as patched:
        step, taken = rollout.EpisodeUnderWay.step, 0

        def counted(*given: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken == 90:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(*given)

        patched.setattr(rollout.EpisodeUnderWay, "step", counted)
        assert run(CONTINUOUS, folders[0], *argv).status == 143
    shutil.copytree(folders[0], folders[1])
    for folder in folders:
        Remembers.made = 100  # in another process it would be another number, too
        out = done(run(CONTINUOUS, folder, *argv)).out
        assert "ToyRemembers-v0 is no longer as it was at step 90, within an episode" in out
        assert "given up and begun again" in out
    assert differing(*folders) == []
    state = np.load(folders[0] / "buffers" / "Robust_ToyRemembers-v0_0_state.npy")
    assert len(state) == 160 and np.array_equal(state[90], state[0])


def test_frames_of_an_episode_that_was_given_up_stay_its_own(tmp_path: Path) -> None:
    def frame(number: int) -> np.ndarray:
        return np.stack([np.full((3, 3), max(0, number - 1)), np.full((3, 3), number)]).astype("u1")

    given_up, ended = (FrameBuffer((2, 3, 3), "cpu", 10) for _ in range(2))
    for buffer in (given_up, ended):
        for number in range(4):
            cut = buffer is ended and number == 3
            buffer.add(frame(number), 0, frame(number + 1), 0.0, False, cut)
    given_up.cut()
    for buffer in (given_up, ended):
        for number in range(50, 53):
            buffer.add(frame(number), 0, frame(number + 1), 0.0, False, False)
    for one, other in zip(given_up.rows(range(7)), ended.rows(range(7)), strict=True):
        assert np.array_equal(one, other)
    given_up.cut()
    given_up.cut()
    given_up.save(tmp_path / "b")
