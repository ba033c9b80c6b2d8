"""The fault tests in their long form, repeatedly: ``python -m tests.soak``."""
