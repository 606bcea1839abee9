"""D4RL's score: the formula, the constants, and which environments have them."""

import pytest

from common.environment.scores import RETURNS, family, normalized_score


@pytest.mark.parametrize(
    ("env_id", "raw", "score"),
    [
        ("Hopper-v4", -20.272305, 0.0),
        ("Hopper-v4", 3234.3, 100.0),
        ("Hopper-v5", 1607.0138475, 50.0),  # half way
        ("halfcheetah-medium-v2", 12135.0 + 12415.178953, 200.0),
        ("Ant-v4", -325.6 - 4205.3, -100.0),
        ("maze2d-umaze-v1", 161.86, 100.0),
        ("kitchen-mixed-v0", 1.0, 25.0),
        ("AdroitHandPen-v1", 3076.8331017826877, 100.0),
    ],
)
def test_a_score_is_0_for_random_and_100_for_an_expert(
    env_id: str, raw: float, score: float
) -> None:
    assert normalized_score(env_id, raw) == pytest.approx(score, abs=1e-9)


def test_the_reference_returns_are_d4rls() -> None:
    assert RETURNS == {
        "halfcheetah": (-280.178953, 12135.0),
        "hopper": (-20.272305, 3234.3),
        "walker2d": (1.629008, 4592.3),
        "ant": (-325.6, 3879.7),
        "maze2d-umaze": (23.85, 161.86),
        "maze2d-medium": (13.13, 277.39),
        "maze2d-large": (6.7, 273.99),
        "antmaze": (0, 1),
        "pen": (96.262799, 3076.8331017826877),
        "hammer": (-274.856578, 12794.134825156867),
        "door": (-56.512833, 2880.5693087298737),
        "relocate": (-6.425911, 4233.877797728884),
        "kitchen": (0, 4),
    }


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("Walker2d-v1", "walker2d"),
        ("Ant-v4", "ant"),
        ("antmaze-umaze-diverse-v2", "antmaze"),  # not the ant
        ("maze2d-large-v1", "maze2d-large"),
        ("mujoco:HalfCheetah-v4", "halfcheetah"),
        ("door-human-v1", "door"),
    ],
)
def test_the_family_is_found_whatever_the_version(env_id: str, expected: str) -> None:
    assert family(env_id) == expected


@pytest.mark.parametrize(
    "env_id",
    ["Pendulum-v1", "CartPole-v1", "ALE/Pong-v5", "PongNoFrameskip-v0", "maze2d-umaze-dense-v1",
     "AdroitHandPenSparse-v1", "AntMaze_UMaze-v4", "Pusher-v5", "Antler-v0", "", "-v4"],
)  # fmt: skip
def test_where_there_is_no_reference_there_is_no_score(env_id: str) -> None:
    assert normalized_score(env_id, 100.0) is None
