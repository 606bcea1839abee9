"""reproduce.py's parts: which runs a paper needs, running them, reporting what they show."""
