"""States as (s − mean) / std, for any learner: what --normalize_states puts around it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.agent import Agent
from common.data.replay import Batch
from common.errors import InputError

STD_OFFSET = 1e-3  # added to the standard deviation, which may be 0, as TD3+BC does
KEY = "state_normalisation"  # of the statistics in a saved agent


class NormalisedStates:
    """An agent that sees (s − mean) / (std + 1e-3) wherever the agent within would see s.

    The statistics are those of the buffer that the first `train` is given; they are saved with the
    agent, and applied when it acts. All else is the agent's own.
    """

    def __init__(self, agent: Agent, state_dim: int) -> None:
        self.agent = agent
        self.mean = torch.zeros(state_dim, device=agent.device)
        self.std = torch.ones(state_dim, device=agent.device)
        self.fitted = False

    def __getattr__(self, name: str) -> Any:
        if name == "agent":  # of a copy that is being made
            raise AttributeError(name)
        found = getattr(self.agent, name)
        return self._value(found) if name == "value" else found  # cloning has no values

    def normalise(self, state: Tensor) -> Tensor:
        """(B, S) -> (B, S)."""
        return (state - self.mean) / self.std

    def select_action(self, state: np.ndarray) -> Any:
        """As the agent's."""
        states = torch.as_tensor(state, dtype=torch.float32, device=self.mean.device)
        return self.agent.select_action(self.normalise(states).cpu().numpy())

    def _value(self, value: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda state, action: value(self.normalise(state), action)

    def train(
        self, replay_buffer: Any, iterations: int, batch_size: int | None = None
    ) -> dict[str, float]:
        """As the agent's, on the normalised buffer."""
        if not self.fitted:
            std, self.mean = torch.std_mean(replay_buffer.state, 0, correction=0)
            self.std, self.fitted = std + STD_OFFSET, True
        return self.agent.train(_Seen(replay_buffer, self.normalise), iterations, batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The agent's, and the statistics."""
        statistics = {"mean": self.mean, "std": self.std, "fitted": self.fitted}
        return self.agent.state_dict() | {KEY: statistics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put both back. Raises: InputError where either does not fit; nothing has changed then."""
        statistics = state.get(KEY)
        try:
            mean, std, fitted = (statistics[name] for name in ("mean", "std", "fitted"))  # type: ignore[index]
            if mean.shape != self.mean.shape or std.shape != self.std.shape:
                raise ValueError(f"of {tuple(mean.shape)} numbers, not {tuple(self.mean.shape)}")
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InputError(f"{KEY} is missing or does not fit ({error!r})") from None
        self.agent.load_state_dict({name: part for name, part in state.items() if name != KEY})
        self.mean, self.std = mean.to(self.mean.device), std.to(self.mean.device)
        self.fitted = bool(fitted)

    def save(self, path: str | Path) -> None:
        """As any agent."""
        Agent.save(self, path)  # type: ignore[arg-type]

    def load(self, path: str | Path, to_act: bool = False) -> None:
        """As any agent."""
        Agent.load(self, path, to_act)  # type: ignore[arg-type]


class _Seen:
    """A buffer through the normalisation."""

    def __init__(self, replay_buffer: Any, normalise: Callable[[Tensor], Tensor]) -> None:
        self.replay_buffer, self.normalise = replay_buffer, normalise

    @property
    def state(self) -> Tensor:
        return self.normalise(self.replay_buffer.state)

    def sample(self, batch_size: int) -> Batch:
        batch = self.replay_buffer.sample(batch_size)
        return batch._replace(
            state=self.normalise(batch.state), next_state=self.normalise(batch.next_state)
        )
