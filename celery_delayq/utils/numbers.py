"""Checks of numbers that callers give. No I/O."""

from __future__ import annotations

import math
from typing import Any


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Return whether a value is an int or a finite float that a float can hold, and no bool."""
    try:
        return (is_whole(value) or isinstance(value, float)) and math.isfinite(value)
    except OverflowError:
        return False
