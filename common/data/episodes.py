"""Where the episodes of a batch end: one rule for what is saved, averaged, exported and imported.

A batch says it in its column `episode`. Where it has none, as batches by hand and older ones, an
episode ends in a terminal state, and where the next transition begins elsewhere; a reset that
begins where the last episode ended does not show then.
"""

import numpy as np

UNFINISHED = -1


def goes_on(next_state: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Whether each next state is, bit by bit, the state of the row that follows, (n, S) -> (n,)."""
    one = np.ascontiguousarray(next_state, np.float32).view(np.uint32)
    other = np.ascontiguousarray(following, np.float32).view(np.uint32)
    return (one == other).all(1)


def breaks(state: np.ndarray, next_state: np.ndarray) -> np.ndarray:
    """Whether the next of N rows begins elsewhere, (N, S), (N, S) -> (N,); of the last, no."""
    return np.append(~goes_on(next_state[:-1], state[1:]), False)


def numbers_of(ended: np.ndarray) -> np.ndarray:
    """The number of each row's episode, from 0; `ended` (N,): with this row -> (N, 1) int64.

    It is UNFINISHED in the last episode where that had not ended.
    """
    numbers = np.zeros((len(ended), 1), np.int64)
    np.cumsum(ended[:-1], out=numbers[1:, 0])  # in place: no second copy is in memory
    if not ended[-1]:
        mark_unfinished(numbers)
    return numbers


def mark_unfinished(numbers: np.ndarray) -> None:
    """The last episode had not ended; in place, (N, 1)."""
    numbers[np.searchsorted(numbers[:, 0], numbers[-1, 0]) :] = UNFINISHED


def ends_of(numbers: np.ndarray) -> np.ndarray:
    """The inverse of `numbers_of`, (N,) -> (N,)."""
    return np.append(numbers[1:] != numbers[:-1], numbers[-1] != UNFINISHED)
