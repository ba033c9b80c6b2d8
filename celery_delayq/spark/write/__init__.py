"""Writing: each row becomes a scheduled task."""
