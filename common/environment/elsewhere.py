"""Ids that gymnasium itself does not know: whose they are, and what to do."""

import importlib.util
import re

from common.environment.scores import RETURNS

# By how the ids of a package begin: the package as pip names it, and the module to import.
PACKAGES = {
    "Fetch|HandReach|HandManipulate|AdroitHand|FrankaKitchen|PointMaze_|AntMaze_": (
        "gymnasium-robotics",
        "gymnasium_robotics",
    ),
    "MiniGrid-|BabyAI-": ("minigrid", "minigrid"),
    "MiniWorld-": ("miniworld", "miniworld"),
    "dm_control/": ("shimmy[dm-control]", "shimmy"),
    "Meta-World/": ("metaworld", "metaworld"),
    "mo-": ("mo-gymnasium", "mo_gymnasium"),
    "Panda": ("panda-gym", "panda_gym"),
    "highway|merge-v|roundabout-v|parking-v|intersection-v|racetrack": (
        "highway-env",
        "highway_env",
    ),
    "Vizdoom": ("vizdoom", "vizdoom.gymnasium_wrapper"),
}
KINDS = "random|medium|expert|replay|human|cloned|umaze|large|complete|partial|mixed|dense|simple"
# D4RL's data sets that need gymnasium-robotics, and the others, by how their names begin.
D4RL = "|".join({*RETURNS, "maze2d", "antmaze"})
TASKS = {"halfcheetah": "HalfCheetah-v4", "hopper": "Hopper-v4", "walker2d": "Walker2d-v4",
         "ant": "Ant-v4"}  # fmt: skip


def advice(env_id: str) -> str | None:
    """What to do where `env_id` is no environment here but something else; None where unknown."""
    name = env_id.rpartition(":")[2]
    if re.fullmatch(rf"({D4RL})-.*({KINDS}).*-v\d+", name):
        env = TASKS.get(name.partition("-")[0], "the id of its task")
        return (
            "it is the name of a data set of D4RL: fetch its file, then `python import_dataset.py "
            f"--d4rl FILE.hdf5 --env {env}` makes a batch of it, and --env is {env}"
        )
    if name.count("/") > 1 or (
        name.startswith("D4RL/") or re.fullmatch(rf"[a-z0-9_-]+/.*({KINDS}).*-v\d+", name)
    ):
        return (
            f"it is the id of a data set of Minari: `python import_dataset.py --minari {name}` "
            "makes a batch of it, and says which --env learns from that"
        )
    if name.startswith("MinAtar/") and importlib.util.find_spec("minatar") is None:
        return "it is of the package MinAtar: `pip install -r requirements-minatar.txt`"
    for begins, (package, module) in PACKAGES.items():
        if re.match(begins, name):
            there = importlib.util.find_spec(module.partition(".")[0]) is not None
            install = "" if there else f"`pip install {package}`, then "
            return f"it is of the package {package}: {install}--env {module}:{name}"
    return None
