"""D4RL's normalised score: 0 is a random policy's return, 100 an expert's.

Source: Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", 2020 (arXiv
2004.07219), section 5 for the formula; the returns are those of its released code (infos.py).
"""

import re

# Undiscounted returns of (a random policy, an expert), by the environment of the data sets.
RETURNS = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "antmaze": (0.0, 1.0),
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "door": (-56.512833, 2880.5693087298737),
    "relocate": (-6.425911, 4233.877797728884),
    "kitchen": (0.0, 4.0),
}


def family(env_id: str) -> str | None:
    """The key of `RETURNS` for an environment id of any version; None where there is none.

    `Hopper-v4`, `Hopper-v5`, `hopper-medium-v2` -> `hopper`; `AdroitHandPen-v1` -> `pen`. Tasks
    that pay other rewards (D4RL's dense mazes, Adroit's sparse ones) have no reference here, nor
    have gymnasium-robotics' mazes and kitchen, whose episodes go on after the goal.
    """
    name = re.sub(r"-v\d+$", "", env_id.rsplit("/", 1)[-1].rsplit(":", 1)[-1]).lower()
    name = name.removeprefix("adroithand")
    if "dense" in name or "sparse" in name:
        return None
    return next((key for key in RETURNS if name == key or name.startswith(f"{key}-")), None)


def normalized_score(env_id: str, raw_return: float) -> float | None:
    """100·(R − R_random)/(R_expert − R_random); None for an environment without references."""
    key = family(env_id)
    if key is None:
        return None
    random, expert = RETURNS[key]
    return 100 * (raw_return - random) / (expert - random)
