"""Reads and writes cron expressions, and computes their ticks. No I/O."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, time, tzinfo
from functools import lru_cache

from celery.schedules import crontab

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.wall_clock import SEARCHED_YEARS, ms_of_wall_time, wall_time_of_ms

_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


@lru_cache(maxsize=1024)  # Celery takes 0.1 ms each, and many entries have equal ones
def read_crontab(text: str) -> crontab:
    """Read a cron expression of five fields, such as ``0 9 * * mon-fri``.

    Raises
    ------
    ValueError
        *text* does not have five fields, or a field is invalid.
    """
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            f"{text!r}: expected minute, hour, day of month, month and weekday, such as '0 9 * * *'"
        )
    return crontab(**dict(zip(_FIELDS, fields, strict=True)))


def crontab_text(given: crontab) -> str:
    """Undo :func:`read_crontab`."""
    return " ".join(_field(given, name) for name in _FIELDS)


def _field(given: crontab, name: str) -> str:
    original = getattr(given, f"_orig_{name}")
    if isinstance(original, (str, int)) and not isinstance(original, bool):
        return "".join(str(original).split())
    return ",".join(str(int(number)) for number in sorted(getattr(given, name)))


class Crontab:
    """Ticks at minutes, hours and days of the wall clock."""

    def __init__(self, given: crontab, zone: tzinfo) -> None:
        self._minutes, self._hours = sorted(given.minute), sorted(given.hour)
        self._given = given
        self._zone = zone
        if not (self._minutes and self._hours and any(self._days(date(2000, 1, 1)))):
            raise InvalidSchedule(f"{given!r} never matches: there is no such time")

    def after(self, ms: int) -> int | None:
        """Return the next tick."""
        for candidate in self._walls(wall_time_of_ms(ms, self._zone)):
            tick = ms_of_wall_time(candidate, self._zone)
            if tick > ms:
                return tick
        return None

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        """Yield the matching times of the wall clock after *wall*."""
        for day in self._days(wall.date()):
            passed = (wall.hour, wall.minute) if day == wall.date() else (-1, -1)
            for hour in self._hours:
                if hour < passed[0]:
                    continue
                for minute in self._minutes:
                    if (hour, minute) > passed:
                        yield datetime.combine(day, time(hour, minute))

    def _days(self, first: date) -> Iterator[date]:
        """Yield the matching days from *first* on."""
        given = self._given
        for year in range(first.year, min(first.year + SEARCHED_YEARS, 9998) + 1):
            for month in sorted(given.month_of_year):
                if (year, month) < (first.year, first.month):
                    continue
                begin = first.day if (year, month) == (first.year, first.month) else 1
                for number in range(begin, monthrange(year, month)[1] + 1):
                    day = date(year, month, number)
                    if number in given.day_of_month and day.isoweekday() % 7 in given.day_of_week:
                        yield day
