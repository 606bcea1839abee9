"""Minari data sets, both ways: episodes of n actions and n + 1 observations.

Source: the Minari library itself, which reads and writes the files.
"""

import errno
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.namespace import create_namespace, list_local_namespaces
from minari.storage.datasets_root_dir import get_dataset_path

from common.data.episodes import breaks
from common.errors import InputError
from datasets.batch import Source
from datasets.reading import flags, reading
from datasets.rows import Rounded, Rows, Transitions, one_a_row
from datasets.task import Task

ROOT_VARIABLE = (
    "MINARI_DATASETS_PATH"  # where Minari keeps data sets; ~/.minari/datasets unless set
)


def open_dataset(id_or_path: str) -> Any:
    """The Minari data set of this id, fetched if it is not here, or in this folder.

    Raises: InputError where there is none, it is damaged, or it cannot be fetched.
    """
    folder = Path(id_or_path)
    if folder.is_dir():
        data = folder / "data" if (folder / "data").is_dir() else folder
        with reading(folder, "Minari data set"):
            return minari.MinariDataset(data)
    try:
        parse_dataset_id(id_or_path)
    except Exception:
        raise InputError(
            f"--minari {id_or_path} is no folder, and no id such as mujoco/hopper/expert-v0"
        ) from None
    if (place_of(id_or_path) / "data").exists():
        with reading(f"the Minari data set {id_or_path}", "Minari data set"):
            return minari.load_dataset(id_or_path)
    place_of(id_or_path, to_write=True)
    try:
        return minari.load_dataset(id_or_path, download=True)
    except Exception as error:  # of the network, of the hub's own library, or of a server's answer
        reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[0].split())
        raise InputError(
            f"the Minari data set {id_or_path} is not in {place_of()} and cannot be "
            f"fetched ({reason[:160]}): is the id right, the network there, "
            "and minari[hf] installed?"
        ) from error


def place_of(dataset_id: str = "", to_write: bool = False) -> Path:
    """Where Minari keeps a data set, or all of them.

    Raises: InputError where that is no folder, or none that can be written to.
    """
    try:
        root = get_dataset_path()
        if to_write and not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))
    except OSError as error:
        raise InputError(
            f"Minari keeps its data sets in {error.filename or 'an empty path'}, which is no "
            f"folder to use ({error.strerror}): set {ROOT_VARIABLE} to another"
        ) from error
    return root / dataset_id


def _is_data_set(folder: Path) -> bool:
    return any((folder / "data" / name).exists() for name in ("metadata.json", "main_data.hdf5"))


def made_in(dataset: Any) -> str | None:
    """The id of the environment it was recorded in, where it says so."""
    return dataset.env_spec.id if dataset.env_spec else None


def read(dataset: Any, name: str, task: Task) -> Source:
    """A Minari data set as rows, an episode a block."""
    what = f"the Minari data set {name}"
    notes: list[str] = []
    with reading(what, "Minari data set"):
        total, identity = int(dataset.total_steps), str(dataset.id)
    origin = {"format": "minari", "id": identity, "made_in": made_in(dataset)}
    names = {"state": "observations", "action": "actions", "reward": "rewards"}
    names["next_state"] = names["state"]
    rows = _episodes(dataset, what, task, notes)
    return Source(what, rows, total, "step", names, notes, origin)


def _episodes(dataset: Any, what: str, task: Task, notes: list[str]) -> Iterator[Rows]:
    steps = unfinished = 0
    rounded = {"observations": Rounded(), "rewards": Rounded()}
    _require_shapes(dataset, what, task)
    with reading(what, "Minari data set"):
        episodes = iter(dataset.iterate_episodes())
    while True:
        with reading(what, "Minari data set"):
            episode = next(episodes, None)
        if episode is None:
            break
        here = f"{what}: episode {episode.id}"
        action = task.actions(f"{here}, actions", _array(f"{here}, actions", episode.actions))
        count = len(action)
        observations = _states(f"{here}, observations", episode.observations, task.space)
        ends = (episode.rewards, episode.terminations, episode.truncations)
        _require_lengths(here, count, len(observations), [len(column) for column in ends])
        if not count:
            continue
        rounded["observations"].add(observations)
        rounded["rewards"].add(np.asarray(episode.rewards))
        observations = task.states(f"{here}, observations", observations)
        reward = one_a_row(f"{here}, rewards", episode.rewards)
        terminated = flags(f"{here}, terminations", episode.terminations)
        truncated = flags(f"{here}, truncations", episode.truncations) & ~terminated
        if not (terminated[-1] or truncated[-1]):
            truncated[-1] = True  # what follows is another episode
            unfinished += 1
        state, next_state = observations[:-1], observations[1:]
        number = np.arange(steps, steps + count)
        steps += count
        yield Rows(number, state, action, reward, terminated, truncated, next_state)
    for name, column in rounded.items():
        notes += column.notes(name)
    if unfinished:
        notes.append(f"{unfinished:,} episodes say neither terminated nor truncated: cut there")


def _require_shapes(dataset: Any, what: str, task: Task) -> None:
    """Look at the sizes of all episodes before one is read.

    The library believes what a damaged file says, and fills gigabytes. Raises: InputError.
    """
    path = Path(dataset.storage.data_path) / "main_data.hdf5"
    if not path.exists():  # of another of Minari's formats
        return
    flat = ("actions", "observations", "rewards", "terminations", "truncations")
    with reading(what, "Minari data set"), h5py.File(path, "r") as file:
        for index in dataset.episode_indices:
            group, here = file[f"episode_{index}"], f"{what}: episode {index}"
            if any(not isinstance(group[name], h5py.Dataset) for name in flat):
                continue  # a structured space, whose parts are small or refused
            empty = {name: np.empty((0, *group[name].shape[1:]), np.float32) for name in flat}
            task.actions(f"{here}, actions", empty["actions"])
            task.states(f"{here}, observations", empty["observations"])
            for name in flat[2:]:
                one_a_row(f"{here}, {name}", empty[name])
            actions, observations, *ends = (group[name].shape[0] for name in flat)
            _require_lengths(here, actions, observations, ends)


def _require_lengths(here: str, actions: int, observations: int, ends: list[int]) -> None:
    if observations != actions + 1 or set(ends) != {actions}:
        raise InputError(
            f"{here} has {actions} actions, {observations} observations and "
            f"{', '.join(map(str, ends))} rewards and ends: n actions belong to n + 1 "
            "observations; fetch it again"
        )


def _states(what: str, column: Any, space: gym.Space) -> np.ndarray:
    """Observations of this space, in the order in which gymnasium flattens its parts, (n, w).

    Raises: InputError where they are not of it.
    """
    parts: list[tuple[Any, gym.Space]]
    if isinstance(space, spaces.Dict) and isinstance(column, dict):
        parts = [(column[key], part) for key, part in space.spaces.items() if key in column]
        complete = column.keys() == space.spaces.keys()
    elif isinstance(space, spaces.Tuple) and isinstance(column, tuple):
        parts = [*zip(column, space.spaces, strict=False)]
        complete = len(column) == len(space.spaces)
    else:
        return _array(what, column)
    if not complete:
        raise InputError(f"{what} have other parts than {space}")
    arrays = [_states(what, *part) for part in parts]
    with reading(what, "Minari data set"):
        return np.concatenate([array.reshape(len(array), -1) for array in arrays], 1)


def _array(what: str, column: Any) -> np.ndarray:
    """A column of a space of arrays, or of several numbers, as one array."""
    if isinstance(column, tuple) and all(np.ndim(part) == 1 for part in column):
        return np.stack(column, 1)
    if not isinstance(column, np.ndarray):
        kind = f"keys {', '.join(column)}" if isinstance(column, dict) else type(column).__name__
        raise InputError(f"{what}: {kind}, not vectors, which is what the agents here take")
    return column


def export(
    dataset_id: str,
    batch: Transitions,
    ends: np.ndarray,
    task: Task,
    overwrite: bool,
    description: str,
) -> Path:
    """Write a batch (numpy columns, oldest first) as a Minari data set; where it lies now.

    `ends` (N,) are those of `episode_ends`.

    The data set is made and read back in a folder beside its place, then moved there.

    Raises: InputError for an id that is none or taken, and where it cannot be written.
    """
    try:
        namespace, _, version = parse_dataset_id(dataset_id)
        valid = version is not None
    except Exception:
        valid = False
    if not valid or ".." in dataset_id:
        raise InputError(
            f"--export_minari {dataset_id} is no id such as hopper/mine-v0: letters, digits, '-', "
            "'_', '/' and a version"
        )
    root = place_of(to_write=True)
    target = root / dataset_id
    if target.exists() and not _is_data_set(target):
        raise InputError(f"{target} exists, but is no data set: choose another id")
    if outer := [one for one in target.parents if root in one.parents and _is_data_set(one)]:
        raise InputError(f"{outer[0]} is a data set, which holds no others: choose another id")
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists: --overwrite replaces it, another id keeps both")
    work = root / f".import_dataset.{os.getpid()}.tmp"
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        with _minari_root(work), warnings.catch_warnings():
            # Minari would like more metadata than a batch has.
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            minari.create_dataset_from_buffers(
                dataset_id,
                _buffers(batch, ends, task),
                env=portable_spec(task),
                observation_space=spaces.Box(-np.inf, np.inf, (task.state_dim,), np.float32),
                action_space=_action_space(task),
                description=description,
            )
            steps = sum(len(episode) for episode in minari.load_dataset(dataset_id))
            assert steps == len(batch.state), f"{steps} of {len(batch.state)} steps read back"
            made = get_dataset_path(dataset_id) / "data"
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        # Whatever else lies in its folder, such as other data sets, stays there.
        if (target / "data").exists():
            shutil.rmtree(target / "data")
        target.mkdir(parents=True, exist_ok=True)
        made.replace(target / "data")
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise InputError(
            f"cannot write the Minari data set {target}: {reason}; free some space or set "
            f"{ROOT_VARIABLE} to another folder"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def portable_spec(task: Task) -> EnvSpec | None:
    """What a data set keeps of its environment, to make it again; None where it cannot be written.

    So it is where an environment was registered with a class instead of the class's name.
    """
    try:
        if task.spec is not None:
            task.spec.to_json()
    except (TypeError, ValueError):
        return None
    return task.spec


@contextmanager
def _minari_root(folder: Path) -> Iterator[None]:
    """Minari's data sets lie in `folder` within the block: it asks the environment each time."""
    before = os.environ.get(ROOT_VARIABLE)
    os.environ[ROOT_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[ROOT_VARIABLE]
        else:
            os.environ[ROOT_VARIABLE] = before


def _action_space(task: Task) -> gym.Space:
    if task.num_actions is not None:
        return spaces.Discrete(task.num_actions)
    if task.whole is not None:
        low, high = task.low.astype(task.whole), task.high.astype(task.whole)
        return spaces.Box(low, high, dtype=task.whole.type)
    # Rescaled actions are float64 numbers, that they be rescaled back exactly.
    dtype = np.float64 if task.rescaled else np.float32
    return spaces.Box(task.low.astype(dtype), task.high.astype(dtype), dtype=dtype)


def episode_ends(batch: Transitions, ended: np.ndarray) -> np.ndarray:
    """(N,): whether an episode of a data set ends with a transition, where `ended` (N,) and more.

    An episode is one observation more than its actions: it cannot go on elsewhere than its next
    state, bit by bit. The last transition ends its episode.
    """
    ends = ended | breaks(batch.state, batch.next_state)
    ends[-1] = True
    return ends


def _buffers(batch: Transitions, ends: np.ndarray, task: Task) -> Iterator[EpisodeBuffer]:
    first = 0
    actions = task.from_batch(batch.action)
    for number, last in enumerate(np.flatnonzero(ends).tolist()):
        rows = slice(first, last + 1)
        terminated = batch.not_done[rows, 0] == 0
        truncated = np.zeros(len(terminated), bool)
        truncated[-1] = not terminated[-1]
        yield EpisodeBuffer(
            id=number,
            observations=np.concatenate([batch.state[rows], batch.next_state[last : last + 1]]),
            actions=actions[rows, 0] if task.num_actions is not None else actions[rows],
            rewards=batch.reward[rows, 0],
            terminations=terminated,
            truncations=truncated,
        )
        first = last + 1
