"""Move the schedule and dead letters to files and databases, and back."""
