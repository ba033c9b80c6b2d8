"""Why a task has not run, or how it ended."""
