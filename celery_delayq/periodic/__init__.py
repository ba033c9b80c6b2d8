"""Periodic entries: schedules, what is due, and who fires it."""
