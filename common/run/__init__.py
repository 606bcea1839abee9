"""The three stages and --evaluate, the same for both variants: what their main.py call."""
