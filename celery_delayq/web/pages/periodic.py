"""The page "Periodic": periodic entries, a week in which they collide, and one entry with its next
ticks and last runs.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from celery_delayq.errors import InvalidSchedule
from celery_delayq.model.history import Run
from celery_delayq.model.scheduled import moment
from celery_delayq.periodic.entries import Periodic, UnreadableEntry
from celery_delayq.periodic.policy import tick_id, upcoming
from celery_delayq.web.query import NotFound, Query
from celery_delayq.web.schedule_words import in_words
from celery_delayq.web.site import Site, Texts

#: Most entries of the list, those that are due next first.
MAX_ENTRIES = 200

#: Next ticks of an entry, and its last runs.
NEXT_TICKS, LAST_RUNS = 5, 10

#: The newest runs of all tasks among which those of an entry are searched, and those of the list.
LOOKED_RUNS, LOOKED_RUNS_OF_LIST = 10_000, 1000

#: Most ticks of an entry in the week, and seconds for which ticks are computed.
MAX_TICKS, WEEK_SECONDS_TO_READ = 400, 0.3

#: Seconds for which the index is asked for last runs that are older than the newest runs.
LAST_RUNS_SECONDS_TO_READ = 0.2

#: Most minutes of the week in which several entries tick.
MAX_COLLISIONS = 10

_HOUR, _WEEK_HOURS = timedelta(hours=1), 7 * 24

#: What follows the name of an entry and a colon in the id of its task: a tick, or the id of a
#: manual run.
_END_OF_ID = re.compile(r"\d{1,15}|[0-9a-f]{16}", re.ASCII).fullmatch

#: Titles of the fields of an entry that the page shows if they are set.
_FACTS = {"timezone": "Time zone", "start": "From", "end": "Until", "max_runs": "Ticks at most"}


@dataclass(frozen=True, slots=True)
class Row:
    """An entry; *periodic* is None if it cannot be read.

    *last_run* is the newer run of the last tick and of the last manual run; None if it is unknown.
    """

    name: str
    when: str
    status: str
    task: str
    source: str
    periodic: Periodic | None
    last_run: Run | None = None

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

    @property
    def last_ids(self) -> list[str]:
        """The ids of the tasks of the last tick and of the last manual run."""
        manual_id = "" if self.periodic is None else self.periodic.state.manual_id
        return [id for id in (self.last_id, f"{self.name}:{manual_id}" if manual_id else "") if id]


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
class EntryDetails:
    """What the page of one entry shows besides its row.

    Attributes
    ----------
    ticks : list[datetime]
        The next ticks.
    problem : str
        Why there are none; ``""`` if the schedule gives ticks, or none any more.
    texts : Texts | None
        Arguments that may be shown; None for an unreadable entry.
    facts : list[tuple[str, str]]
        The fields that are set, with their titles.
    runs : list[Run]
        The last runs, the newest first.
    keeps_history : bool
        Whether the app has a history of runs.
    """

    ticks: list[datetime]
    problem: str
    texts: Texts | None
    facts: list[tuple[str, str]]
    runs: list[Run]
    keeps_history: bool


@dataclass(frozen=True, slots=True)
class PeriodicPage:
    """The view; *entry* is the one whose name is in the path, with its details."""

    now: datetime
    rows: list[Row]
    total: int
    part: str
    week: Week | None
    entry: Row | None = None
    details: EntryDetails | None = None


def read(site: Site, query: Query) -> PeriodicPage:
    """Return the view. Fields: ``name``, a part of the name.

    Raises
    ------
    NotFound
        There is no entry with the name in the path.
    """
    now, part = site.now(), query.text("name")
    if query.rest:
        found = _found(site, query.rest)
        details = _details(site, found)
        found = replace(found, last_run=details.runs[0] if details.runs else None)
        return PeriodicPage(now, [found], 1, part, None, found, details)
    rows = [each for each in _all(site) if part.lower() in each.name.lower()]
    latest = datetime.max.replace(tzinfo=timezone.utc)
    rows.sort(key=lambda each: (each.next or latest, each.name))
    shown = _with_last_runs(site, rows[:MAX_ENTRIES])
    return PeriodicPage(now, shown, len(rows), part, _week(site, rows, now))


def _found(site: Site, name: str) -> Row:
    periodic = site.delayq.periodic
    try:
        entry = periodic.get(name)
    except ValueError:  # this process cannot read it
        rows = [_unreadable(each) for each in periodic.unreadable() if each.name == name]
    else:
        rows = [] if entry is None else [_row(entry)]
    if not rows:
        raise NotFound(f"There is no periodic entry {name!r}.")
    return rows[0]


def _details(site: Site, row: Row) -> EntryDetails:
    entry, keeps_history = row.periodic, site.delayq.session.keeps_history
    if entry is None:
        return EntryDetails([], row.when, None, [], _last_runs(site, row), keeps_history)
    definition = entry.definition
    args, kwargs = repr([*definition.args]), repr({**definition.kwargs})
    texts = site.formatted(args, kwargs, uuid=row.last_id, name=row.task)
    options = dict(definition.options)
    values = {
        "Queue": options.pop("queue", None),
        **{title: getattr(definition, name) for name, title in _FACTS.items()},
        "Missed ticks that run": definition.catch_up,
        "While an earlier one runs": definition.overlap,
        "Other options": (", ".join(options) if site.hides else options) or None,
    }
    problem, ticks = "", list[int]()
    try:
        ticks = upcoming(entry, NEXT_TICKS, site.zone)
    except InvalidSchedule as exc:  # of a class of the app
        problem = str(exc)
    return EntryDetails(
        ticks=[*map(moment, ticks)],
        problem=problem,
        texts=texts,
        facts=[(title, str(value)) for title, value in values.items() if value is not None],
        runs=_last_runs(site, row),
        keeps_history=keeps_history,
    )


def _last_runs(site: Site, row: Row) -> list[Run]:
    """Return the last runs of an entry, the newest first.

    Those of the last tick and of the last manual run are found by the index, if they are older than
    the newest runs of all tasks.
    """
    runs, begin = site.delayq.runs, f"{row.name}:"
    newest = runs.newest(LOOKED_RUNS)
    found = [run for run in newest if _is_of(begin, run.id)]
    if not found and len(newest) == LOOKED_RUNS:
        found = [run for id in row.last_ids for run in runs.newest(LAST_RUNS, id=id)]
    found.sort(key=lambda each: each.ended, reverse=True)
    return [_shown(site, each) for each in found[:LAST_RUNS]]


def _is_of(begin: str, id: str) -> bool:
    """Return whether an id, which begins with the name of an entry, is that of its task."""
    return id.startswith(begin) and _END_OF_ID(id[len(begin) :]) is not None


def _with_last_runs(site: Site, rows: list[Row]) -> list[Row]:
    """Return the rows of the list with their last runs."""
    if not site.delayq.session.keeps_history:
        return rows
    runs, sought = site.delayq.runs, [id for row in rows for id in row.last_ids]
    newest = {run.id: run for run in runs.newest(LOOKED_RUNS_OF_LIST)}
    found = {id: newest[id] for id in sought if id in newest}
    ends = time.monotonic() + LAST_RUNS_SECONDS_TO_READ
    for id in sought:
        if id in found:
            continue
        if time.monotonic() > ends:
            break
        found |= {run.id: run for run in runs.newest(1, id=id)}
    return [
        replace(row, last_run=_shown(site, max(known, key=lambda it: it.ended)))
        if (known := [found[id] for id in row.last_ids if id in found])
        else row
        for row in rows
    ]


def _shown(site: Site, run: Run) -> Run:
    """Return a run without the text of an exception if arguments are hidden."""
    return replace(run, reason="") if site.hides else run


def _all(site: Site) -> list[Row]:
    return [
        _row(each) if isinstance(each, Periodic) else _unreadable(each)
        for each in site.delayq.periodic._all()
    ]


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
        try:
            ticks = upcoming(row.periodic, MAX_TICKS, site.zone)
        except InvalidSchedule:  # of a class of the app; the page of the entry has the error
            continue
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
