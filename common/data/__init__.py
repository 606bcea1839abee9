"""Batches in memory and on disk: what main.py, the importers and stage 3 learn from."""
