"""Imports periodic entries from celery beat, RedBeat and django-celery-beat.

One module per scheduler reads its entries, and changes nothing in the scheduler's storage.
:func:`take_over` writes the entries to Redis. Intervals keep their phase, and ticks since the last
run are caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from functools import partial
from typing import Literal

from celery import Celery

from celery_delayq.errors import ConfigError, DelayQError, InvalidSchedule
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import definitions_of
from celery_delayq.periodic.definition import Definition, check_call, definition_hash_of
from celery_delayq.periodic.entries import Periodic, PeriodicState
from celery_delayq.periodic.places import entries_of
from celery_delayq.periodic.serialization import describe
from celery_delayq.periodic.wall_clock import datetime_of_ms, ms_of_datetime
from celery_delayq.store.periodic import EntryWrite
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores

#: The result for one entry. "kept": Redis has an entry of this name, which is not changed.
#: "skipped": the entry is never due again. "refused": the entry cannot be imported.
Result = Literal["added", "replaced", "kept", "skipped", "refused"]

#: Celery beat's own entry. Workers add it if the result backend needs it.
_CLEANUP = "celery.backend_cleanup"


@dataclass(slots=True, kw_only=True)
class FoundEntry:
    """An entry of another scheduler.

    Attributes
    ----------
    name : str
    definition : Definition | None
        None if it is unreadable.
    last_run_at : datetime | None
        Time of the last run, with a time zone. None if the entry has not run.
    since : datetime | None
        Start of its intervals, before which it has no tick, with a time zone. If None:
        *last_run_at*, or the time of the import if the entry has not run.
    next : datetime | None
        Its next tick, with a time zone. Earlier ticks are not caught up. None if it is not known.
    as_listed : bool
        Whether the schedule is the same as at the export, so that *next* is one of its ticks.
    total_run_count : int
        Number of runs.
    enabled : bool
        Whether the other scheduler fires the entry. If not, the entry is imported as paused.
    problem : str | None
        The reason why the entry cannot be imported, or None.
    over : bool
        Whether the other scheduler never fires the entry again. *problem* has the reason.
    as_is : bool
        Whether to import *definition* even if the app's code has an entry of this name.
    note : str | None
        What is wrong with an entry that is imported all the same, or None.
    """

    name: str
    definition: Definition | None = None
    last_run_at: datetime | None = None
    since: datetime | None = None
    next: datetime | None = None
    as_listed: bool = False
    total_run_count: int = 0
    enabled: bool = True
    problem: str | None = None
    over: bool = False
    as_is: bool = False
    note: str | None = None


def take_over(
    session: Session, found: Iterable[FoundEntry], *, dry_run: bool = False, replace: bool = False
) -> Iterator[tuple[FoundEntry, Result]]:
    """Import entries of another scheduler. Each step of the iterator imports one entry.

    Stop the other scheduler first. Otherwise both may publish the same task. A second import
    changes nothing.

    If the app's code has an entry of the same name, the definition comes from the code. Then only
    the times and number of runs, and whether the entry is enabled, are imported.

    An entry whose task does not take its arguments is imported with a note: workers write such an
    entry of the code too, and a backup is restored as it was.

    Parameters
    ----------
    found : Iterable[FoundEntry]
        From :func:`.beat.entries`, :func:`.redbeat.entries` or :func:`.django.entries`.
    dry_run : bool
        Yield the results, but write nothing.
    replace : bool
        Replace existing entries of the same names. Ticks that an existing entry has fired are not
        fired again. If False, existing entries are kept.

    Yields
    ------
    tuple[FoundEntry, Result]
        Each entry with its final definition, problem and note, and the result.

    Raises
    ------
    ConfigError
        The app's broker is not of this package.
    """
    app = session.app
    code = code_of(app)
    for each in found:
        yield _take(session, _noted(app, _counting(each, code)), app.timezone, dry_run, replace)


def code_of(app: Celery) -> dict[str, Definition | DelayQError]:
    """Return the entries in the code of an app by name, with the error of each invalid entry.

    Imports all modules of the app first, as a worker does, because each module may add entries.
    """
    app.loader.import_default_modules()
    app.finalize()
    return dict(definitions_of(app))


def found_by(read: Callable[[FoundEntry], None], name: str) -> FoundEntry:
    """Return an entry whose fields *read* sets. An error of *read* becomes its problem."""
    found = FoundEntry(name=name)
    try:
        read(found)
    except DelayQError as exc:
        found.problem = str(exc)
    except Exception as exc:  # entries of other schedulers are user data
        found.problem = f"it is unreadable: {type(exc).__name__}: {exc}"
    return found


def in_utc(moment: datetime) -> datetime:
    """Return a moment in UTC. A moment without a time zone counts as UTC."""
    aware = moment.replace(tzinfo=timezone.utc) if moment.utcoffset() is None else moment
    return aware.astimezone(timezone.utc)


def begin_from(found: FoundEntry, definition: Definition, now: int, zone: tzinfo) -> Periodic:
    """Return an entry that continues an entry of another scheduler; *now* in ms.

    Its next tick is *found.next*, or the first tick after the last run. Ticks before *now* count as
    missed.
    """
    last_tick = None if found.last_run_at is None else ms_of_datetime(found.last_run_at)
    since = last_tick if found.since is None else ms_of_datetime(found.since)
    if since is None:
        since = now if definition.start is None else ms_of_datetime(definition.start)
        after = now
    else:
        after = since if last_tick is None else last_tick
    known = None if found.next is None else ms_of_datetime(found.next)
    if known is not None:
        after = max(after, min(known - 1, now))
    state = PeriodicState(
        definition_hash=definition_hash_of(definition),
        anchor=since,
        last_tick=last_tick,
        count=found.total_run_count,
        status="paused",
    )
    paused = Periodic(definition, state)
    if found.enabled and found.as_listed and known is not None and (last_tick or -1) < known:
        there = replace(state, next_tick=known, status="on")
        return policy.change(Periodic(definition, there), definition, now, zone)
    if found.enabled:
        return policy.resume(paused, after, zone)
    resumed = policy.resume(paused, max(after, now), zone)
    return resumed if resumed.status == "ended" else paused


def _counting(found: FoundEntry, code: dict[str, Definition | DelayQError]) -> FoundEntry:
    """Return the entry with the definition from the app's code, if the code has the entry."""
    in_code = None if found.as_is else code.get(found.name)
    if in_code is not None and found.problem and not (found.last_run_at or found.since):
        return found  # workers write the entry
    if isinstance(in_code, Definition):
        return replace(found, definition=in_code, problem=None, over=False)
    if in_code is not None:
        return replace(found, definition=None, problem=f"its code is wrong: {in_code}", over=False)
    if found.name == _CLEANUP and found.problem is None and not found.as_is:
        why = "the result backend forgets results by itself"
        return replace(found, problem=why, over=True)
    if found.definition is None and found.problem is None:
        return replace(found, problem="it does not say what to do, and when")
    return found


def _noted(app: Celery, found: FoundEntry) -> FoundEntry:
    """Return the entry, with a note if its task does not take its arguments."""
    try:
        if found.problem is None and found.definition is not None:
            check_call(app, found.definition)
    except ConfigError as exc:
        return replace(found, note=f"its ticks will fail: {exc}")
    return found


def _take(
    session: Session, found: FoundEntry, zone: tzinfo, dry_run: bool, replacing: bool
) -> tuple[FoundEntry, Result]:
    if found.problem is not None or found.definition is None:
        return found, "skipped" if found.over else "refused"
    definition = found.definition
    result: Result = "kept"
    #: Records that this call has written. If a reply is lost, the next attempt finds one of them.
    sent: dict[str, Result] = {}

    def edit(stores: Stores, there: str | None) -> EntryWrite | None:
        nonlocal result
        result = sent.get(there or "", "kept")
        if there is not None and (there in sent or not replacing):
            return None
        now = stores.now_ms()
        entry = begin_from(_with_later_run(found, there), definition, now, zone)
        if entry.status == "ended":
            raise _Over(f"it is over: {describe(definition.schedule)} is never due from now on")
        if definition.end is not None and ms_of_datetime(definition.end) <= now:
            raise _Over(f"it is over since {definition.end.isoformat()}")
        record = entry.pack()
        if record == there:
            return None
        result = sent[record] = "added" if there is None else "replaced"
        return EntryWrite(found.name, (there or "").partition("\n")[0], record, entry.next_look_ms)

    def write(stores: Stores) -> None:
        gate = entries_of(session.app, stores)
        if dry_run:
            edit(stores, gate.get(found.name))
        else:
            gate.edit(found.name, partial(edit, stores))

    try:
        session.ask(write)
    except _Over as exc:
        return replace(found, problem=str(exc), over=True), "skipped"
    except InvalidSchedule as exc:
        return replace(found, problem=str(exc)), "refused"
    return found, result


class _Over(Exception):
    """The entry is never due again."""


def _with_later_run(found: FoundEntry, there: str | None) -> FoundEntry:
    """Return *found* with the last run and count of the stored entry, if its last run is later."""
    try:
        state = PeriodicState.read((there or "").partition("\n")[0])
    except DelayQError:
        return found
    last_run_at = None if state.last_tick is None else datetime_of_ms(state.last_tick)
    if last_run_at is None or (found.last_run_at is not None and found.last_run_at >= last_run_at):
        return found
    return replace(
        found,
        since=found.since or found.last_run_at,
        last_run_at=last_run_at,
        total_run_count=max(found.total_run_count, state.count),
    )
