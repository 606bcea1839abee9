"""Readers of other people's data, each one file; import_dataset.py is their command line."""
