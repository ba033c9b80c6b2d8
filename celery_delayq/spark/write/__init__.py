"""Writes rows: each row becomes a scheduled task."""
