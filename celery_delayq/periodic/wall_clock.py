"""Conversion between ticks (ms since 1970) and wall clocks. No I/O, no clock of its own.

A time of day that does not exist, because clocks are set forward, becomes the next one that does. A
time that exists twice, because clocks are set back, counts once, the first time.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

from celery_delayq.model.envelope import EPOCH

#: Years to search for a next tick: 29 February may be a Monday only every 40 years.
SEARCHED_YEARS = 40

#: The same in seconds.
SEARCHED_SECONDS = SEARCHED_YEARS * 366 * 86400

#: The last tick that a datetime can name, year 9999.
MAX_TICK_MS = 253_402_300_799_999

#: A millisecond.
MILLISECOND = timedelta(milliseconds=1)


def wall_of(ms: int, zone: tzinfo) -> datetime:
    """Return the time of a tick by the wall clock of a time zone."""
    return moment_of(ms).astimezone(zone).replace(tzinfo=None)


def tick_at(wall: datetime, zone: tzinfo) -> int:
    """Return when a wall clock first shows that time, or a later one if it never shows it."""
    aware = wall.replace(tzinfo=zone)
    back = aware.astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None)
    if back == wall:
        return ms_of(aware)
    # The time is in a gap. The two offsets give a moment before the gap's end and one after it.
    before, after = aware.replace(fold=1), aware
    low, high = sorted((ms_of(before), ms_of(after)))
    while high - low > 1:
        middle = (low + high) // 2
        if wall_of(middle, zone) < wall:
            low = middle
        else:
            high = middle
    return high


def ms_of(moment: datetime) -> int:
    """Return the tick of an aware moment, rounded up so that no tick is early."""
    return -((EPOCH - moment) // MILLISECOND)


def ms_until(moment: datetime) -> int:
    """Return the last tick that is not after an aware moment."""
    return (moment - EPOCH) // MILLISECOND


def moment_of(ms: int) -> datetime:
    """Return the moment of a tick in UTC."""
    return EPOCH + ms * MILLISECOND
