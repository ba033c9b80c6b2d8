"""Versions of installed packages, read once.

redis-py reads its own version from disk for each new connection. This takes 0.8 ms, and most tests
and workers make ten connections.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata


def read_once() -> None:
    """Keep each version that was found."""
    vars(metadata)["version"] = cache(metadata.version)
