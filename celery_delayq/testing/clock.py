"""A clock that only moves when a test says so."""

from __future__ import annotations

import math


class FakeClock:
    """Wall clock and monotonic clock, moved manually.

    Parameters
    ----------
    now_ms
        Where the wall clock starts, in milliseconds since the epoch. The default is
        2013-01-01 00:00:00 UTC.
    """

    def __init__(self, now_ms: int = 1_356_998_400_000) -> None:
        self._now_ms = float(now_ms)
        self._monotonic = 0.0

    def now_ms(self) -> int:
        """Return the wall clock in whole milliseconds since the epoch."""
        # Tenths that floats cannot hold must not cost a millisecond.
        return math.floor(self._now_ms + 1e-3)

    def monotonic(self) -> float:
        """Return the seconds for which this clock has run."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks (ValueError if negative)."""
        if not seconds >= 0:
            raise ValueError(f"a clock cannot advance by {seconds!r} seconds: use jump()")
        self._now_ms += seconds * 1000
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock off by `seconds`, forth or back, as an administrator would."""
        self._now_ms += seconds * 1000
