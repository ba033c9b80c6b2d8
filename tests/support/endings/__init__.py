"""The matrix: every way in which a task ends, with every cut of its connection."""
