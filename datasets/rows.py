"""Logged rows -> transitions: which row is followed by which, and which has no successor.

Source: Fu et al., D4RL, 2020 (arXiv 2004.07219), whose files these rules are for.

A row is one step: a state, what was done in it, and whether the episode ended there. Its successor
is the next row of the same episode, never the first of the next. So a row that a time limit cut has
none, unless the data hold next states, and is dropped; a terminal row is kept, for its next state
is never used (its own stands in its place).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from common.errors import InputError
from datasets.reading import flags, numbers
from datasets.task import NO_LIMIT, Task

NO_SUCCESSOR = "ended by time-out, and the data hold no next state"
UNFINISHED = "the last row, and the data hold no next state"
BAD = "NaN or infinity in it or in its next state (--drop_bad_rows)"

SHOWN = 5  # row numbers in a message
ROUNDING = 1e-6  # of a next state beside the next row's state, relative and absolute

Columns = dict[str, np.ndarray]


class Transitions(NamedTuple):
    """The columns of a batch as numpy arrays: (n, S), (n, A), (n, S), (n, 1), (n, 1)."""

    state: np.ndarray
    action: np.ndarray
    next_state: np.ndarray
    reward: np.ndarray
    not_done: np.ndarray


class Rows(NamedTuple):
    """n rows in the order they were logged.

    number (n,): where each stands in the source; state (n, S), action (n, A) as the environment
    takes it, reward (n, 1); terminated, truncated (n,) bool, never both; next_state
    (n, S), or None where it is the state of the row after.
    """

    number: np.ndarray
    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_state: np.ndarray | None

    @property
    def finite_columns(self) -> dict[str, np.ndarray]:
        """By column, (n,): whether every number of it is one in a row."""
        columns = {"state": self.state, "action": self.action, "reward": self.reward}
        if self.next_state is not None:
            columns["next_state"] = self.next_state
        return {name: np.isfinite(column).all(1) for name, column in columns.items()}

    @property
    def finite(self) -> np.ndarray:
        """(n,): whether every number of the row is one."""
        return np.all([*self.finite_columns.values()], 0)


def logged(
    blocks: Iterable[Columns],
    what: str,
    unit: str,
    names: dict[str, str],
    task: Task,
    notes: list[str],
) -> Iterator[Rows]:
    """Blocks of columns as a file holds them -> `Rows`.

    The columns are state, action, reward, and of terminated, truncated, episode (an id a row) and
    next_state those that there are; `names` is what the file calls them, and `unit` a row. Without
    truncated and episode, the environment's step limit splits episodes, and a note says so. A row
    whose next state is not the next row's state ends its episode, whatever else is there.

    Raises: InputError for columns that are no numbers, or do not fit the environment.
    """
    seen: set[object] = set()
    steps = 0
    unmarked = "truncated" not in names and "episode" not in names
    by_limit = unmarked and task.limit != NO_LIMIT
    if unmarked and not by_limit:
        notes.append("no truncated or episode column: an episode ends where terminated is 1 alone")
    elif by_limit:
        notes.append(
            f"no {'timeouts' if names['state'] == 'observations' else 'truncated or episode'} "
            f"column: episodes are split at {task.env_id}'s limit of {task.limit:,} steps"
        )
    if "terminated" not in names:
        notes.append("no terminated column: the end of every episode counts as a time-out")
    apart, cut, rounded = 0, _Cut(), {name: Rounded() for name in ("state", "reward")}
    for columns, following in _with_the_next(blocks):
        rows = as_rows(columns, what, names, task)
        for name, column in rounded.items():
            column.add(columns[name])
        truncated = rows.truncated
        if "episode" in names:
            named = f"{what}: {names['episode']}"
            truncated = truncated | _last_of_its_episode(named, unit, columns, following, seen)
        if rows.next_state is not None:
            after = None if following is None else task.states(what, following["state"][:1])
            elsewhere = _begins_elsewhere(rows.state, rows.next_state, after)
        else:
            elsewhere = np.zeros(len(rows.state), bool)
        if by_limit:
            ended = rows.terminated | truncated | elsewhere
            steps, at_the_limit = _at_the_limit(ended, task.limit, steps)
            truncated = truncated | at_the_limit
        apart += int((elsewhere & ~truncated & ~rows.terminated).sum())
        truncated = truncated | elsewhere
        if unmarked:
            cut.add(truncated & ~rows.terminated, rows.terminated)
            if following is None and rows.next_state is not None and cut.age == cut.longest:
                truncated[-1] = True  # as long as those that were cut
        yield rows._replace(truncated=truncated & ~rows.terminated)
    for name, column in rounded.items():
        notes += column.notes(names[name])
    if apart:
        notes.append(
            f"{apart:,} episodes end by {names['next_state']} alone: the next row begins elsewhere"
        )


def as_rows(columns: Columns, what: str, names: dict[str, str], task: Task) -> Rows:
    """A block of columns, see `logged` -> `Rows` that end where its flags say so.

    A block without rows shows whether a file fits before any of it is read. Raises: InputError.
    """

    def named(column: str) -> str:
        return f"{what}: {names.get(column, column)}"

    state = task.states(named("state"), columns["state"])
    terminated, truncated = (
        flags(named(name), columns[name]) if name in names else np.zeros(len(state), bool)
        for name in ("terminated", "truncated")
    )
    next_state = None
    if "next_state" in names:
        next_state = task.states(named("next_state"), columns["next_state"])
        unknown = terminated & ~np.isfinite(next_state).all(1)
        next_state[unknown] = state[unknown]
    action = task.actions(named("action"), columns["action"])
    reward = one_a_row(named("reward"), columns["reward"])
    return Rows(columns["number"], state, action, reward, terminated, truncated, next_state)


def _with_the_next(blocks: Iterable[Columns]) -> Iterator[tuple[Columns, Columns | None]]:
    """Every block with the one that follows it."""
    held = None
    for block in chain(blocks, [None]):
        if held is not None:
            yield held, block
        held = block


def _last_of_its_episode(
    what: str, unit: str, columns: Columns, following: Columns | None, seen: set[object]
) -> np.ndarray:
    """(n,): whether the next row has another id, or there is none.

    Raises: InputError where an id is missing, or comes back after another's rows.
    """
    episode = columns["episode"]
    if episode.size != len(episode):
        raise InputError(f"{what} has shape {episode.shape}, not one id a row")
    ids = episode.reshape(-1)
    missing = ids != ids  # NaN is not itself
    if ids.dtype.kind in "SU":
        missing = np.isin(np.char.lower(np.char.strip(ids)), np.array(["", "nan"], ids.dtype.kind))
    if missing.any():
        where = ", ".join(map(str, columns["number"][missing][:SHOWN]))
        more = " and others" if missing.sum() > SHOWN else ""
        raise InputError(f"{what} is empty or NaN in {unit} {where}{more}: give every row its id")
    after = following["episode"].reshape(-1)[:1] if following else ids[:0]
    last = np.append(ids[1:] != ids[:-1], ids[-1] != after if len(after) else True).astype(bool)
    for one in ids[last].tolist():
        if one in seen:
            raise InputError(
                f"{what} {one} comes back after rows of another episode: sort the rows by episode"
            )
        seen.add(one)
    return last


class Rounded:
    """Columns whose changes from row to row float32 cannot tell: a Unix time, a large counter."""

    def __init__(self) -> None:
        self.changes: np.ndarray | None = None
        self.lost: np.ndarray | None = None
        self._last: np.ndarray | None = None

    def add(self, column: np.ndarray) -> None:
        """Rows as logged, in order, (n,) or (n, w)."""
        exact = np.can_cast(column.dtype, np.float32)
        if column.dtype.kind not in "iuf" or exact or not len(column):
            return
        rows = column.reshape(len(column), -1)
        if self._last is not None and self._last.shape[1] == rows.shape[1]:
            rows = np.concatenate([self._last, rows])
        self._last = rows[-1:].copy()
        with np.errstate(over="ignore", invalid="ignore"):
            held = rows.astype(np.float32)
        changed = rows[1:] != rows[:-1]
        lost = changed & (held[1:] == held[:-1])
        if self.changes is None or self.lost is None:
            self.changes, self.lost = changed.sum(0), lost.sum(0)
        elif len(self.changes) == rows.shape[1]:
            self.changes, self.lost = self.changes + changed.sum(0), self.lost + lost.sum(0)

    def notes(self, name: str) -> list[str]:
        """A line for each column that loses more than half of them."""
        if self.changes is None or self.lost is None:
            return []
        return [
            f"{name} {column}: float32, in which a batch is held, keeps {changes - lost:,} of its "
            f"{changes:,} changes from row to row: log it from a nearer zero, or in larger units"
            for column, (changes, lost) in enumerate(zip(self.changes, self.lost, strict=True))
            if 2 * lost > changes
        ]


class _Cut:
    """How long the episodes are that were cut, and how old the last one is; in steps."""

    def __init__(self) -> None:
        self.longest = self.age = 0

    def add(self, cut: np.ndarray, terminated: np.ndarray) -> None:
        """Rows in order, each (n,)."""
        last = np.flatnonzero(cut | terminated)
        begins = np.append(-self.age, last + 1)
        lengths = (last + 1 - begins[:-1])[cut[last]]
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        self.age = len(cut) - int(begins[-1])


def _begins_elsewhere(
    state: np.ndarray, next_state: np.ndarray, after: np.ndarray | None
) -> np.ndarray:
    """(n,): whether the next row begins elsewhere than this ended; `after` (1, S) is the last's.

    A few float32 roundings are no difference. Where a number is NaN, or there is no next row, it is
    not known, and the answer no.
    """
    following = np.concatenate([state[1:], next_state[-1:] if after is None else after])
    same = np.isclose(next_state, following, ROUNDING, ROUNDING)
    known = np.isfinite(next_state).all(1) & np.isfinite(following).all(1)
    return known & ~same.all(1)


def _at_the_limit(ended: np.ndarray, limit: int, steps: int) -> tuple[int, np.ndarray]:
    """How old the last episode is afterwards, and the ends by the step limit, (n,).

    `steps`: how old the first one is already. What `ended` at the limit ended by it, too.
    """
    truncated = np.zeros(len(ended), bool)
    first = -steps
    for last in np.flatnonzero(ended).tolist():
        truncated[first + limit - 1 : last + 1 : limit] = True
        first = last + 1
    truncated[first + limit - 1 :: limit] = True
    return (len(ended) - first) % limit, truncated


def one_a_row(what: str, array: np.ndarray) -> np.ndarray:
    """(n,) or (n, 1) of numbers -> (n, 1) float32. Raises: InputError for another width."""
    column = numbers(what, array)
    if column.shape[1] != 1:
        raise InputError(f"{what} is {column.shape[1]} wide, not one number a row")
    return column


def transitions(
    blocks: Iterable[Rows], dropped: Counter[str], numbered: list[np.ndarray] | None = None
) -> Iterator[Transitions]:
    """Rows -> transitions; counts in `dropped` what has no successor, and why.

    To `numbered` is added, with each block given, the number of each transition's episode, (n,).
    """
    held: Rows | None = None
    begun = 0  # the number of the episode that a block goes on with
    for block in blocks:
        rows = block if held is None else _joined(held, block)
        held = None
        if rows.next_state is None and not (rows.terminated[-1] or rows.truncated[-1]):
            held = Rows(*(column[-1:] if column is not None else None for column in rows))  # type: ignore[arg-type]
        made, kept = _paired(rows, dropped, waits=held is not None)
        ends = np.cumsum(rows.terminated | rows.truncated)
        if numbered is not None:
            numbered.append((begun + np.append(0, ends[:-1]))[kept])
        begun += int(ends[-1])
        yield made
    if held is not None:
        dropped[UNFINISHED] += 1


def _joined(one: Rows, other: Rows) -> Rows:
    pairs = zip(one, other, strict=True)
    columns = (None if one is None else np.concatenate([one, other]) for one, other in pairs)
    return Rows(*columns)  # type: ignore[arg-type]


def _paired(rows: Rows, dropped: Counter[str], waits: bool) -> tuple[Transitions, np.ndarray]:
    """The transitions of these rows, and which rows they are, (n,) bool.

    The last waits for the block that has its successor.
    """
    kept = np.ones(len(rows.state), bool)
    next_state = rows.next_state
    if next_state is None:
        successor = np.append(rows.state[1:], rows.state[-1:], axis=0)
        next_state = np.where(rows.terminated[:, None], rows.state, successor)
        dropped[NO_SUCCESSOR] += int(rows.truncated.sum())
        kept &= ~rows.truncated
        kept[-1] &= not waits
    bad = kept & ~(rows.finite & np.isfinite(next_state).all(1))
    dropped[BAD] += int(bad.sum())
    kept &= ~bad
    not_done = 1 - rows.terminated[:, None].astype(np.float32)
    columns = (rows.state, rows.action, next_state, rows.reward, not_done)
    return Transitions(*(column[kept] for column in columns)), kept
