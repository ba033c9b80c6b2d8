"""Recurrence rules of RFC 5545, read by dateutil."""

from __future__ import annotations

import math
import re
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
    rruleset,
    rrulestr,
)

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.wall_clock import SEARCHED_YEARS, moment_of, ms_of, tick_at, wall_of

_UTC = re.compile(r"\b\d{8}T\d{6}Z", re.IGNORECASE)

#: Length of one period by frequency; months and years differ in length.
_UNITS = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}

#: Most days in one period of a frequency. Shorter ones have a part of one.
_DAYS = {YEARLY: 366, MONTHLY: 31, WEEKLY: 7}

#: Errors of dateutil for invalid rules, some of them only while it searches for times.
_RULE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError)

#: After so many repetitions the start of a rule is moved again, see :func:`_counted_near`.
_MOVE_REPETITIONS = 10

#: Largest COUNT of a rule; counting so many times takes milliseconds.
_MAX_COUNT = 1000

#: A year of seconds.
_MAX_INTERVAL_SECONDS = 366 * 86400


class rrule(BaseSchedule):  # noqa: N801 - the same
    """A recurrence rule of RFC 5545, as in calendars.

    Parameters
    ----------
    text : str
        ``"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0"``, or lines of ``DTSTART``,
        ``RRULE``, ``RDATE``, ``EXDATE``.
    start : datetime | None
        Start of the rule; without a time zone, by the wall clock of the entry. None: the time when
        the entry is added.

    Raises
    ------
    InvalidSchedule
        *text* is no such rule.
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
        """Return dateutil's set of rules by the wall clock of *zone*.

        Parameters
        ----------
        start : datetime
            Start of the rules if neither the text nor the schedule has one.

        Raises
        ------
        InvalidSchedule
            The text is no rule.
        """
        given = self.start
        try:
            if given is not None and given.tzinfo is not None:
                given = given.astimezone(zone).replace(tzinfo=None)
            start = start if given is None else given
            if "TZID" in self.text.upper():
                raise ValueError("TZID is not for a rule: an entry has a time zone")
            # Times in UTC become times of the wall clock.
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
        last = ms_of(self.maybe_make_aware(last_run_at))
        tick = Recurrence(self, self.tz, last).after(last)
        return timedelta.max if tick is None else moment_of(tick) - self.now()

    def is_due(self, last_run_at: datetime) -> Any:
        """Return whether it is due, and when to ask again, as beat expects it."""
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
    """The ticks of a recurrence rule."""

    def __init__(self, given: rrule, zone: tzinfo, anchor: int) -> None:
        self._text, self._zone = given.text, zone
        # Rules have whole seconds.
        self._rule = given.parsed(wall_of(anchor, zone).replace(microsecond=0), zone)
        #: First and last moment for which the moved rule is used, and that rule. One tuple, since
        #: several threads may use this.
        self._near: tuple[datetime, datetime, Any] = (datetime.max, datetime.max, None)

    def after(self, ms: int) -> int | None:
        """Return the next tick, or None if the calendar ends before it.

        Raises
        ------
        InvalidSchedule
            The rule contradicts itself.
        """
        try:
            wall = wall_of(ms, self._zone)
            for candidate in self._nearby(wall).xafter(wall):
                tick = tick_at(candidate, self._zone)
                if tick > ms:
                    return tick
        except OverflowError:
            return None
        except _RULE_ERRORS as exc:
            raise InvalidSchedule(f"rrule({self._text!r}): {exc}") from exc
        return None

    def _nearby(self, wall: datetime) -> Any:
        """Return the rule with its start moved close to *wall*: dateutil walks from the start."""
        begin, end, near = self._near
        if not begin <= wall < end:
            near = rruleset()
            for each in self._rule._rrule:
                near.rrule(_counted_near(each, wall))
            for date in self._rule._rdate:
                near.rdate(date)
            for date in self._rule._exdate:
                near.exdate(date)
            self._near = wall, _far_from(wall, self._rule), near
        return near


def _check_rule(rule: Any, text: str) -> None:
    """Refuse rules whose times dateutil would search for very long."""
    if rule._exrule:
        # It may exclude all times of the other rules, which only a full search would show.
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
        # Search the last 40 years of the calendar: they contain every kind of year. For frequencies
        # below a day it is enough to find a day, and much faster than to walk all seconds.
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
    """Return a rule with the same times after *wall* whose start is close to it.

    A rule with a COUNT is returned as it is.
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


def _far_from(wall: datetime, rule: Any) -> datetime:
    """Return the moment from which the start of a rule has to be moved again."""
    repeats: list[timedelta] = [
        _UNITS.get(each._freq, timedelta(days=28)) * each._interval for each in rule._rrule
    ]
    try:
        return wall + _MOVE_REPETITIONS * min(repeats, default=timedelta(days=365))
    except OverflowError:
        return datetime.max


def _local(text: str, zone: tzinfo) -> str:
    """Return the text of a time in UTC as the text of a time by the wall clock."""
    moment = datetime.strptime(text.upper(), "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    return f"{moment.astimezone(zone):%Y%m%dT%H%M%S}"
