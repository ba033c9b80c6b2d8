"""Arguments of tasks in messages."""
