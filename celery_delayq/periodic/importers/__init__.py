"""Import of periodic entries from celery beat, RedBeat and django-celery-beat.

One module for each scheduler reads its entries and changes nothing there; :func:`take_over` writes
them to Redis. Intervals keep their phase, and ticks since the last run are caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from functools import partial
from typing import Literal

from celery import Celery

from celery_delayq.errors import DelayQError, InvalidSchedule
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import definitions_of
from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.places import entries_of
from celery_delayq.periodic.serialization import describe
from celery_delayq.periodic.state import Periodic, PeriodicState
from celery_delayq.periodic.wall_clock import moment_of, ms_of
from celery_delayq.store.periodic import Writing
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores

#: The result of one import. "kept": Redis has an entry of that name, which stays. "skipped": the
#: entry is over. "refused": it cannot be imported.
Result = Literal["added", "replaced", "kept", "skipped", "refused"]

#: Beat's own entry; workers add it themselves if the result backend needs it.
_CLEANUP = "celery.backend_cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntry:
    """An entry of another scheduler.

    Attributes
    ----------
    name : str
    definition : Definition | None
        None where it is unreadable.
    last_run_at : datetime | None
        Aware; None if it has not run.
    since : datetime | None
        Start of its intervals and first tick, aware. None for *last_run_at*, or for the time of the
        import if it has not run.
    next : datetime | None
        Its next tick if that is known, aware: no tick before it is caught up.
    as_listed : bool
        Whether its schedule is still the exported one, so that *next* is one of its ticks.
    total_run_count : int
        How often it has run.
    enabled : bool
        Whether it is fired; otherwise it is imported as paused.
    problem : str | None
        Why it cannot be imported.
    over : bool
        Whether the other scheduler does not fire it any more either; *problem* says why.
    as_is : bool
        Whether its own definition counts even if the app's code has an entry of its name.
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


def take_over(
    session: Session, found: Iterable[FoundEntry], *, dry_run: bool = False, replace: bool = False
) -> Iterator[tuple[FoundEntry, Result]]:
    """Import entries of another scheduler, one at each step of the iterator.

    Stop the other scheduler first, or both may send the same task. A second import changes nothing.

    For a name in the app's code, the definition is that of the code. Only the times and number of
    runs, and whether it is enabled, are imported.

    Parameters
    ----------
    found : Iterable[FoundEntry]
        From :func:`.beat.entries`, :func:`.redbeat.entries` or :func:`.django.entries`.
    dry_run : bool
        Yield the results, but write nothing.
    replace : bool
        Replace entries of the same name, which are kept otherwise. Ticks that these have fired are
        not fired again.

    Yields
    ------
    tuple[FoundEntry, Result]
        Each entry with its final definition and problem.

    Raises
    ------
    ConfigError
        The app's broker is not one of ours.
    """
    app = session.app
    code = code_of(app)
    for each in found:
        yield _take(session, _counting(each, code), app.timezone, dry_run, replace)


def code_of(app: Celery) -> dict[str, Definition | DelayQError]:
    """Return the entries in the code of an app by name; an invalid entry as its error.

    Imports all modules of the app first, as a worker does, since each may add entries.
    """
    app.loader.import_default_modules()
    app.finalize()
    return dict(definitions_of(app))


def in_utc(moment: datetime) -> datetime:
    """Return a moment in UTC; without a time zone it is in UTC already."""
    aware = moment.replace(tzinfo=timezone.utc) if moment.utcoffset() is None else moment
    return aware.astimezone(timezone.utc)


def begin_from(found: FoundEntry, definition: Definition, now: int, zone: tzinfo) -> Periodic:
    """Return an entry that continues that of another scheduler; *now* in ms.

    Its next tick is the known next one, or the first one after the last run. Ticks between it and
    *now* count as missed.
    """
    last = None if found.last_run_at is None else ms_of(found.last_run_at)
    since = last if found.since is None else ms_of(found.since)
    if since is None:
        since = now if definition.start is None else ms_of(definition.start)
        after = now
    else:
        after = since if last is None else last
    known = None if found.next is None else ms_of(found.next)
    if known is not None:
        after = max(after, min(known - 1, now))
    state = PeriodicState(
        definition_hash=definition_hash_of(definition),
        anchor=since,
        last=last,
        count=found.total_run_count,
        status="paused",
    )
    paused = Periodic(definition, state)
    if found.enabled and found.as_listed and known is not None and (last or -1) < known:
        there = replace(state, tick=known, status="on")
        return policy.change(Periodic(definition, there), definition, now, zone)
    if found.enabled:
        return policy.resume(paused, after, zone)
    resumed = policy.resume(paused, max(after, now), zone)
    return resumed if resumed.status == "ended" else paused


def _counting(found: FoundEntry, code: dict[str, Definition | DelayQError]) -> FoundEntry:
    """Return the entry with the definition of the app's code, if that has one."""
    in_code = None if found.as_is else code.get(found.name)
    if in_code is not None and found.problem and not (found.last_run_at or found.since):
        return found  # workers write it themselves
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


def _take(
    session: Session, found: FoundEntry, zone: tzinfo, dry_run: bool, replacing: bool
) -> tuple[FoundEntry, Result]:
    if found.problem is not None or found.definition is None:
        return found, "skipped" if found.over else "refused"
    definition = found.definition
    result: Result = "kept"
    #: Records that this call has sent: if a reply is lost, the next attempt finds one of them.
    sent: dict[str, Result] = {}

    def edit(stores: Stores, there: str | None) -> Writing | None:
        nonlocal result
        result = sent.get(there or "", "kept")
        if there is not None and (there in sent or not replacing):
            return None
        now = stores.now_ms()
        entry = begin_from(_later(found, there), definition, now, zone)
        if entry.status == "ended":
            raise _Over(f"it is over: {describe(definition.schedule)} is never due from now on")
        if definition.end is not None and ms_of(definition.end) <= now:
            raise _Over(f"it is over since {definition.end.isoformat()}")
        record = entry.pack()
        if record == there:
            return None
        result = sent[record] = "added" if there is None else "replaced"
        return Writing(found.name, (there or "").partition("\n")[0], record, entry.look)

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
    """The entry is not due any more."""


def _later(found: FoundEntry, there: str | None) -> FoundEntry:
    """Return *found* with the last run and count of the stored entry, if that ran later."""
    try:
        state = PeriodicState.read((there or "").partition("\n")[0])
    except DelayQError:
        return found
    last = None if state.last is None else moment_of(state.last)
    if last is None or (found.last_run_at is not None and found.last_run_at >= last):
        return found
    return replace(
        found,
        since=found.since or found.last_run_at,
        last_run_at=last,
        total_run_count=max(found.total_run_count, state.count),
    )
