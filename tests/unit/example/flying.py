"""Flights of one day, and a clock in which a minute of flight time is a millisecond."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from example_project.flights import Flight, midnight
from example_project.plan import CompressedClock

SNOW_STORM = date(2013, 3, 8)
BEGINS = midnight(SNOW_STORM)
CLOCK = CompressedClock(BEGINS, starts_ms=1_000_000, seconds_per_day=1.44)


def at(hour: int, minute: int = 0) -> datetime:
    return BEGINS + timedelta(hours=hour, minutes=minute)


def flight(name: str, scheduled: datetime, *, late: int | None) -> Flight:
    """Make a flight that leaves `late` minutes late, or is cancelled."""
    departed = None if late is None else scheduled + timedelta(minutes=late)
    return Flight(name, "DL", 1, "JFK", "SFO", scheduled, departed)
