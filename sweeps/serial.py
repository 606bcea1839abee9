"""A sweep on one machine, one run after another: nothing is needed for it but the repository."""

from sweeps.finished import finished
from sweeps.graph import Graph
from sweeps.process import Killed, run_stage
from sweeps.progress import Board
from sweeps.stage import FAILED, Outcome, Stage, blocked


def run(graph: Graph, board: Board, threads: int) -> None:
    """Every stage in the graph's order; `board` holds what was finished before.

    A failing run does not stop the others; what needs its result is not run.
    Raises: KeyboardInterrupt; the stage that was running can then go on.
    """
    ahead = list(graph.stages.values())
    while ahead or graph.choices:
        for stage in ahead:
            if stage.name in board.outcomes:
                continue
            board.end(
                blocked(stage, [board.outcomes[need] for need in stage.needs])
                or _run(stage, board, threads)
            )
        ahead = graph.decide(board.outcomes)
        board.expect(ahead)
        board.skip(filter(None, map(finished, ahead)))


def _run(stage: Stage, board: Board, threads: int) -> Outcome:
    board.start(stage)
    board.tick()
    try:
        return run_stage(stage, threads, board.tick)
    except Killed as error:
        return Outcome(stage.name, FAILED, why=f"{error}: the same command goes on")
