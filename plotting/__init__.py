"""What plot.py draws: `runs` reads, `panels` sorts, `figures`, `tradeoff` and `table` show."""
