"""Converts between ticks (ms since 1970) and wall clocks. No I/O, no clock of its own.

If a time of day does not exist, because clocks are set forward, the tick is at the next time that
exists. If a time exists twice, because clocks are set back, the tick is at the first one.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

from celery_delayq.model.envelope import EPOCH

#: Years in which to search for a next tick. 29 February may be a Monday only once in 40 years.
SEARCHED_YEARS = 40

#: :data:`SEARCHED_YEARS` in seconds, as years of 366 days.
SEARCHED_SECONDS = SEARCHED_YEARS * 366 * 86400

#: The last tick that a datetime can represent, in the year 9999.
MAX_TICK_MS = 253_402_300_799_999

MILLISECOND = timedelta(milliseconds=1)


def wall_time_of_ms(ms: int, zone: tzinfo) -> datetime:
    """Return the time of a tick by the wall clock of a time zone."""
    return datetime_of_ms(ms).astimezone(zone).replace(tzinfo=None)


def ms_of_wall_time(wall: datetime, zone: tzinfo) -> int:
    """Return when a wall clock first shows *wall* (ms); in a gap, the end of the gap."""
    aware = wall.replace(tzinfo=zone)
    back = aware.astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None)
    if back == wall:
        return ms_of_datetime(aware)
    # The time is in a gap. The two offsets give one moment before the end of the gap and one after
    # it.
    before, after = aware.replace(fold=1), aware
    low, high = sorted((ms_of_datetime(before), ms_of_datetime(after)))
    while high - low > 1:
        middle = (low + high) // 2
        if wall_time_of_ms(middle, zone) < wall:
            low = middle
        else:
            high = middle
    return high


def ms_of_datetime(moment: datetime) -> int:
    """Return the tick of a moment with a time zone, rounded up so that no tick is early."""
    return -((EPOCH - moment) // MILLISECOND)


def last_ms_until(moment: datetime) -> int:
    """Return the last tick that is not after a moment with a time zone."""
    return (moment - EPOCH) // MILLISECOND


def datetime_of_ms(ms: int) -> datetime:
    """Return the moment of a tick in UTC."""
    return EPOCH + ms * MILLISECOND
