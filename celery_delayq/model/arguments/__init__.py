"""Arguments of tasks: in searches, in keys, and in functions that tasks have as options."""
