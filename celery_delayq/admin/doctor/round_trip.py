"""Measures the round trip to a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

from celery_delayq.admin.doctor.finding import Finding, warning

#: Longest round trip in seconds, and number of measured round trips.
MAX_ROUND_TRIP_SECONDS = 0.020
_ROUND_TRIPS = 9


def latency(trip: Callable[[], object], todo: str) -> Iterator[Finding]:
    """Round trips must be short. Each publish is one, and on Redis each batch of a worker."""
    typical = median(_seconds(trip) for _ in range(_ROUND_TRIPS))
    if typical > MAX_ROUND_TRIP_SECONDS:
        yield warning(
            f"a round trip takes {typical * 1000:.0f} ms "
            f"(more than {MAX_ROUND_TRIP_SECONDS * 1000:.0f})",
            todo,
        )


def _seconds(trip: Callable[[], object]) -> float:
    began = perf_counter()
    trip()
    return perf_counter() - began
