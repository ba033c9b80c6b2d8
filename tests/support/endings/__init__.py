"""The matrix of endings: every way a task can end, under every way its connection can be cut."""
