"""When periodic entries are due: the ticks of every kind of schedule. No I/O, no clock of its own.

A *tick* is a moment in ms since 1970. All times are given: they come from Redis' clock.

Times of day are those of a wall clock in a time zone. One that does not exist, since clocks are set
forward, is the next one that does; one that exists twice, since they are set back, counts once, the
first time.
"""

from __future__ import annotations

import copy
import math
import re
from calendar import monthrange
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any, Protocol

from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from dateutil.rrule import (
    DAILY,
    HOURLY,
    MINUTELY,
    SECONDLY,
    WEEKLY,
    YEARLY,
    rrulebase,
    rruleset,
    rrulestr,
)

from celery_delayq.errors import ConfigError

#: So many years ahead a time is looked for: those of 29 February that is a Monday come 40 apart.
YEARS = 40

#: Most steps from one tick to the next of schedules that say only when to ask again.
STEPS = 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)


class InvalidSchedule(ConfigError):
    """A schedule has no ticks, or they cannot be worked out."""


class ScheduleNotImportable(InvalidSchedule):
    """A schedule is of a class that cannot be imported here."""


class Rule(Protocol):
    """When an entry is due."""

    def after(self, ms: int) -> int | None:
        """Return the first tick after that moment, None when there is none any more."""


class clocked(BaseSchedule):  # noqa: N801 - named as Celery's schedules are
    """Once, at a moment.

    Parameters
    ----------
    at : datetime
        With a time zone.

    Raises
    ------
    InvalidSchedule
        It has none.
    """

    def __init__(self, at: datetime, nowfun: Any = None, app: Any = None) -> None:
        super().__init__(nowfun=nowfun, app=app)
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise InvalidSchedule(
                f"at={at!r}: expected a datetime with a time zone, such as "
                "datetime(2030, 1, 31, 9, tzinfo=timezone.utc)"
            )
        self.at = at

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:  # noqa: ARG002 - beat's
        """Return how long it is till then."""
        remaining: timedelta = self.at - self.now()
        return remaining

    def is_due(self, last_run_at: datetime) -> Any:
        """Tell beat whether it is time."""
        left = self.remaining_estimate(last_run_at).total_seconds()
        if last_run_at >= self.at:
            return schedstate(False, math.inf)
        return schedstate(True, math.inf) if left <= 0 else schedstate(False, left)

    def __repr__(self) -> str:
        return f"<clocked: {self.at.isoformat()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, clocked) and self.at == other.at

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return type(self), (self.at,)


class rrule(BaseSchedule):  # noqa: N801 - the same
    """By a rule of RFC 5545, as calendars have them.

    Parameters
    ----------
    text : str
        ``"FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0"``, or lines of ``DTSTART``,
        ``RRULE``, ``RDATE``, ``EXDATE``.
    start : datetime | None
        What it counts from, without a time zone by the wall clock of the entry; None for when the
        entry is made.

    Raises
    ------
    InvalidSchedule
        It is no such rule.
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

    def parsed(self, start: datetime, zone: tzinfo = timezone.utc) -> rrulebase:
        """Return the rule by the wall clock of *zone*; it counts from *start* if from nothing else.

        Raises
        ------
        InvalidSchedule
            It is no rule.
        """
        given = self.start
        if given is not None:
            start = given if given.tzinfo is None else given.astimezone(zone).replace(tzinfo=None)
        try:
            if "TZID" in self.text.upper():
                raise ValueError("TZID is not for a rule: an entry has a time zone")
            # Times in UTC are those of the wall clock then.
            text = _UTC.sub(lambda found: _local(found[0], zone), self.text)
            return rrulestr(text, dtstart=start, ignoretz=True)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as exc:
            raise InvalidSchedule(
                f"rrule({self.text!r}): {exc}; expected a rule of RFC 5545, such as "
                "'FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0'"
            ) from exc

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return how long it is till the next one."""
        last = _ms(self.maybe_make_aware(last_run_at))
        tick = rule_of(self, self.tz, last).after(last)
        return timedelta.max if tick is None else _moment(tick) - self.now()

    def is_due(self, last_run_at: datetime) -> Any:
        """Tell beat whether it is time."""
        left = self.remaining_estimate(last_run_at)
        due = left <= timedelta(0)
        if due:
            left = self.remaining_estimate(self.now())
        return schedstate(due, math.inf if left == timedelta.max else left.total_seconds())

    def __repr__(self) -> str:
        return f"<rrule: {self.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, rrule) and (self.text, self.start) == (other.text, other.start)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return type(self), (self.text, self.start)


def rule_of(given: BaseSchedule, zone: tzinfo, anchor: int) -> Rule:
    """Return when a schedule is due.

    Parameters
    ----------
    zone : tzinfo
        Whose wall clock counts.
    anchor : int
        From when intervals are counted, and rules that say nothing else (ms).

    Raises
    ------
    InvalidSchedule
        It is never due, or is no schedule.
    """
    kind = type(given)
    if kind is schedule:
        return Rounded(given, zone, anchor) if given.relative else Interval(_every(given), anchor)
    if kind is crontab:
        return Crontab(given, zone)
    if kind is rrule:
        return Recurrence(given, zone, anchor)
    if kind is clocked:
        return Once(_ms(given.at))
    if isinstance(given, BaseSchedule):
        return Asked(given, zone)
    raise InvalidSchedule(f"{given!r}: expected a schedule, such as crontab(minute=0)")


def latest(rule: Rule, after: int, until: int, most: int) -> list[int]:
    """Return the last ticks after one moment and until the other, at most so many, in order."""
    width = 1000
    while True:
        # Years may have passed, of which few ticks are asked for.
        start = after if isinstance(rule, Asked) else max(after, until - width)
        found: deque[int] = deque(maxlen=most)
        tick = rule.after(start)
        while tick is not None and tick <= until:
            found.append(tick)
            tick = rule.after(tick)
        if start == after or len(found) == most:
            return list(found)
        width *= 8


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so many ms."""

    every: int
    anchor: int

    def after(self, ms: int) -> int:
        """Return the next one; none is before the anchor."""
        return self.anchor + max(1, (ms - self.anchor) // self.every + 1) * self.every


@dataclass(frozen=True, slots=True)
class Once:
    """At one moment."""

    at: int

    def after(self, ms: int) -> int | None:
        """Return it, if it is still to come."""
        return self.at if self.at > ms else None


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
        for candidate in self._walls(_wall(ms, self._zone)):
            tick = _at(candidate, self._zone)
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


class Recurrence:
    """By a rule of RFC 5545."""

    def __init__(self, given: rrule, zone: tzinfo, anchor: int) -> None:
        self._text, self._zone = given.text, zone
        # Whole seconds, as all that rules know.
        self._rule = given.parsed(_wall(anchor, zone).replace(microsecond=0), zone)
        self._near: Any = None
        self._near_from = self._near_to = datetime.max

    def after(self, ms: int) -> int | None:
        """Return the next one.

        Raises
        ------
        InvalidSchedule
            The rule contradicts itself.
        """
        wall = _wall(ms, self._zone)
        try:
            for candidate in self._nearby(wall).xafter(wall):
                tick = _at(candidate, self._zone)
                if tick > ms:
                    return tick
        except ValueError as exc:
            raise InvalidSchedule(f"rrule({self._text!r}): {exc}") from exc
        return None

    def _nearby(self, wall: datetime) -> Any:
        """Return the rule, counted from a time not long before: it goes through all from there."""
        if not self._near_from <= wall < self._near_to:
            rule: Any = self._rule
            self._near_from, self._near_to = wall, wall + _FAR * _shortest(rule)
            if hasattr(rule, "_rrule"):  # a set of them
                self._near = near = rruleset()
                for each in rule._rrule:
                    near.rrule(_counted_near(each, wall))
                for each in rule._exrule:
                    near.exrule(_counted_near(each, wall))
                for each in rule._rdate:
                    near.rdate(each)
                for each in rule._exdate:
                    near.exdate(each)
            else:
                self._near = _counted_near(rule, wall)
        return self._near


class Asked:
    """As the schedule itself says when it is asked as beat does: ``solar``, and what others make.

    Its ``now()`` is the moment in question; a class that asks another clock cannot be foreseen.
    """

    def __init__(self, given: BaseSchedule, zone: tzinfo) -> None:
        try:
            self._schedule = copy.copy(given)
        except Exception as exc:  # classes are anybody's
            raise InvalidSchedule(
                f"{given!r} cannot be copied: {type(exc).__name__}: {exc}"
            ) from exc
        self._schedule.tz = zone
        self._zone = zone

    def after(self, ms: int) -> int | None:
        """Return the next one.

        Raises
        ------
        InvalidSchedule
            Asked again and again it is not due, or it fails.
        """
        last = _moment(ms).astimezone(self._zone)
        at = ms
        for _ in range(STEPS):
            due, seconds = self._ask(last, at)
            if due and at > ms:
                return at
            if seconds > _LONGEST:
                return None
            at += max(1, math.ceil(seconds * 1000))
            if at - ms > _LONGEST * 1000:
                return None
        raise InvalidSchedule(
            f"{self._schedule!r} is not due, asked {STEPS:,} times from {last} to {_moment(at)}"
        )

    def _ask(self, last: datetime, at: int) -> tuple[bool, float]:
        now = _moment(at).astimezone(self._zone)
        self._schedule.nowfun = lambda: now
        try:
            due, seconds = self._schedule.is_due(last)
            seconds = float(seconds)
            if math.isnan(seconds):
                raise ValueError("nan is no number of seconds")
            return bool(due), max(0.0, seconds)
        except Exception as exc:
            raise InvalidSchedule(
                f"{self._schedule!r} cannot say when it is due: {type(exc).__name__}: {exc}"
            ) from exc


class Rounded:
    """Every so many whole days, hours, minutes or seconds of the wall clock, as ``relative`` says.

    What an interval has beyond its largest unit does not count, as with Celery: it is rounded off.
    """

    def __init__(self, given: schedule, zone: tzinfo, anchor: int) -> None:
        seconds = _every(given) / 1000
        unit = next((unit for unit in (86400, 3600, 60, 1) if seconds >= unit), None)
        if unit is None:
            raise InvalidSchedule(f"every {seconds:g} s: relative is for seconds and more")
        # Only days and hours are not the same everywhere.
        self._zone = zone if unit >= 3600 else timezone.utc
        self._every = timedelta(seconds=seconds // unit * unit)
        wall = _wall(anchor, self._zone)
        day = wall.replace(hour=0, minute=0, second=0, microsecond=0)
        self._start = day + (wall - day) // timedelta(seconds=unit) * timedelta(seconds=unit)

    def after(self, ms: int) -> int:
        """Return the next one; none is before the anchor."""
        passed = (_wall(ms, self._zone) - self._start) // self._every
        while True:
            passed = max(0, passed) + 1
            tick = _at(self._start + passed * self._every, self._zone)
            if tick > ms:
                return tick


def _every(given: schedule) -> int:
    every = given.run_every
    if not isinstance(every, timedelta):
        raise InvalidSchedule(f"every {every!r}: expected seconds or a timedelta")
    ms: int = every // _MS
    if ms < 1 or every != ms * _MS or ms > _LONGEST * 1000:
        raise InvalidSchedule(
            f"every {every.total_seconds():g} s: expected whole milliseconds, at least one, and "
            f"at most {YEARS} years"
        )
    return ms


def _rules(rule: Any) -> list[Any]:
    """Return what a rule consists of."""
    return [*rule._rrule, *rule._exrule] if hasattr(rule, "_rrule") else [rule]


def _check_rule(rule: Any, text: str) -> None:
    """Refuse what dateutil would look for without an end, or for long."""
    for each in _rules(rule):
        if not 1 <= each._interval <= _MOST_INTERVAL:
            raise InvalidSchedule(
                f"rrule({text!r}): expected an INTERVAL of 1 or more, not of ages"
            )
        # The calendar ends in 9999, and there were years of every kind since.
        start = each._dtstart.replace(year=9999 - YEARS, month=1, day=1)
        try:
            found = next(
                iter(each.replace(dtstart=start, interval=1, count=None, until=None)), None
            )
        except ValueError as exc:
            raise InvalidSchedule(f"rrule({text!r}): {exc}") from exc
        if found is None:
            raise InvalidSchedule(f"rrule({text!r}) never matches: there is no such time")


def _counted_near(rule: Any, wall: datetime) -> Any:
    """Return a rule that has the same times after that one, counted from not long before.

    What is limited to a number of times is not moved.
    """
    start, freq, interval = rule._dtstart, rule._freq, rule._interval
    if rule._count is not None:
        return rule
    if freq in _UNITS:
        unit = _UNITS[freq] * interval
        moved = start + ((wall - start) // unit - 1) * unit
    elif start.day > 28:
        return rule
    else:
        months = interval * (12 if freq == YEARLY else 1)
        passed = (wall.year - start.year) * 12 + wall.month - start.month
        month = start.month - 1 + (passed // months - 1) * months
        moved = start.replace(year=start.year + month // 12, month=month % 12 + 1)
    return rule.replace(dtstart=moved) if moved > start else rule


def _shortest(rule: Any) -> timedelta:
    """Return after how long the first of its rules repeats, about."""
    units: list[timedelta] = [
        _UNITS.get(each._freq, timedelta(days=28)) * each._interval for each in _rules(rule)
    ]
    return min(units, default=timedelta(days=365))


def _local(text: str, zone: tzinfo) -> str:
    """Return a time in UTC, as rules have it, by a wall clock."""
    moment = datetime.strptime(text.upper(), "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    return f"{moment.astimezone(zone):%Y%m%dT%H%M%S}"


_UTC = re.compile(r"\b\d{8}T\d{6}Z", re.IGNORECASE)

#: What a rule repeats after, by its frequency, whatever the dates. Months and years differ.
_UNITS = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}

#: A rule is counted anew from near by after so many repetitions.
_FAR = 10

#: A year of seconds.
_MOST_INTERVAL = 366 * 86400

#: In seconds.
_LONGEST = YEARS * 366 * 86400


def _wall(ms: int, zone: tzinfo) -> datetime:
    """Return what a wall clock shows then."""
    return _moment(ms).astimezone(zone).replace(tzinfo=None)


def _at(wall: datetime, zone: tzinfo) -> int:
    """Return when a wall clock shows that for the first time, or where it never does, when it
    shows something later for the first time.
    """
    aware = wall.replace(tzinfo=zone)
    back = aware.astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None)
    if back == wall:
        return _ms(aware)
    # It is in a gap: with the offset before it, it comes out behind it, and with that after it
    # before; the gap ends where both meet.
    before, after = aware.replace(fold=1), aware
    low, high = sorted((_ms(before), _ms(after)))
    while high - low > 1:
        middle = (low + high) // 2
        if _wall(middle, zone) < wall:
            low = middle
        else:
            high = middle
    return high


def _ms(moment: datetime) -> int:
    return -((_EPOCH - moment) // _MS)


def _moment(ms: int) -> datetime:
    return _EPOCH + ms * _MS
