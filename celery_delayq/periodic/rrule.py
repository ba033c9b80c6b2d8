"""Recurrence rules of RFC 5545, parsed by dateutil."""

from __future__ import annotations

import math
import re
from copy import copy
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, schedstate
from dateutil.relativedelta import relativedelta
from dateutil.rrule import (
    DAILY,
    HOURLY,
    MINUTELY,
    MONTHLY,
    SECONDLY,
    WEEKLY,
    YEARLY,
    rrulestr,
)

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.wall_clock import (
    SEARCHED_YEARS,
    datetime_of_ms,
    ms_of_datetime,
    ms_of_wall_time,
    wall_time_of_ms,
)

_UTC = re.compile(r"\b\d{8}T\d{6}Z", re.IGNORECASE)

#: Length of one period by frequency. Months and years have no fixed length.
_UNITS = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}

#: Most days in one period of a frequency. A period of any other frequency is at most a day.
_DAYS = {YEARLY: 366, MONTHLY: 31, WEEKLY: 7}

#: Errors of dateutil for invalid rules. Some of them are raised only by the search for times.
_RULE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError)

#: Largest COUNT of a rule. Computing this many times takes milliseconds.
_MAX_COUNT = 1000

#: A year in seconds.
_MAX_INTERVAL_SECONDS = 366 * 86400


class rrule(BaseSchedule):  # noqa: N801 - named like Celery's schedules
    """A recurrence rule of RFC 5545, as in calendars.

    Parameters
    ----------
    text : str
        ``"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0"``, or lines of ``DTSTART``,
        ``RRULE``, ``RDATE`` and ``EXDATE``.
    start : datetime | None
        Start of the rule. Without a time zone, a time of the wall clock in the entry's time zone.
        None for the time when the entry is added.

    Raises
    ------
    InvalidSchedule
        *text* is not a valid rule.
    """

    def __init__(
        self, text: str, start: datetime | None = None, nowfun: Any = None, app: Any = None
    ) -> None:
        super().__init__(nowfun=nowfun, app=app)
        if not (isinstance(text, str) and (start is None or isinstance(start, datetime))):
            raise InvalidSchedule(
                f"rrule({text!r}, {start!r}): expected a text, and a datetime or None"
            )
        self.text, self.start = text, start
        _check_rule(self.parsed(datetime(2000, 1, 1)), text)

    def parsed(self, start: datetime, zone: tzinfo = timezone.utc) -> Any:
        """Return the rules of the text as dateutil's rule set, in wall-clock times of *zone*.

        Parameters
        ----------
        start : datetime
            Start of the rules if neither the text nor the schedule has a start.

        Raises
        ------
        InvalidSchedule
            The text is not a valid rule.
        """
        given = self.start
        try:
            if given is not None and given.tzinfo is not None:
                given = given.astimezone(zone).replace(tzinfo=None)
            start = start if given is None else given
            if "TZID" in self.text.upper():
                raise ValueError("TZID is not for a rule: an entry has a time zone")
            # Convert times in UTC to times of the wall clock.
            text = _UTC.sub(lambda found: _local(found[0], zone), self.text)
            rules: Any = rrulestr(text, dtstart=start, ignoretz=True, forceset=True)
            if not (rules._rrule or rules._rdate):
                raise ValueError("there is neither RRULE nor RDATE")
            return rules
        except _RULE_ERRORS as exc:
            raise InvalidSchedule(
                f"rrule({self.text!r}): {exc}; expected a rule of RFC 5545, such as "
                "'FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0'"
            ) from exc

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time until the next tick."""
        last_ms = ms_of_datetime(self.maybe_make_aware(last_run_at))
        tick = Recurrence(self, self.tz, last_ms).after(last_ms)
        return timedelta.max if tick is None else datetime_of_ms(tick) - self.now()

    def is_due(self, last_run_at: datetime) -> Any:
        """Return for beat whether the schedule is due, and the seconds until the next call."""
        remaining = self.remaining_estimate(last_run_at)
        due = remaining <= timedelta(0)
        if due:
            remaining = self.remaining_estimate(self.now())
        return schedstate(
            due, math.inf if remaining == timedelta.max else remaining.total_seconds()
        )

    def __repr__(self) -> str:
        return f"<rrule: {self.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, rrule) and (self.text, self.start) == (other.text, other.start)

    def __reduce__(self) -> Any:
        return type(self), (self.text, self.start)


class Recurrence:
    """Computes the ticks of a recurrence rule."""

    def __init__(self, given: rrule, zone: tzinfo, anchor: int) -> None:
        self._text, self._zone = given.text, zone
        # Times of rules are whole seconds.
        self._rule = given.parsed(wall_time_of_ms(anchor, zone).replace(microsecond=0), zone)

    def after(self, ms: int) -> int | None:
        """Return the next tick; None if there is none before the end of the calendar.

        Raises
        ------
        InvalidSchedule
            The rule contradicts itself.
        """
        try:
            wall = wall_time_of_ms(ms, self._zone)
            for candidate in self._nearby(wall).xafter(wall):
                tick = ms_of_wall_time(candidate, self._zone)
                if tick > ms:
                    return tick
        except OverflowError:
            return None
        except _RULE_ERRORS as exc:
            raise InvalidSchedule(f"rrule({self._text!r}): {exc}") from exc
        return None

    def _nearby(self, wall: datetime) -> Any:
        """Return the rule with its start moved close to *wall*.

        dateutil computes all times from the start of a rule.
        """
        near = copy(self._rule)
        near._rrule = [_counted_near(each, wall) for each in self._rule._rrule]
        return near


def _check_rule(rule: Any, text: str) -> None:
    """Refuse rules for which dateutil would search very long for a time."""
    if rule._exrule:
        # EXRULE may exclude all times of the other rules. Only a full search would find out.
        raise InvalidSchedule(
            f"rrule({text!r}): EXRULE is not taken, RFC 5545 has done away with it; leave out "
            "times by EXDATE, or say by RRULE only when it is due"
        )
    for each in rule._rrule:
        if not 1 <= each._interval <= _MAX_INTERVAL_SECONDS:
            raise InvalidSchedule(
                f"rrule({text!r}): expected an INTERVAL of 1 or more, not of ages"
            )
        if each._count is not None and each._count > _MAX_COUNT:
            raise InvalidSchedule(
                f"rrule({text!r}): expected a COUNT of at most {_MAX_COUNT:,}, since all are gone "
                "through from the first one; UNTIL has no such limit"
            )
        if each._bysetpos and min(map(abs, each._bysetpos)) > _most_of(each):
            raise InvalidSchedule(
                f"rrule({text!r}) never matches: expected a BYSETPOS of at most {_most_of(each)}, "
                "there are no more times in one period of its FREQ"
            )
        # Search the last 40 years of the calendar, which contain every kind of year. For
        # frequencies shorter than a day, search a matching day: a search through all seconds takes
        # much longer.
        start = each._dtstart.replace(year=9999 - SEARCHED_YEARS, month=1, day=1)
        daily = {"freq": DAILY, "bysetpos": None} if each._freq > DAILY else {}
        try:
            near = each.replace(dtstart=start, interval=1, count=None, until=None, **daily)
            found = next(iter(near), None)
        except _RULE_ERRORS as exc:
            raise InvalidSchedule(f"rrule({text!r}): {exc}") from exc
        if found is None:
            raise InvalidSchedule(f"rrule({text!r}) never matches: there is no such time")


def _most_of(rule: Any) -> int:
    """Return the largest number of times in one period of the rule's frequency."""
    if rule._freq < HOURLY:
        return _DAYS.get(rule._freq, 1) * len(rule._timeset)
    minutes = len(rule._byminute or ()) if rule._freq == HOURLY else 1
    seconds = len(rule._bysecond or ()) if rule._freq != SECONDLY else 1
    return minutes * seconds


def _counted_near(rule: Any, wall: datetime) -> Any:
    """Return a rule that has the same times after *wall*, and a start close to *wall*.

    A rule with a COUNT is returned unchanged. So is a monthly or yearly rule that starts after the
    28th day of a month.
    """
    start, freq, interval = rule._dtstart, rule._freq, rule._interval
    if rule._count is not None or wall <= start:
        return rule
    if freq in _UNITS:
        unit = _UNITS[freq] * interval
        moved = start + ((wall - start) // unit - 1) * unit
    elif start.day > 28:
        return rule
    else:
        months = interval * (12 if freq == YEARLY else 1)
        passed = (wall.year - start.year) * 12 + wall.month - start.month
        moved = start + relativedelta(months=(passed // months - 1) * months)
    return rule.replace(dtstart=moved) if moved > start else rule


def _local(text: str, zone: tzinfo) -> str:
    """Convert the text of a time in UTC to the text of a wall-clock time."""
    moment = datetime.strptime(text.upper(), "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    return f"{moment.astimezone(zone):%Y%m%dT%H%M%S}"
