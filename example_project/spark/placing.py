"""The time of the year: 2013 is over, and a reminder needs a future time.

The year is moved by whole weeks, so that it begins one to two weeks from now. So weekdays and all
distances stay, and no task is due while Spark works. Then the day that workers run is brought
forward: it begins in some seconds and runs fast. All other days stay.
"""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from example_project.flights import YEAR, midnight
from example_project.plan import DAY, CompressedClock

_WEEK = timedelta(weeks=1)
_MICROSECOND = timedelta(microseconds=1)


def weeks_until(now: datetime) -> timedelta:
    """Return the whole weeks to move the year by, so that it begins 7 to 14 days after now."""
    passed = now + _WEEK - midnight(date(YEAR, 1, 1))
    return math.ceil(passed / _WEEK) * _WEEK


def moved(moment: Column, by: timedelta) -> Column:
    """Return times of 2013 moved by whole days."""
    # As a duration, and not as calendar days: a time zone must not matter.
    return moment + F.make_dt_interval(days=F.lit(by.days))


def compressed(moment: Column, clock: CompressedClock) -> Column:
    """Return times of 2013 on `clock`: `CompressedClock.real_ms` for a column."""
    elapsed = F.unix_micros(moment) - F.unix_micros(F.lit(clock.begins))
    per_day = round(clock.seconds_per_day * 1000)
    # The division of doubles is exact here: the dividend stays below 2**53.
    after = F.ceil(elapsed * per_day / F.lit(DAY // _MICROSECOND))
    return F.timestamp_millis(F.lit(clock.starts_ms) + after)
