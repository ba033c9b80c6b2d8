"""Limits over all workers: look at them, and change them while workers run."""
