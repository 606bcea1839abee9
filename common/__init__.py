"""What an experiment needs whatever the variant; imports no variant."""
