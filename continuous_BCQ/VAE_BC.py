"""Behavioural cloning by a VAE (VAE_BC): BCQ's generative model G(s) alone.

Source: Fujimoto, Meger, Precup, ICML 2019, section 5: the VAE of BCQ, acting by one sample. BCQ
with Φ = 0 and one candidate acts the same.
Shapes: B batch, S state_dim, A action_dim.
"""

import numpy as np
import torch

from BCQ import LEARNING_RATE, VAE
from utils import Agent, Batch, Figures, FusedAdam


class VAE_BC(Agent):
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
