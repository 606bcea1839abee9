"""Making an environment, playing in it, its simulator's exact state, D4RL's scores."""
