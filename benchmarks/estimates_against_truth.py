"""What estimates from a batch alone are worth, where a simulator can tell the truth.

    python benchmarks/estimates_against_truth.py --folder DIR --task Pendulum-v1 --out FILE.json
    python benchmarks/estimates_against_truth.py --draw results/reference/estimates

DIR/NAME/ holds models/ and results/ of one policy each, DIR/buffers the batch Log they learned
from (continuous_BCQ/README.md and discrete_BCQ/README.md have the commands). A policy that the
output has already is passed over, so that a stopped run goes on.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.environment import rollout  # noqa: E402
from common.errors import InputError, run  # noqa: E402
from common.files import Folders, read_json, replacing, write_json  # noqa: E402

DISCRETE = {"CartPole-v1"}
EPISODES = 20  # played a policy, side by side, without a time limit, until γ^t < 0.001
SEED = 1000  # of the played episodes; the batch has other ones


def truth(agent: Any, make_env: Any, discount: float) -> np.ndarray:
    """Discounted returns of the policy from the environment's own starts, (EPISODES,)."""
    envs = [make_env(max_episode_steps=-1) for _ in range(EPISODES)]
    with rollout.preserved_generators(SEED):
        states = [env.reset(seed=SEED + i)[0] for i, env in enumerate(envs)]
        act = agent.select_action
        return rollout.play(act, envs, states, act(np.stack(states)), discount).returns


def policies(folder: Path, task: str) -> dict[str, Path]:
    """The saved agents of a task, by a name that says which."""
    kind = task.split("-")[0]
    found = {path.parent.parent.name: path for path in folder.glob(f"{kind}_*/models/*_0.pt")}
    found |= {
        f"behaviour{'_best' if path.stem.endswith('best') else ''}": path
        for path in (folder / "models").glob(f"behavioral_{task}_0*.pt")
    }
    return dict(sorted(found.items()))


def measure(args: argparse.Namespace) -> None:
    """Estimate and truth of every policy of the task that the output does not have yet."""
    from common.run import logs  # after the variant's folder is on the path

    sys.path.insert(0, str(ROOT / ("discrete_BCQ" if args.task in DISCRETE else "continuous_BCQ")))
    main = __import__("main")
    done = read_json(args.out) if args.out.exists() else {}
    for name, path in policies(args.folder, args.task).items():
        if name in done:
            continue
        behaviour = name.startswith("behaviour")
        words = ["--env", args.task, "--model", str(path), "--buffer_name", "Log", "--estimate"]
        words += ["--algorithm", main.BEHAVIOURAL] if behaviour else []
        settings = main.parse_args(words)
        settings.device, settings.output_dir = "cpu", args.folder
        for flag, value in logs.DEFAULTS.items():
            setattr(settings, flag, value)
        settings.held_out, settings.estimate_iterations = args.held_out, args.iterations
        settings.estimate_rows = args.rows
        folders = Folders(args.folder, args.task, 0)
        # BCQ acts with the paper's 10 candidates here: a tenth of the time.
        settings.acting_candidates = 10
        typed = {"held_out", "acting_candidates", *(["algorithm"] if behaviour else [])}
        agent, env, _ = main.saved_agent(settings, folders, typed=typed)
        replay_buffer = main.load_batch(settings, folders.buffer("Log"), env)
        judge, _ = logs.held_out(agent, env, settings, replay_buffer)
        figures: dict[str, Any] = judge()
        if args.task in DISCRETE:
            figures["wis"] = list(judge.importance(settings.discount, 0))
        returns = truth(agent, partial(main.make_env, args.task), settings.discount)
        own = judge.parts.judged.discounted_returns(settings.discount)
        error = float(returns.std(ddof=1) / np.sqrt(len(returns)))
        figures |= {"true": float(returns.mean()), "error": error, "batch": float(own.mean())}
        done[name] = figures
        with replacing(args.out) as [temporary]:
            write_json(temporary, done)
        print(
            f"{name:<24} true {figures['true']:9.3f}  estimate {figures['value']:9.3f}", flush=True
        )


def summary(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Rank correlation, coverage of the intervals, and the mean error, of one task."""
    true, value = (np.array([one[key] for one in found.values()]) for key in ("true", "value"))
    # The truth has an error of its own, which counts as part of the interval.
    inside = [
        one["low"] - 2 * one["error"] <= one["true"] <= one["high"] + 2 * one["error"]
        for one in found.values()
    ]
    return {
        "policies": len(true),
        "spearman": float(spearmanr(true, value).statistic),
        "coverage": float(np.mean(inside)),
        "mean_error": float(np.abs(true - value).mean()),
        "range": float(np.ptp(true)),
    }


def draw(folder: Path) -> None:
    """The scatter of all tasks of a folder, and a table of what it shows."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise InputError(f"{folder} has no .json of this script's --out")
    figure = Figure(figsize=(3.3 * len(paths), 3.1), layout="constrained")
    every = figure.subplots(1, len(paths), squeeze=False)[0]
    print("| task | policies | Spearman | interval holds the truth | mean error | range |")
    print("|---|---:|---:|---:|---:|---:|")
    for axes, path in zip(every, paths, strict=True):
        found = read_json(path)
        told = summary(found)
        print(
            f"| {path.stem} | {told['policies']} | {told['spearman']:.2f} | {told['coverage']:.0%} "
            f"| {told['mean_error']:.3g} | {told['range']:.3g} |"
        )
        thin = np.array([one["outside"] > 0.2 for one in found.values()])
        for select, colour, label in (
            (~thin, "#0072B2", "FQE"),
            (thin, "#D55E00", "FQE, too thin"),
        ):
            some = [one for one, chosen in zip(found.values(), select, strict=True) if chosen]
            if some:
                x, y, low, high, error = (
                    np.array([one[key] for one in some])
                    for key in ("true", "value", "low", "high", "error")
                )
                bars = {"yerr": [y - low, high - y], "xerr": 2 * error}
                look = {"fmt": "o", "markersize": 4, "linewidth": 0, "elinewidth": 1}
                axes.errorbar(x, y, **bars, **look, color=colour, label=label)
        wis = [(one["true"], one["wis"][0]) for one in found.values() if "wis" in one]
        if wis:
            axes.plot(*zip(*wis, strict=True), "x", color="#999999", markersize=5, label="WIS")
        ends = [min(one["true"] for one in found.values()), max(o["true"] for o in found.values())]
        axes.plot(ends, ends, ":", color="#555555", linewidth=1)
        axes.set_title(f"{path.stem}: Spearman {told['spearman']:.2f}", fontsize=9)
        axes.set_xlabel("discounted return, played")
        axes.legend(fontsize=7, frameon=False)
    every[0].set_ylabel("estimate from the batch alone")
    with replacing(folder / "estimates.png") as [temporary]:
        figure.savefig(temporary, format="png", dpi=160)
    print(f"saved {folder / 'estimates.png'}")


def main() -> None:
    """Measure one task, or draw all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--folder", type=Path, help="where the policies and the batch lie")
    parser.add_argument("--task", help="gymnasium id")
    parser.add_argument("--out", type=Path, help=".json of the figures; goes on where it stopped")
    parser.add_argument("--held_out", type=float, default=0.1)
    parser.add_argument("--iterations", type=int, default=2500)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--draw", type=Path, help="folder of such .json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.draw:
        draw(args.draw)
    else:
        measure(args)


if __name__ == "__main__":
    run(main)
