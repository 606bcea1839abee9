"""What a policy is worth, and what it does, judged from logged transitions alone."""
