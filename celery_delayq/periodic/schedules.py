"""The rules of schedules: when an entry is due. No I/O, no clock of its own.

A *tick* is a moment in ms since 1970, by Redis' clock.

Times of day are times of the wall clock in a time zone. If a time does not exist, because clocks
are set forward, the tick is at the next time that exists. If a time exists twice, because clocks
are set back, the tick is at the first one.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Protocol, TypeVar

from celery.schedules import BaseSchedule, crontab, schedstate, schedule

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.crontab import Crontab
from celery_delayq.periodic.rrule import Recurrence, rrule
from celery_delayq.periodic.wall_clock import (
    MILLISECOND,
    SEARCHED_SECONDS,
    SEARCHED_YEARS,
    datetime_of_ms,
    ms_of_datetime,
    ms_of_wall_time,
    wall_time_of_ms,
)

K = TypeVar("K", bound=type[BaseSchedule])

#: Registered classes of schedules by import path. A path from Redis is looked up here, and never
#: imported.
_SCHEDULE_CLASSES: dict[str, type[BaseSchedule]] = {}

#: Most calls of ``is_due`` in the search for one tick.
MAX_STEPS = 1000

_DAY_MS = 86_400_000


class Rule(Protocol):
    """Computes the ticks of an entry."""

    def after(self, ms: int) -> int | None:
        """Return the first tick after a moment (ms); None if there is none."""


class clocked(BaseSchedule):  # noqa: N801 - named like Celery's schedules
    """A schedule with a single tick.

    Parameters
    ----------
    at : datetime
        The time of the tick, with a time zone.

    Raises
    ------
    InvalidSchedule
        *at* has no time zone.
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
        """Return the time until *at*."""
        remaining: timedelta = self.at - self.now()
        return remaining

    def is_due(self, last_run_at: datetime) -> Any:
        """Return for beat whether the schedule is due, and the seconds until the next call."""
        seconds = self.remaining_estimate(last_run_at).total_seconds()
        if last_run_at >= self.at or seconds <= 0:
            return schedstate(last_run_at < self.at, math.inf)
        return schedstate(False, seconds)

    def __repr__(self) -> str:
        return f"<clocked: {self.at.isoformat()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, clocked) and self.at == other.at

    def __reduce__(self) -> Any:
        return type(self), (self.at,)


def register(kind: K) -> K:
    """Register a class of schedules, so that this process can read entries with it. A decorator.

    The classes of schedules in ``beat_schedule`` and in calls are registered automatically.

    Raises
    ------
    InvalidSchedule
        *kind* is not a class of schedules, or is not defined at the top of a module.
    """
    if not (isinstance(kind, type) and issubclass(kind, BaseSchedule)):
        raise InvalidSchedule(f"{kind!r} is no class of schedules")
    if "." in kind.__qualname__:
        raise InvalidSchedule(
            f"{path_of(kind)}: expected a class that can be imported; define it at the top of a "
            "module"
        )
    _SCHEDULE_CLASSES[path_of(kind)] = kind
    return kind


def registered(path: str) -> type[BaseSchedule] | None:
    """Return the class that is registered under ``module:name`` or ``module.name``, or None."""
    module, colon, name = path.partition(":")
    return _SCHEDULE_CLASSES.get(path if colon else ":".join(module.rsplit(".", 1)) or name)


def path_of(kind: type) -> str:
    """Return the import path of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def rule_of(given: BaseSchedule, zone: tzinfo, anchor: int) -> Rule:
    """Return the rule of a schedule.

    Parameters
    ----------
    zone : tzinfo
        The time zone of the schedule's times of day.
    anchor : int
        Start of intervals, and of recurrence rules without a start (ms).

    Raises
    ------
    InvalidSchedule
        *given* is never due, or is not a schedule.
    """
    kind = type(given)
    if kind is schedule:
        return Rounded(given, zone, anchor) if given.relative else Interval(_every(given), anchor)
    if kind is crontab:
        return Crontab(given, zone)
    if kind is rrule:
        return Recurrence(given, zone, anchor)
    if kind is clocked:
        return Once(ms_of_datetime(given.at))
    if isinstance(given, BaseSchedule):
        return Polled(given, zone)
    raise InvalidSchedule(f"{given!r}: expected a schedule, such as crontab(minute=0)")


def latest(rule: Rule, after: int, until: int, most: int) -> list[int]:
    """Return the last ticks after *after* and until *until* (ms), at most *most*, in order."""
    width = 1000
    while True:
        # Start close to *until*, because the range may span years. A polled schedule may have other
        # ticks if the search starts at another moment. So it starts at *after* if the range is at
        # most a day.
        near = isinstance(rule, Polled) and until - after <= _DAY_MS
        start = after if near else max(after, until - width)
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
    """A tick every *every* ms, counted from the anchor."""

    every: int
    anchor: int

    def after(self, ms: int) -> int:
        """Return the next tick. No tick is before the anchor."""
        return self.anchor + max(1, (ms - self.anchor) // self.every + 1) * self.every


@dataclass(frozen=True, slots=True)
class Once:
    """A single tick."""

    at: int

    def after(self, ms: int) -> int | None:
        """Return the tick if it is after *ms*, otherwise None."""
        return self.at if self.at > ms else None


class Polled:
    """Ticks from calls of ``is_due`` as in beat: for ``solar`` and the app's own classes.

    The schedule's ``now()`` returns the moment of the search. Schedules with another clock are not
    supported.
    """

    def __init__(self, given: BaseSchedule, zone: tzinfo) -> None:
        try:
            self._schedule = copy.copy(given)
        except (Exception, SystemExit) as exc:  # classes are user code
            raise InvalidSchedule(
                f"{given!r} cannot be copied: {type(exc).__name__}: {exc}"
            ) from exc
        self._schedule.tz = zone
        self._zone = zone

    def after(self, ms: int) -> int | None:
        """Return the next tick.

        Raises
        ------
        InvalidSchedule
            The schedule raises an error, or is not due after :data:`MAX_STEPS` calls.
        """
        last_run_at = datetime_of_ms(ms).astimezone(self._zone)
        at = ms
        for _ in range(MAX_STEPS):
            due, seconds = self._ask(last_run_at, at)
            if due and at > ms:
                return at
            if seconds > SEARCHED_SECONDS:
                return None
            # Rounded to µs first, because 2.007 s as a float is more than 2007 ms.
            at += max(1, math.ceil(round(seconds * 1000, 3)))
            if at - ms > SEARCHED_SECONDS * 1000:
                return None
        raise InvalidSchedule(
            f"{self._schedule!r} is not due, asked {MAX_STEPS:,} times from {last_run_at} to "
            f"{datetime_of_ms(at)}"
        )

    def _ask(self, last_run_at: datetime, at: int) -> tuple[bool, float]:
        now = datetime_of_ms(at).astimezone(self._zone)
        self._schedule.nowfun = lambda: now
        try:
            due, seconds = self._schedule.is_due(last_run_at)
            seconds = float(seconds)
            if math.isnan(seconds):
                raise ValueError("nan is no number of seconds")
            return bool(due), max(0.0, seconds)
        except (Exception, SystemExit) as exc:
            raise InvalidSchedule(
                f"{self._schedule!r} cannot say when it is due: {type(exc).__name__}: {exc}"
            ) from exc


class Rounded:
    """Intervals with ``relative=True``: whole days, hours, minutes or seconds of the wall clock.

    As in Celery, an interval is rounded down to its largest unit.
    """

    def __init__(self, given: schedule, zone: tzinfo, anchor: int) -> None:
        seconds = _every(given) / 1000
        unit = next((unit for unit in (86400, 3600, 60, 1) if seconds >= unit), None)
        if unit is None:
            raise InvalidSchedule(f"every {seconds:g} s: relative is for seconds and more")
        # Ticks at whole minutes and seconds do not depend on the time zone.
        self._zone = zone if unit >= 3600 else timezone.utc
        self._every = timedelta(seconds=seconds // unit * unit)
        wall = wall_time_of_ms(anchor, self._zone)
        day = wall.replace(hour=0, minute=0, second=0, microsecond=0)
        self._start = day + (wall - day) // timedelta(seconds=unit) * timedelta(seconds=unit)

    def after(self, ms: int) -> int:
        """Return the next tick. No tick is before the anchor."""
        passed = (wall_time_of_ms(ms, self._zone) - self._start) // self._every
        while True:
            passed = max(0, passed) + 1
            tick = ms_of_wall_time(self._start + passed * self._every, self._zone)
            if tick > ms:
                return tick


def _every(given: schedule) -> int:
    every = given.run_every
    if not isinstance(every, timedelta):
        raise InvalidSchedule(f"every {every!r}: expected seconds or a timedelta")
    ms: int = every // MILLISECOND
    if ms < 1 or every != ms * MILLISECOND or ms > SEARCHED_SECONDS * 1000:
        raise InvalidSchedule(
            f"every {every.total_seconds():g} s: expected whole milliseconds, at least one, and "
            f"at most {SEARCHED_YEARS} years"
        )
    return ms
