"""A batch as the episodes it was logged in: which row begins one, and which are held out."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.errors import InputError


class Log(NamedTuple):
    """N transitions in the order they were logged, in E whole episodes, all on one device.

    state, next_state (N, S); action (N, A): continuous, or one-hot where it is one of K; reward,
    not_done (N,); starts (E + 1,): the first row of each episode, and N.
    """

    state: Tensor
    action: Tensor
    next_state: Tensor
    reward: Tensor
    not_done: Tensor
    starts: Tensor

    @property
    def episodes(self) -> int:
        """E."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> Tensor:
        """(E,) steps."""
        return self.starts.diff()

    @property
    def first_states(self) -> Tensor:
        """(E, S)."""
        return self.state[self.starts[:-1]]

    @property
    def terminated(self) -> Tensor:
        """(E,) bool: whether the episode ended in a terminal state; the others were cut."""
        return self.not_done[self.starts[1:] - 1] == 0

    def take(self, episodes: Tensor) -> "Log":
        """The log of these episodes (indices), in this order."""
        lengths = self.lengths[episodes]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        offset = torch.repeat_interleave(self.starts[episodes] - starts[:-1], lengths)
        rows = torch.arange(int(starts[-1]), device=starts.device) + offset
        columns = (self.state, self.action, self.next_state, self.reward, self.not_done)
        return Log(*(column[rows] for column in columns), starts)  # type: ignore[call-arg]

    def discounted_returns(self, discount: float) -> Tensor:
        """Σ_t γ^t r_t of each episode as far as it was logged, (E,) float64."""
        return self.returns_to_go(discount)[self.starts[:-1]]

    def returns_to_go(self, discount: float) -> Tensor:
        """Σ_{u ≥ t} γ^{u−t} r_u to the end of the row's episode, (N,) float64."""
        reward, starts = self.reward.double().cpu().numpy(), self.starts.cpu().numpy()
        longest = int(np.diff(starts).max())
        ends, value = starts[1:], np.zeros(len(starts) - 1)
        to_go = np.empty(len(reward))
        for back in range(1, longest + 1):  # all episodes at once, from their ends
            there = ends - back >= starts[:-1]
            rows = ends[there] - back
            value[there] = reward[rows] + discount * value[there]
            to_go[rows] = value[there]
        return torch.from_numpy(to_go)


def starts_of(ended: Tensor) -> Tensor:
    """The first row of each episode, and N, (E + 1,); `ended` (N,): with this row.

    The last episode ends where the data do.
    """
    ends = ended.clone()
    ends[-1] = True
    after = ends.nonzero()[:, 0] + 1
    return torch.cat([after.new_zeros(1), after])


def split(episodes: int, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Episodes to learn from and to judge on: two sets of indices, ascending.

    A share `held_out` of them is drawn by `seed`, one at least; none where it is 0. The global
    generators are not touched.

    Raises: InputError where nothing would be left to learn from.
    """
    if held_out == 0:
        return np.arange(episodes), np.arange(0)
    number = max(1, round(held_out * episodes))
    if number >= episodes:
        raise InputError(
            f"--held_out {held_out:g} leaves none of {episodes} episodes to learn from: give a "
            "smaller share, or 0 to judge on what was learned from"
        )
    drawn = np.random.default_rng(seed).permutation(episodes)
    return np.sort(drawn[number:]), np.sort(drawn[:number])
