"""When periodic entries are due: the ticks of every kind of schedule. No I/O, no clock of its own.

A *tick* is a moment in ms since 1970. All times are given: they come from Redis' clock.

Times of day are those of a wall clock in a time zone. One that does not exist, since clocks are set
forward, is the next one that does; one that exists twice, since they are set back, counts once, the
first time.
"""

from __future__ import annotations

import copy
import math
from calendar import monthrange
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any, Protocol

from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from celery.utils.time import delta_resolution
from dateutil.rrule import (
    DAILY,
    HOURLY,
    MINUTELY,
    SECONDLY,
    WEEKLY,
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
        if not isinstance(at, datetime) or at.tzinfo is None:
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
            return schedstate(False, 3600.0)
        return schedstate(left <= 0, max(left, 1.0))

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
        self.text, self.start = text, start
        self.parsed(datetime(2000, 1, 1))

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
            return rrulestr(self.text, dtstart=start, ignoretz=True)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as exc:
            raise InvalidSchedule(
                f"rrule({self.text!r}): {exc}; expected a rule of RFC 5545, such as "
                "'FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0'"
            ) from exc

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return how long it is till the next one."""
        now = self.now()
        tick = rule_of(self, self.tz, _ms(last_run_at)).after(_ms(last_run_at))
        return timedelta(days=365) if tick is None else _moment(tick) - now

    def is_due(self, last_run_at: datetime) -> Any:
        """Tell beat whether it is time."""
        left = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(left <= 0, max(left, 0.0))

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
        return _relative(given, zone) if given.relative else Interval(_every(given), anchor)
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
        if self._day_from(date(2000, 1, 1)) is None:
            raise InvalidSchedule(f"{given!r} never matches: there is no such day")

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
        self._zone = zone
        # Whole seconds, as all that rules know.
        self._rule = given.parsed(_wall(anchor, zone).replace(microsecond=0), zone)

    def after(self, ms: int) -> int | None:
        """Return the next one."""
        wall = _wall(ms, self._zone)
        for candidate in self._nearby(wall).xafter(wall):
            tick = _at(candidate, self._zone)
            if tick > ms:
                return tick
        return None

    def _nearby(self, wall: datetime) -> Any:
        """Return the rule, counted from a tick not long before: it goes through all from the first.

        What is limited to a number of times, or has exceptions, is not moved.
        """
        rule: Any = self._rule
        start = getattr(rule, "_dtstart", None)
        unit = None if isinstance(rule, rruleset) else _UNITS.get(rule._freq)
        if start is None or unit is None or rule._count is not None:
            return rule
        unit *= rule._interval
        if wall - start > _FAR * unit:
            self._rule = rule = rule.replace(dtstart=start + ((wall - start) // unit - 1) * unit)
        return rule


class Asked:
    """As the schedule itself says when it is asked as beat does: ``solar``, and what others make.

    Its ``now()`` is the moment in question; a class that asks another clock cannot be foreseen.
    """

    def __init__(self, given: BaseSchedule, zone: tzinfo) -> None:
        self._schedule = copy.copy(given)
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
            if not math.isfinite(seconds):
                return None
            at += max(1, math.ceil(seconds * 1000))
        raise InvalidSchedule(
            f"{self._schedule!r} is not due, asked {STEPS:,} times from {last} to {_moment(at)}"
        )

    def _ask(self, last: datetime, at: int) -> tuple[bool, float]:
        now = _moment(at).astimezone(self._zone)
        self._schedule.nowfun = lambda: now
        try:
            due, seconds = self._schedule.is_due(last)
            return bool(due), float(seconds)
        except Exception as exc:
            raise InvalidSchedule(
                f"{self._schedule!r} cannot say when it is due: {type(exc).__name__}: {exc}"
            ) from exc


class _Rounded:
    """Every so often, rounded to the unit of the interval, as ``relative`` means it."""

    def __init__(self, every: timedelta, zone: tzinfo) -> None:
        self._every, self._zone = every, zone

    def after(self, ms: int) -> int:
        """Return the next one."""
        wall = _wall(ms, self._zone)
        start: datetime = delta_resolution(wall, self._every)
        tick = _at(start + self._every, self._zone)
        while tick <= ms:
            start += self._every
            tick = _at(start + self._every, self._zone)
        return tick


def _relative(given: schedule, zone: tzinfo) -> Rule:
    _every(given)
    return _Rounded(given.run_every, zone)


def _every(given: schedule) -> int:
    every = given.run_every
    ms: int = every // _MS
    if ms < 1 or every != ms * _MS:
        raise InvalidSchedule(
            f"every {every.total_seconds():g} s: expected whole milliseconds, at least one"
        )
    return ms


#: What a rule repeats after, by its frequency, whatever the dates. Months and years differ.
_UNITS = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}

#: A rule is counted anew from near by when it is so many repetitions behind.
_FAR = 10


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
