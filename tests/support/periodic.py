"""Periodic entries that began at noon, looked at later. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule

from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.entries import Periodic, PeriodicState
from celery_delayq.periodic.policy import Firing, begin, fire
from celery_delayq.periodic.schedules import Rule

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOON_MS = 1_772_452_800_000
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY

Ticks = tuple[int, ...]


class steps(schedule):  # noqa: N801 - as Celery's
    """An interval as a schedule of beat: *every* after the last time."""

    def __reduce__(self) -> Any:
        return type(self), (self.run_every.total_seconds(),)


class counted(crontab):  # noqa: N801 - as Celery's
    """A crontab that counts the calls of `is_due`."""

    calls = 0

    def is_due(self, last_run_at: datetime) -> Any:
        counted.calls += 1
        return super().is_due(last_run_at)


def defined(every: Any = 10, **given: Any) -> Definition:
    return Definition.from_fields(every, **{"name": "bell", "task": "tower.ring", **given})


def begun(every: Any = 10, **given: Any) -> Periodic:
    """Return an entry that began at noon."""
    return begin(defined(every, **given), NOON_MS, UTC)


def state(entry: Periodic, **changed: Any) -> Periodic:
    return replace(entry, state=replace(entry.state, **changed))


def looked(entry: Periodic, now: int, zone: Any = UTC) -> Firing:
    """Look at a due entry."""
    firing = fire(entry, now, zone)
    assert firing is not None
    return firing


def fired(entry: Periodic, now: int) -> Periodic:
    """Return an entry after a look at it."""
    return replace(entry, state=looked(entry, now).then)


def firing_of(
    entry: Periodic, now: int, ticks: Ticks, then: int | None, refused: PeriodicState | None = None
) -> Firing:
    """Return a look that schedules *ticks*; *then* is the next look, None if the entry ends."""
    passed = replace(entry.state, next_tick=then, status="ended" if then is None else "on")
    done = (
        replace(passed, last_tick=ticks[-1], count=passed.count + len(ticks)) if ticks else passed
    )
    return Firing(ticks, done, refused or passed, now)


def seconds(*some: float) -> Ticks:
    """Return ticks at some seconds after noon."""
    return tuple(NOON_MS + round(each * SECOND) for each in some)


def ticks_of(rule: Rule, after: int) -> Iterator[int]:
    """Yield the ticks of a rule after a moment."""
    tick = rule.after(after)
    while tick is not None:
        yield tick
        tick = rule.after(tick)


def scheduled(entry: Periodic, now: int) -> tuple[Ticks, PeriodicState]:
    """Look at an entry until no tick is left to schedule; return the ticks and the last state."""
    ticks: Ticks = ()
    while (firing := fire(entry, now, UTC)) is not None:
        ticks += firing.ticks
        entry = replace(entry, state=firing.then)
    return ticks, entry.state


def walk(entry: Periodic, gaps: list[int]) -> list[tuple[int, Ticks]]:
    """Look at an entry repeatedly; return the time of each look and the ticks that it schedules."""
    now, found = NOON_MS, []
    for gap in gaps:
        now += gap
        firing = fire(entry, now, UTC)
        if firing is not None:
            assert firing.now == now
            entry = replace(entry, state=firing.then)
        found.append((now, () if firing is None else firing.ticks))
    ticks = [tick for _, some in found for tick in some]
    assert (entry.state.count, entry.state.last_tick) == (len(ticks), max(ticks, default=None))
    return found
