"""Warnings that a process gives once."""

from __future__ import annotations

import logging
from functools import cache


@cache
def warn_once(logger: logging.Logger, text: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    logger.warning(text)
