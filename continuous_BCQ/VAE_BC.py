"""Behavioural cloning by a VAE (VAE_BC): BCQ's generative model G(s) alone.

Source: Fujimoto, Meger, Precup, ICML 2019, section 5: the VAE of BCQ, acting by one sample. BCQ
with Φ = 0 and one candidate acts the same.
Shapes: B batch, S state_dim, A action_dim.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from BCQ import LEARNING_RATE, VAE
from utils import (
    Batch,
    Figures,
    FusedAdam,
    ReplayBuffer,
    load_agent,
    load_state,
    mean_figures,
    save_state,
    state_of,
)


class VAE_BC:
    """The agent; it has no values, and so no critic and no targets."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, device: torch.device | str
    ) -> None:
        self.vae = VAE(state_dim, action_dim, max_action).to(device)
        self.vae_optimizer = FusedAdam(self.vae, LEARNING_RATE)
        self.device = torch.device(device)

    @torch.no_grad()
    def select_action(self, state: np.ndarray) -> np.ndarray:
        """One sample of G(s). Shapes: (S,) -> (A,), (B, S) -> (B, A). Draws the latent."""
        states = torch.as_tensor(state, dtype=torch.float32, device=self.device)
        actions = self.vae.decode(states.reshape(-1, states.shape[-1]))
        return actions.reshape(*states.shape[:-1], -1).cpu().numpy()

    def update(self, batch: Batch) -> Figures:
        """One gradient step on the given batch; the loss, as a tensor."""
        vae_loss = self.vae.loss(batch.state, batch.action)
        self.vae_optimizer.minimize(vae_loss)
        return {"vae_loss": vae_loss.detach()}

    def train(
        self, replay_buffer: ReplayBuffer, iterations: int, batch_size: int = 100
    ) -> dict[str, float]:
        """`iterations` updates on sampled batches; the mean of each figure."""
        return mean_figures(
            self.update(replay_buffer.sample(batch_size)) for _ in range(iterations)
        )

    def state_dict(self) -> dict[str, Any]:
        """VAE and optimiser: all that learning on needs."""
        return state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises: InputError where `state` is of another algorithm or of other sizes."""
        load_state(self, state)

    def save(self, path: str | Path) -> None:
        """Write the agent as one file. Raises: InputError where it cannot be written."""
        save_state(path, self.state_dict())

    def load(self, path: str | Path) -> None:
        """Act and learn on as the saved agent would. Raises: InputError for a foreign file."""
        load_agent(self, path)
