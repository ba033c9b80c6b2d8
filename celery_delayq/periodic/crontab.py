"""Cron expressions: how they are read and written, and when they are due. No I/O."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta, tzinfo

from celery.schedules import crontab

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.wall_clock import YEARS, tick_at, wall_of

_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def read_crontab(text: str) -> crontab:
    """Read a cron expression of five fields, such as ``0 9 * * mon-fri``.

    Raises
    ------
    ValueError
        It has another number of fields, or one of them is wrong.
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
    said = getattr(given, f"_orig_{name}")
    if isinstance(said, (str, int)) and not isinstance(said, bool):
        return "".join(str(said).split())
    return ",".join(str(int(number)) for number in sorted(getattr(given, name)))


class Crontab:
    """By minutes, hours and days of the wall clock."""

    def __init__(self, given: crontab, zone: tzinfo) -> None:
        self._minutes, self._hours = sorted(given.minute), sorted(given.hour)
        self._given = given
        self._zone = zone
        every = (self._minutes, self._hours, given.month_of_year)
        if not all(every) or self._day_from(date(2000, 1, 1)) is None:
            raise InvalidSchedule(f"{given!r} never matches: there is no such time")

    def after(self, ms: int) -> int | None:
        """Return the next one."""
        for candidate in self._walls(wall_of(ms, self._zone)):
            tick = tick_at(candidate, self._zone)
            if tick > ms:
                return tick
        return None

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        """Yield the times of the wall clock that match, after that one."""
        day: date | None = wall.date()
        first = True
        while day is not None:
            day = self._day_from(day)
            if day is None:
                return
            today = first and day == wall.date()
            for hour in self._hours:
                if today and hour < wall.hour:
                    continue
                for minute in self._minutes:
                    if today and hour == wall.hour and minute <= wall.minute:
                        continue
                    yield datetime(day.year, day.month, day.day, hour, minute)
            first = False
            day = day + timedelta(days=1)

    def _day_from(self, day: date) -> date | None:
        """Return the first day that matches from that one on."""
        given = self._given
        last = day.year + YEARS
        while day.year <= min(last, 9998):
            if day.month not in given.month_of_year:
                month = min((m for m in given.month_of_year if m > day.month), default=None)
                day = (
                    date(day.year + 1, min(given.month_of_year), 1)
                    if month is None
                    else date(day.year, month, 1)
                )
                continue
            length = monthrange(day.year, day.month)[1]
            for number in range(day.day, length + 1):
                if number in given.day_of_month:
                    found = date(day.year, day.month, number)
                    if found.isoweekday() % 7 in given.day_of_week:
                        return found
            day = date(day.year, day.month, length) + timedelta(days=1)
        return None
