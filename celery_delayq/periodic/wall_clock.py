"""Between ticks, in ms since 1970, and what the clocks on walls show. No I/O, no clock of its own.

A time of day that does not exist, since clocks are set forward, is the next one that does; one that
exists twice, since they are set back, counts once, the first time.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

#: So many years ahead a time is looked for: those of 29 February that is a Monday come 40 apart.
YEARS = 40

#: The same in seconds.
LONGEST = YEARS * 366 * 86400

#: The last tick that a datetime can name, year 9999.
LAST = 253_402_300_799_999

#: A millisecond.
MS = timedelta(milliseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def wall_of(ms: int, zone: tzinfo) -> datetime:
    """Return what a wall clock shows then."""
    return moment_of(ms).astimezone(zone).replace(tzinfo=None)


def tick_at(wall: datetime, zone: tzinfo) -> int:
    """Return when a wall clock shows that for the first time, or where it never does, when it
    shows something later for the first time.
    """
    aware = wall.replace(tzinfo=zone)
    back = aware.astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None)
    if back == wall:
        return ms_of(aware)
    # It is in a gap: with the offset before it, it comes out behind it, and with that after it
    # before; the gap ends where both meet.
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
    """Return an aware moment as a tick, rounded up: nothing is early."""
    return -((_EPOCH - moment) // MS)


def ms_until(moment: datetime) -> int:
    """Return the last tick that is not after an aware moment."""
    return (moment - _EPOCH) // MS


def moment_of(ms: int) -> datetime:
    """Return when a tick is, in UTC."""
    return _EPOCH + ms * MS
