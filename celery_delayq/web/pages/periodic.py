"""The page "Periodic": periodic entries, their next ticks, and a week in which they collide."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from celery_delayq.model.scheduled import moment
from celery_delayq.periodic.policy import tick_id, upcoming
from celery_delayq.periodic.state import Periodic, UnreadableEntry
from celery_delayq.web.query import NotFound, Query
from celery_delayq.web.site import Site
from celery_delayq.web.words import in_words

#: Most entries of the list, those that are due next first.
MAX_ENTRIES = 200

#: Next ticks of an entry.
NEXT_TICKS = 5

#: Most ticks of an entry in the week, and seconds for which ticks are computed.
MAX_TICKS, WEEK_SECONDS_TO_READ = 400, 0.3

#: Most minutes of the week in which several entries tick.
MAX_COLLISIONS = 10

_HOUR, _WEEK_HOURS = timedelta(hours=1), 7 * 24


@dataclass(frozen=True, slots=True)
class Row:
    """An entry; *periodic* is None if it cannot be read."""

    name: str
    when: str
    status: str
    task: str
    source: str
    periodic: Periodic | None

    @property
    def next(self) -> datetime | None:
        """The next tick that is not scheduled yet."""
        return None if self.periodic is None else self.periodic.next

    @property
    def last_id(self) -> str:
        """The id of the task of the last tick; ``""`` without one."""
        entry = self.periodic
        tick = None if entry is None else entry.state.last_tick
        return "" if tick is None else tick_id(self.name, tick)


@dataclass(frozen=True, slots=True)
class Week:
    """The ticks of the next seven days.

    Attributes
    ----------
    begins : datetime
        The begin of the first hour.
    hours : list[int]
        Number of ticks in each hour.
    collisions : list[tuple[datetime, list[str]]]
        Minutes in which several entries tick, those with most entries first.
    is_cut : bool
        Whether some ticks were left out, since there are too many.
    """

    begins: datetime
    hours: list[int]
    collisions: list[tuple[datetime, list[str]]]
    is_cut: bool

    @property
    def times(self) -> list[datetime]:
        """The begin of each hour."""
        return [self.begins + n * _HOUR for n in range(len(self.hours))]


@dataclass(frozen=True, slots=True)
class PeriodicPage:
    """The view; *entry* is the one whose name is in the path, with its next ticks."""

    now: datetime
    rows: list[Row]
    total: int
    part: str
    week: Week | None
    entry: Row | None = None
    ticks: list[datetime] | None = None


def read(site: Site, query: Query) -> PeriodicPage:
    """Return the view. Fields: ``name``, a part of the name.

    Raises
    ------
    NotFound
        There is no entry with the name in the path.
    """
    now, part = site.now(), query.text("name")
    entries = site.delayq.periodic
    if query.rest:
        found = next((e for e in _all(site) if e.name == query.rest), None)
        if found is None:
            raise NotFound(f"There is no periodic entry {query.rest!r}.")
        ticks = [] if found.periodic is None else [*entries.next(found.name, NEXT_TICKS)]
        return PeriodicPage(now, [found], 1, part, None, found, ticks)
    rows = [each for each in _all(site) if part.lower() in each.name.lower()]
    latest = datetime.max.replace(tzinfo=timezone.utc)
    rows.sort(key=lambda each: (each.next or latest, each.name))
    return PeriodicPage(now, rows[:MAX_ENTRIES], len(rows), part, _week(site, rows, now))


def _all(site: Site) -> list[Row]:
    periodic = site.delayq.periodic
    return [*map(_row, periodic.iterate()), *map(_unreadable, periodic.unreadable())]


def _row(entry: Periodic) -> Row:
    definition = entry.definition
    when = in_words(definition.schedule)
    if definition.timezone is not None:
        when = f"{when}, {definition.timezone}"
    return Row(entry.name, when, entry.status, definition.task, definition.source or "", entry)


def _unreadable(entry: UnreadableEntry) -> Row:
    return Row(entry.name, entry.problem, entry.status, "?", entry.source or "?", None)


def _week(site: Site, rows: list[Row], now: datetime) -> Week:
    begins = now.replace(minute=0, second=0, microsecond=0)
    ends_ms = int((begins + _WEEK_HOURS * _HOUR).timestamp() * 1000)
    hours = [0] * _WEEK_HOURS
    minutes: dict[int, list[str]] = {}
    ends, is_cut = time.monotonic() + WEEK_SECONDS_TO_READ, False
    for row in rows:
        if row.periodic is None or row.periodic.status != "on":
            continue
        if time.monotonic() > ends:
            is_cut = True
            break
        ticks = upcoming(row.periodic, MAX_TICKS, site.zone)
        is_cut = is_cut or (len(ticks) == MAX_TICKS and ticks[-1] < ends_ms)
        for tick in ticks:
            if tick >= ends_ms:
                break
            hours[max(0, (tick - int(begins.timestamp() * 1000)) // 3_600_000)] += 1
            minutes.setdefault(tick // 60_000, []).append(row.name)
    sizes = Counter({minute: len({*names}) for minute, names in minutes.items()})
    collisions = [
        (moment(minute * 60_000), sorted({*minutes[minute]}))
        for minute, number in sizes.most_common(MAX_COLLISIONS)
        if number > 1
    ]
    return Week(begins, hours, collisions, is_cut)
