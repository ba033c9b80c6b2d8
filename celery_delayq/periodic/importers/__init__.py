"""Taking over periodic entries from celery beat, RedBeat and django-celery-beat.

Each has a module that reads what it keeps, and changes nothing of it; :func:`take_over` writes what
they find. Intervals go on in their phase, and what was due since the last run is caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import partial
from typing import Literal

from celery import Celery

from celery_delayq.errors import DelayQError, InvalidSchedule
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import definitions_of
from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.serialization import describe
from celery_delayq.periodic.state import Periodic, PeriodicState
from celery_delayq.periodic.wall_clock import moment_of, ms_of
from celery_delayq.store.periodic import PeriodicStore, Writing
from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session

#: What became of an entry: it was added, took the place of one of its name, or that one was left as
#: it is; there is nothing to take over, since it is over; or it cannot be.
Result = Literal["added", "replaced", "kept", "skipped", "refused"]

#: Beat's own, which workers have by themselves where the result backend needs it.
_CLEANUP = "celery.backend_cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntry:
    """An entry as another scheduler has it.

    Attributes
    ----------
    name : str
    definition : Definition | None
        What is to be done, and when; None where that cannot be told.
    last_run_at : datetime | None
        Aware; None where it has not run.
    since : datetime | None
        From when its first tick, and its intervals, are counted; None for *last_run_at*, or where
        it has not run, for when it is taken over. Aware.
    next : datetime | None
        Its next tick, where that is known: none before is owed. Aware.
    as_listed : bool
        Whether it is due then as it was where that was told; otherwise its first tick is another.
    total_run_count : int
        How often it has run.
    enabled : bool
        Whether it is fired; it is paused where it is not.
    problem : str | None
        Why it cannot be taken over, and what would be right.
    over : bool
        Whether there is nothing to take over: the other scheduler does not fire it any more either;
        *problem* says why.
    as_is : bool
        Whether it counts as it is, also where the app's code has an entry of its name: it was one
        of ours that did so.
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
    """Add entries that another scheduler has, each as it is asked for; twice does no harm.

    Stop the other scheduler before: what it sends meanwhile may be sent here as well.

    An entry whose name is in the app's code is as its code says; only when and how often it ran,
    and whether it is enabled, are taken over.

    Parameters
    ----------
    found : Iterable[FoundEntry]
        What :func:`.beat.entries`, :func:`.redbeat.entries` or :func:`.django.entries` return.
    dry_run : bool
        Only tell what would become of them.
    replace : bool
        Take the place of entries of the same name, which otherwise are left as they are. What they
        fired already is not fired again.

    Yields
    ------
    tuple[FoundEntry, Result]
        Each with the definition that counts, and the problem if there is one.

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
    """Return the entries in the code of an app by name, or what is wrong with them.

    All its modules are imported, as a worker does: an entry in one that was not would not be taken
    for what it is.
    """
    app.loader.import_default_modules()
    app.finalize()
    return {str(name): each for name, each in definitions_of(app)}


def begin_from(found: FoundEntry, definition: Definition, now: int, zone: tzinfo) -> Periodic:
    """Return a new entry that goes on from where another scheduler was, *now* in ms.

    Its next tick is the first one after the last run, or where it is known what was next, that one:
    those since were missed, and are caught up.
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
    over = policy.resume(paused, max(after, now), zone).status == "ended"
    return _ended(paused) if over else paused


def _ended(entry: Periodic) -> Periodic:
    return replace(entry, state=replace(entry.state, status="ended"))


def _counting(found: FoundEntry, code: dict[str, Definition | DelayQError]) -> FoundEntry:
    """Return it as it counts in an app with that code."""
    in_code = None if found.as_is else code.get(found.name)
    if in_code is not None and found.problem and not (found.last_run_at or found.since):
        return found  # workers write it by themselves
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
    work = partial(_write, found, found.definition, zone, dry_run, replacing, {})
    try:
        result: Result = session.ask(work)
    except _Over as exc:
        return replace(found, problem=str(exc), over=True), "skipped"
    except InvalidSchedule as exc:
        return replace(found, problem=str(exc)), "refused"
    return found, result


class _Over(Exception):
    """It is not due any more."""


def _write(
    found: FoundEntry,
    definition: Definition,
    zone: tzinfo,
    dry_run: bool,
    replacing: bool,
    tried: dict[str, Result],
    store: Store,
) -> Result:
    """Write an entry, and return what became of it.

    *tried* has the records that earlier attempts may have written, when their reply was lost.
    """
    result: Result = "kept"

    def edit(there: str | None) -> Writing | None:
        nonlocal result
        result = tried.get(there or "", "kept")
        if there is not None and (there in tried or not replacing):
            return None
        now = store.now_ms()
        entry = begin_from(_later(found, there), definition, now, zone)
        if entry.status == "ended":
            raise _Over(f"it is over: {describe(definition.schedule)} is never due from now on")
        if definition.end is not None and ms_of(definition.end) <= now:
            raise _Over(f"it is over since {definition.end.isoformat()}")
        if there is not None and entry.pack() == there:
            return None
        result = "added" if there is None else "replaced"
        line = "" if there is None else there.partition("\n")[0]
        tried[entry.pack()] = result
        return Writing(found.name, line, entry.pack(), entry.look)

    gate = PeriodicStore(store)
    if dry_run:
        edit(gate.get(found.name))
    else:
        gate.edit(found.name, edit)
    return result


def _later(found: FoundEntry, there: str | None) -> FoundEntry:
    """Return it with what the entry that is there has fired beyond that; phase as it was found."""
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
