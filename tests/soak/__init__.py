"""The fault tests in their long form, again and again: ``python -m tests.soak``."""
