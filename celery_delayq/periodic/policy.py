"""Computes the due ticks of a periodic entry, and the next state of the entry. No I/O.

A *tick* is a moment at which an entry is due, in ms since 1970. Dispatchers schedule ticks some
time ahead, as entries with the id ``<name>:<tick>``. The same step stores the last scheduled tick,
so each tick is scheduled once, by any dispatcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timezone, tzinfo
from typing import NamedTuple

from celery.schedules import crontab

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.definition import TICK_AHEAD_MS, Definition, definition_hash_of
from celery_delayq.periodic.entries import Periodic, PeriodicState
from celery_delayq.periodic.schedules import Interval, Polled, Rule, latest
from celery_delayq.periodic.serialization import describe, dumps_form
from celery_delayq.periodic.wall_clock import MAX_TICK_MS, last_ms_until, ms_of_datetime

#: Ms after its due time from which an unscheduled tick counts as missed.
GRACE_MS = 1000

#: Most ticks of one entry that one look schedules; the next look schedules the following ones.
MAX_TICKS_PER_LOOK = 100

#: Most ticks of one entry that are scheduled and not due yet.
MAX_SCHEDULED_TICKS = TICK_AHEAD_MS + 1

#: Ms after which a refused tick of ``overlap="queue_one"`` is tried again.
OVERLAP_RETRY_MS = 500


class Firing(NamedTuple):
    """The ticks to schedule after a look at an entry, and the entry's next state.

    Attributes
    ----------
    ticks : tuple[int, ...]
        The ticks to schedule (ms).
    then : PeriodicState
        The state of the entry after the ticks are scheduled.
    refused : PeriodicState
        The state of the entry if the ticks are refused because the task of an earlier tick waits
        or runs.
    now : int
        Time of the look (ms).
    """

    ticks: tuple[int, ...]
    then: PeriodicState
    refused: PeriodicState
    now: int


def begin(definition: Definition, now: int, zone: tzinfo) -> Periodic:
    """Return a new entry; *now* is Redis' clock (ms)."""
    anchor = now if definition.start is None else ms_of_datetime(definition.start)
    state = PeriodicState(definition_hash=definition_hash_of(definition), anchor=anchor)
    return Periodic(definition, _with_next_tick(state, _next(definition, state, now, zone)))


def must_be_due(entry: Periodic) -> Periodic:
    """Return the entry, if it has a tick left.

    Raises
    ------
    InvalidSchedule
        It has no tick left.
    """
    definition = entry.definition
    if entry.status == "ended":
        raise InvalidSchedule(
            f"{entry.name}: {describe(definition.schedule)} is never due from now on"
            + ("" if definition.end is None else f" until end={definition.end.isoformat()}")
        )
    return entry


def change(entry: Periodic, definition: Definition, now: int, zone: tzinfo) -> Periodic:
    """Return an entry with another definition; its scheduled ticks stay scheduled.

    A new interval starts at the last tick. An unchanged schedule keeps its phase and its count.
    """
    old, before = entry.state, entry.definition
    kept = dumps_form(definition.schedule) == dumps_form(before.schedule)
    anchor = old.anchor if kept or old.last_tick is None else old.last_tick
    start = None if definition.start is None else ms_of_datetime(definition.start)
    if start is not None and (before.start is None or start != ms_of_datetime(before.start)):
        anchor, kept = start, False
    state = replace(old, definition_hash=definition_hash_of(definition), anchor=anchor)
    if old.status == "paused":
        return Periodic(definition, replace(state, next_tick=None))
    rule = definition.rule(anchor, zone)
    # Keep a tick that is due or missed and not scheduled yet, if it is still a tick.
    tick = old.next_tick if kept and definition.timezone == before.timezone else None
    if tick is not None and not isinstance(rule, Polled) and rule.after(tick - 1) != tick:
        tick = None  # the app's time zone has changed
    tick = _allowed(definition, state, tick)
    if tick is None:
        tick = _next(definition, state, max(now, old.last_tick or now), zone)
    return Periodic(definition, _with_next_tick(state, tick))


def pause(entry: Periodic, cancelled: Sequence[int] = (), zone: tzinfo = timezone.utc) -> Periodic:
    """Return the entry paused; its ticks *cancelled* were scheduled and are cancelled."""
    old = entry.state
    last_tick, count = old.last_tick, old.count - len(cancelled)
    if cancelled and last_tick is not None:
        first, rule = min(cancelled), entry.definition.rule(old.anchor, zone)
        others = {*latest(rule, first - 1, last_tick, MAX_SCHEDULED_TICKS)} - {*cancelled}
        before = [*others] or latest(rule, min(old.anchor, first) - 1, first - 1, 1)
        last_tick = max(before, default=None) if count else None
    return replace(
        entry, state=replace(old, next_tick=None, last_tick=last_tick, count=count, status="paused")
    )


def resume(entry: Periodic, now: int, zone: tzinfo) -> Periodic:
    """Return the entry resumed with its next tick; ticks of the pause do not count as missed."""
    state = replace(entry.state, status="on")
    tick = _next(entry.definition, state, max(now, state.last_tick or now), zone)
    return replace(entry, state=_with_next_tick(state, tick))


def set_back(entry: Periodic, now: int, zone: tzinfo) -> Periodic:
    """Return the entry after Redis' clock was set back to *now*.

    An interval starts again at *now*. Other schedules wait for their first tick that was not fired,
    so that each tick is fired once.
    """
    definition, old = entry.definition, entry.state
    if old.status == "ended" or not isinstance(definition.rule(old.anchor, zone), Interval):
        return entry
    anchor = old.anchor if definition.start is not None else min(old.anchor, now)
    ahead = old.last_tick is not None and old.last_tick > now + definition.ahead
    state = replace(old, anchor=anchor, last_tick=now if ahead else old.last_tick)
    tick = _next(definition, state, max(now, state.last_tick or now), zone)
    if old.next_tick is not None and tick is not None and tick < old.next_tick:
        state = replace(state, next_tick=tick)
    return replace(entry, state=state)


def fire(entry: Periodic, now: int, zone: tzinfo, deadline: int | None = None) -> Firing | None:
    """Return the ticks to schedule at *now*, or None before the next tick's time.

    Parameters
    ----------
    deadline : int | None
        Most ms by which a tick of a ``crontab`` that was missed may be late; None for no limit.

    Raises
    ------
    InvalidSchedule
        The next tick cannot be computed.
    """
    definition, state = entry.definition, entry.state
    tick, until = state.next_tick, now + definition.ahead
    if tick is None or tick > until:
        return None
    if definition.end is not None:
        until = min(until, last_ms_until(definition.end))
        if tick > until:
            then = _with_next_tick(state, None)
            return Firing((), then, then, now)
    rule = definition.rule(state.anchor, zone)
    missed, others = _due(definition, rule, tick, now - GRACE_MS, until)
    due = missed + others
    if definition.overlap == "queue_one":
        ticks = due[-1:]
    else:
        ticks = others if definition.catch_up == "skip" else due
        if deadline is not None and isinstance(definition.schedule, crontab):
            ticks = [tick for tick in ticks if now - tick <= max(deadline, GRACE_MS)]
    if definition.overlap == "skip":
        ticks = ticks[-1:]
    if len(ticks) > MAX_TICKS_PER_LOOK:
        ticks = due = ticks[:MAX_TICKS_PER_LOOK]
    if definition.max_runs is not None:
        ticks = ticks[: max(0, definition.max_runs - state.count)]
    passed = _with_next_tick(state, _next(definition, state, due[-1], zone))
    if not ticks:
        return Firing((), passed, passed, now)
    fired = replace(state, last_tick=ticks[-1], count=state.count + len(ticks))
    then = _with_next_tick(fired, _next(definition, fired, due[-1], zone))
    refused = state if definition.overlap == "queue_one" else passed
    return Firing(tuple(ticks), then, refused, now)


def _due(
    definition: Definition, rule: Rule, tick: int, in_time: int, until: int
) -> tuple[list[int], list[int]]:
    """Return the last missed ticks from *tick* on, and the ticks that are in time."""
    missed: list[int] = []
    following: int | None = tick
    if tick < in_time:
        most = definition.catch_up_max if definition.catch_up == "all" else 1
        # From the tick itself: a polled schedule may give other ticks from another moment.
        missed = [tick, *latest(rule, tick, min(until, in_time - 1), most)][-most:]
        following = rule.after(missed[-1])
    others: list[int] = []
    while following is not None and following <= until and len(others) < MAX_TICKS_PER_LOOK:
        others.append(following)
        following = rule.after(following)
    return missed, others


def drop_after(entry: Periodic, firing: Firing, deadline: int | None = None) -> list[int]:
    """Return for each tick the ms after its due time from which it is dropped; 0 for never.

    A tick is scheduled ahead. If no process dispatched when the tick was due, it counts as missed,
    like a tick that was not scheduled. *catch_up*, a later tick that runs in its place, and
    *deadline* (see :func:`fire`) decide when it is dropped.
    """
    definition, found = entry.definition, []
    is_cron = isinstance(definition.schedule, crontab)
    following_ticks = (*firing.ticks, firing.then.next_tick)[1:]
    for tick, following in zip(firing.ticks, following_ticks, strict=True):
        limits = [GRACE_MS] if definition.catch_up == "skip" else []
        if definition.catch_up == "one" and following is not None:
            limits.append(following - tick + GRACE_MS)
        if deadline is not None and is_cron:
            limits.append(max(deadline, GRACE_MS))
        found.append(min(limits, default=0) if tick > firing.now else 0)
    return found


def upcoming(entry: Periodic, count: int, zone: tzinfo) -> list[int]:
    """Return at most *count* next ticks of an entry that are not scheduled yet."""
    definition, state = entry.definition, entry.state
    found: list[int] = []
    tick = state.next_tick
    while tick is not None and len(found) < count:
        found.append(tick)
        state = replace(state, count=state.count + 1)
        tick = _next(definition, state, tick, zone)
    return found


def ahead_of(entry: Periodic, zone: tzinfo) -> list[int]:
    """Return the ticks of an entry that may still be scheduled: those that were scheduled ahead.

    The ticks may be overdue if no process has dispatched since.
    """
    last_tick, ahead = entry.state.last_tick, entry.definition.ahead
    if last_tick is None or not ahead:
        return []
    rule = entry.definition.rule(entry.state.anchor, zone)
    # A polled schedule may give other ticks from another moment.
    return sorted({*latest(rule, last_tick - ahead, last_tick, MAX_SCHEDULED_TICKS), last_tick})


def tick_id(name: str, tick: int) -> str:
    """Return the id of the task of a tick."""
    return f"{name}:{tick}"


def _next(definition: Definition, state: PeriodicState, after: int, zone: tzinfo) -> int | None:
    """Return the first tick after a moment; None if the entry has ended by then."""
    if definition.start is not None:
        after = max(after, ms_of_datetime(definition.start) - 1)
    rule = definition.rule(state.anchor, zone)
    return _allowed(definition, state, rule.after(after) if after < MAX_TICK_MS else None)


def _allowed(definition: Definition, state: PeriodicState, tick: int | None) -> int | None:
    """Return the tick, or None if it is after the entry's end or its last run."""
    if definition.max_runs is not None and state.count >= definition.max_runs:
        return None
    end = MAX_TICK_MS if definition.end is None else last_ms_until(definition.end)
    return None if tick is None or tick > end else tick


def _with_next_tick(state: PeriodicState, tick: int | None) -> PeriodicState:
    """Return a state with another next tick; a paused entry has none."""
    if state.status == "paused":
        return replace(state, next_tick=None)
    return replace(state, next_tick=tick, status="ended" if tick is None else "on")
