"""How fast everything is, beside the plain code: one table, ratios from interleaved rounds.

    python benchmarks/speed.py [--json FILE] [--figure FILE] [--d3rlpy-python PYTHON]

Made-up transitions of Hopper's, LunarLander's and Atari's sizes, on the CPU. Whatever is compared
runs in short blocks in turn (A B C A B C …), so that whatever else the machine does falls on all of
them; a ratio is of neighbouring blocks: its median (least to most). On one thread the time is the
process's own (CPU time), on more it is the clock's. `plain` is the formulas in eager torch
(eager_*.py). A `floor` is an update's matrix products alone (products.py), or with Adam's kernel;
how many times as fast as `plain` it is, no code with these products can exceed.

d3rlpy, of another environment since it pins an old gymnasium, is a process of its own that is told
to run a block when its turn comes; `make bench` makes that environment.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch
from conftest import load_variant
from torch import Tensor

from benchmarks.d3rlpy_bcq import D3RLPY
from benchmarks.eager_actor_critic import EagerBC, EagerDDPG, EagerTD3BC
from benchmarks.eager_bcq import EagerBCQ
from benchmarks.eager_discrete import EagerDiscrete
from benchmarks.loops import evaluations, stages
from benchmarks.products import products, products_and_adam
from common.data.replay import Batch, ReplayBuffer
from common.errors import InputError
from common.precision import require_bf16, use_precision

STATE_DIM, ACTION_DIM = 11, 3  # Hopper
FRAMES, VECTORS = (4, 84, 84), (8,)
DISCRETE = {FRAMES: (6, 32, 1.0, 8000), VECTORS: (4, 64, 0.005, 1)}  # K, B, tau, freq
PLAIN: dict[str, Any] = {"BCQ": EagerBCQ, "DDPG": EagerDDPG, "TD3_BC": EagerTD3BC, "BC": EagerBC}
BLOCK_SECONDS = 0.15

Work = Callable[[], Any]
Row = dict[str, Any]


def hopper_batch(rows: int) -> Batch:
    """Made-up transitions."""
    state, action, next_state = (
        torch.randn(rows, width) for width in (STATE_DIM, ACTION_DIM, STATE_DIM)
    )
    return Batch(state, action.tanh(), next_state, torch.randn(rows, 1), torch.ones(rows, 1))


def discrete_batch(shape: tuple[int, ...]) -> Batch:
    """As the buffers give it: bytes on Atari, float32 vectors else."""
    actions, rows, *_ = DISCRETE[shape]
    if shape == FRAMES:
        window = torch.randint(0, 256, (rows, 5, 84, 84), dtype=torch.uint8)
        state, next_state = window[:, :-1], window[:, 1:]
    else:
        state, next_state = torch.randn(rows, *shape), torch.randn(rows, *shape)
    action = torch.randint(actions, (rows, 1))
    return Batch(state, action, next_state, torch.randn(rows, 1), torch.ones(rows, 1))


def precisions() -> list[str]:
    """Those that this processor has instructions for."""
    try:
        require_bf16(torch.device("cpu"))
    except InputError as error:
        print(error)
        return ["float32"]
    return ["float32", "bf16"]


def updates(make: Callable[[], Any], batch: Batch, plain: Any = None) -> dict[str, Work]:
    """One update of ours in either precision, and of the plain code."""
    works = {one: partial(use_precision(make(), one).update, batch) for one in precisions()}
    return works | ({"plain": partial(plain.update, *batch)} if plain else {})


def floors(name: str) -> dict[str, Work]:
    """The products of an update in either precision, alone and with Adam."""
    works: dict[str, Work] = {}
    for one in precisions()[: 1 if "vectors" in name else 2]:  # too small for bf16
        works[f"floor {one}"] = products(name, one)
        works[f"floor {one}, Adam"] = products_and_adam(name, one)
    return works


def continuous(name: str, rows: int | None = None, **options: Any) -> dict[str, Work]:
    """Updates of a learner of continuous_BCQ at Hopper's sizes."""
    kind: Any = load_variant("continuous_BCQ").main.ALGORITHMS[name]
    make = partial(kind, STATE_DIM, ACTION_DIM, 1.0, "cpu", **options)
    plain = PLAIN[name](STATE_DIM, ACTION_DIM) if name in PLAIN and not options else None
    return updates(make, hopper_batch(rows or kind.batch_size), plain)


def discrete(name: str, shape: tuple[int, ...]) -> dict[str, Work]:
    """Updates of a learner of discrete_BCQ."""
    kind: Any = load_variant("discrete_BCQ").main.ALGORITHMS[name]
    actions, _, tau, freq = DISCRETE[shape]
    options = {} if name == "BC" else {"tau": tau, "target_update_freq": freq}
    plain = EagerDiscrete(shape, actions, name == "BCQ", tau, freq)
    make = partial(kind, shape, actions, "cpu", **options)
    return updates(make, discrete_batch(shape), plain if name in ("BCQ", "DQN") else None)


def clock() -> float:
    """Seconds: the process's own on one thread, else the wall's."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds(work: Any, times: int) -> float:
    """Of one call, over `times` calls; a process of its own tells its seconds itself."""
    if isinstance(work, D3RLPY):
        return work.seconds(times)
    start = clock()
    for _ in range(times):
        work()
    return (clock() - start) / times


def measure(label: str, works: dict[str, Any], rounds: int) -> Row:
    """Milliseconds of each, in every round, after one that is not counted."""
    times = {name: max(1, int(BLOCK_SECONDS / seconds(work, 2))) for name, work in works.items()}
    values: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            values[name].append(1e3 * seconds(work, times[name]))
    return {"label": label, "threads": torch.get_num_threads(), "milliseconds": values}


def spread(values: list[float], digits: int = 2) -> str:
    """`median (least to most)`."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def shown(row: Row) -> str:
    """A line of the table: medians, and how many times as fast ours is as each other one."""
    values = row["milliseconds"]
    text = f"{row['label']:<26}{row['threads']:>2}"
    text += "".join(f"  {name} {statistics.median(v):.3g}" for name, v in values.items())
    for one, other in compared(list(values)):
        pairs = zip(values[other], values[one], strict=True)
        text += f" | {one} to {other} {spread([a / b for a, b in pairs])}"
    return text


def compared(names: list[str]) -> list[tuple[str, str]]:
    """What is held against what: ours against all but the other's floors, floors against plain."""
    ours = [name for name in ("float32", "bf16") if name in names]
    pairs = [
        (one, other)
        for one in ours
        for other in names
        if other not in ours and (not other.startswith("floor") or f"floor {one}" in other)
    ]
    pairs += [("bf16", "float32")] if len(ours) == 2 else []
    floors = [name for name in names if name.startswith("floor")]
    yardsticks = [name for name in names if name in ("plain", "bare environment")]
    return pairs + [(floor, other) for floor in floors for other in yardsticks]


def parts(rounds: int) -> Iterator[Row]:
    """What an update of BCQ consists of, each part alone."""
    kind = load_variant("continuous_BCQ").BCQ.BCQ
    batch = hopper_batch(100)
    buffer = filled_buffer(10_000)
    states = torch.randn(10, STATE_DIM).numpy()
    works: dict[str, dict[str, Work]] = {}
    for precision in precisions():
        agent = use_precision(kind(STATE_DIM, ACTION_DIM, 1.0, "cpu"), precision)
        target = agent.target_value(batch.next_state, batch.reward, batch.not_done)
        ones = [torch.ones_like(weight) for weight in agent.vae.parameters()]

        def vae(agent: Any = agent) -> None:
            agent.vae_optimizer.minimize(agent.vae.loss(batch.state, batch.action))

        def critic(agent: Any = agent, target: Any = target) -> None:
            loss, _ = agent.critic_loss(batch.state, batch.action, target)
            agent.critic_optimizer.minimize(loss)

        def adam(agent: Any = agent, ones: list[Tensor] = ones) -> None:
            pairs = zip(ones, agent.vae.parameters(), strict=True)
            agent.vae_optimizer.minimize(sum((one * weight).sum() for one, weight in pairs))

        def move(agent: Any = agent) -> None:
            agent.critic_soft_update(agent.tau)
            agent.actor_soft_update(agent.tau)

        def actor(agent: Any = agent) -> None:
            agent.actor_optimizer.minimize(agent.actor_loss(batch.state))

        next_state, reward, not_done = batch.next_state, batch.reward, batch.not_done
        named: dict[str, Work] = {
            "VAE, with its step": vae,
            "target": partial(agent.target_value, next_state, reward, not_done),
            "critics, with their step": critic,
            "actor, with its step": actor,
            "Adam alone, of the VAE": adam,
            "target networks": move,
            "acting, in 10 states": partial(agent.select_action, states),
        }
        for name, work in named.items():
            works.setdefault(name, {})[precision] = work
    for name, both in works.items():
        yield measure(f"  {name}", both, rounds)
    yield measure("  sampling 100 of 10,000", {"float32": partial(buffer.sample, 100)}, rounds)


def filled_buffer(rows: int) -> ReplayBuffer:
    """A replay buffer with so many made-up transitions."""
    buffer = ReplayBuffer(STATE_DIM, ACTION_DIM, "cpu", rows)
    while buffer.added < rows:
        batch = hopper_batch(min(rows - buffer.added, 1_000_000))
        buffer.extend({"first": buffer.added} | batch._asdict())
    return buffer


def growth(rounds: int) -> Iterator[Row]:
    """How the cost of an update grows, and of a sample with the buffer."""
    for rows in (25, 100, 400, 1600):
        works = continuous("BCQ", rows, target_candidates=10)
        yield measure(f"  batch {rows}", works, rounds) | {"of": "batch", "x": rows}
    for candidates in (1, 10, 100):
        works = continuous("BCQ", target_candidates=candidates)
        row = measure(f"  candidates {candidates}", works, rounds)
        yield row | {"of": "candidates", "x": candidates}
    for rows in (10**4, 10**5, 10**6, 10**7):
        buffer = filled_buffer(rows)
        row = measure(f"  buffer {rows:,}", {"float32": partial(buffer.sample, 100)}, rounds)
        columns = buffer.rows(0)
        size = rows * sum(one.element_size() * one.shape[1] for one in columns)
        yield row | {"of": "buffer", "x": rows, "megabytes": size / 1e6}
        del buffer


def table(python: Path | None, rounds: int, threads: list[int]) -> Iterator[tuple[str, Row]]:
    """All sections, row by row."""
    other = D3RLPY(python, threads[0]) if python else None
    bcq = continuous("BCQ") | floors("BCQ") | ({"d3rlpy": other} if other else {})
    yield "update", measure("BCQ, Hopper", bcq, rounds + 4)
    if other:
        other.close()
    for name in ("DDPG", "TD3_BC", "BC", "VAE_BC", "DQN", "BEAR"):
        works = continuous(name) | (floors(name) if name in ("DDPG", "TD3_BC") else {})
        yield "update", measure(f"{name}, Hopper", works, rounds)
    for name in load_variant("discrete_BCQ").main.ALGORITHMS:
        yield "update", measure(f"{name}, Atari", discrete(name, FRAMES), rounds)
    for name in ("BCQ", "DQN"):
        works = discrete(name, VECTORS) | floors(f"{name}, vectors")
        yield "update", measure(f"{name}, vectors", works, rounds)
    yield from zip(cycle(["parts of BCQ's update"]), parts(rounds))
    yield from zip(cycle(["growth"]), growth(max(3, rounds // 2)))
    for label, works in (*evaluations(precisions()), *stages()):
        yield "evaluation and stages", measure(label, works, max(3, rounds // 2))
    for count in threads[1:]:
        torch.set_num_threads(count)
        again = D3RLPY(python, count) if python else None
        bcq = continuous("BCQ") | floors("BCQ") | ({"d3rlpy": again} if again else {})
        yield "threads", measure("BCQ, Hopper", bcq, rounds)
        yield "threads", measure("DDPG, Hopper", continuous("DDPG") | floors("DDPG"), rounds)
        yield "threads", measure("BCQ, Atari", discrete("BCQ", FRAMES), rounds)
        if again:
            again.close()


def draw(rows: list[Row], path: Path) -> None:
    """The growth: milliseconds over batch, candidates and buffer."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    names = {
        "batch": "B, transitions an update", "candidates": "n, candidates in the target",
        "buffer": "transitions in the buffer",
    }  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    for axis, (of, label) in zip(axes, names.items(), strict=True):
        points = [row for row in rows if row.get("of") == of]
        for name in ("float32", "bf16"):
            here = [row for row in points if name in row["milliseconds"]]
            if here:
                heights = [statistics.median(row["milliseconds"][name]) for row in here]
                axis.plot([row["x"] for row in here], heights, marker="o", label=name)
        axis.set(xscale="log", xlabel=label)
        if of == "buffer":  # hardly grows: a log scale would show nothing else
            axis.set(ylim=(0, None), ylabel="ms a sample of 100")
        else:
            axis.set(yscale="log", ylabel="ms an update of BCQ")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:g}"[0] in "25" else "")
        axis.legend(frameon=False)
    figure.savefig(path, dpi=120)


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--d3rlpy-python", type=Path, help="python of an environment with d3rlpy")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="counts (1 2)")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each (7)")
    parser.add_argument("--json", type=Path, help="write every block's milliseconds there")
    parser.add_argument("--figure", type=Path, help="draw the growth there")
    arguments = parser.parse_args()
    python = arguments.d3rlpy_python
    if python is None or not python.exists():
        print(f"without d3rlpy ({python or '--d3rlpy-python'} not found); what follows is the rest")
        python = None
    torch.set_num_threads(arguments.threads[0])
    torch.manual_seed(0)
    machine = f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}"
    print(f"{machine}; milliseconds and, as median (least to most), how many times as fast")
    section, rows = "", []
    for title, row in table(python, arguments.rounds, arguments.threads):
        if title != section:
            print(f"\n{title}; threads, milliseconds | ours in this precision to that, times")
            section = title
        print(shown(row), flush=True)
        rows.append(row | {"section": title})
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
