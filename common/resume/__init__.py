"""Going on exactly where a run stopped, and one process a run: what the stages hold on to."""
