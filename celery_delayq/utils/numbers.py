"""Checks of numbers that callers give. No I/O."""

from __future__ import annotations

import math
from typing import Any


def is_integer(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether a value is an int in a range, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_finite(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether a value is an int or float in a range, finite as a float, and no bool."""
    try:
        number = is_integer(value) or isinstance(value, float)
        return number and math.isfinite(value) and low <= value <= high
    except OverflowError:
        return False
