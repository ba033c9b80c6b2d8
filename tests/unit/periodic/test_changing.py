"""A periodic entry gets another definition."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab, schedule, solar

from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.policy import begin, change, pause, resume
from tests.support.periodic import (
    BERLIN,
    HOUR,
    MINUTE,
    NOON,
    NOON_MS,
    SECOND,
    UTC,
    begun,
    counted,
    defined,
    fired,
    looked,
    seconds,
    state,
    steps,
)


def redefined(entry: Periodic, definition: Definition, **changed: Any) -> Periodic:
    """Return an entry with another definition, and with *changed* in its state."""
    return state(
        Periodic(definition, entry.state), definition_hash=definition_hash_of(definition), **changed
    )


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize(
    "every",
    [10, 60, 3600, crontab(), steps(10), solar("sunrise", 52.5, 13.4)],
    ids=["10 s", "minute", "hour", "crontab", "own", "solar"],
)
def test_other_options_leave_the_ticks_of_an_entry_alone(
    every: Any, looks: int, overlap: str
) -> None:
    entry = begun(every, overlap=overlap)
    for _ in range(looks):
        assert entry.next_look_ms is not None
        entry = fired(entry, entry.next_look_ms)
    assert entry.state.next_tick is not None

    for options in (
        {"task": "tower.chime"},
        {"args": [1], "kwargs": {"a": 1}, "options": {"queue": "q"}},
        {"catch_up": "all", "catch_up_max": 7},
        {"max_runs": 9},
        {"end": NOON + timedelta(days=9)},
    ):
        definition = defined(every, **{"overlap": overlap, **options})
        # When ticks are scheduled ahead; and when the next one is due, but not scheduled yet.
        for now in (entry.state.next_tick - 9 * SECOND, entry.state.next_tick + 100):
            assert change(entry, definition, now, UTC) == redefined(entry, definition)


@pytest.mark.parametrize(
    "same",
    [
        {"every": 60, "overlap": "skip"},
        {"every": 60, "timezone": "Europe/Berlin"},
        {"every": schedule(timedelta(minutes=1))},
    ],
)
def test_an_interval_is_the_same_by_another_clock_beside_others_and_spelled_otherwise(
    same: dict[str, Any],
) -> None:
    entry, definition = fired(begun(60), NOON_MS + 60_000), defined(**same)

    assert change(entry, definition, NOON_MS + 61_000, UTC) == redefined(entry, definition)


@pytest.mark.parametrize(
    ("old", "looks", "now", "new", "anchor", "tick"),
    [
        # Nothing was scheduled yet: from when it was made.
        (10, (), 3, 7, 0, 7),
        (10, (), 3, 2, 0, 4),
        (10, (), 8, 7, 0, 14),
        # From the last tick on.
        (10, (10,), 13, 7, 10, 17),
        (10, (10,), 16, 7, 10, 17),
        (10, (10,), 17, 7, 10, 24),
        (10, (10,), 100, 7, 10, 101),
        (10, (10, 18), 22, 7, 20, 27),
        # Which may be ahead, and is not scheduled twice.
        (10, (8,), 8, 1, 10, 11),
        (10, (8,), 9, 20, 10, 30),
        (10, (8,), 8, timedelta(seconds=20), 10, 30),
        # From a kind to another and back.
        (crontab(), (60,), 61, 90, 60, 150),
        (90, (90,), 91, crontab(), 90, 120),
        (60, (58,), 58, crontab(), 60, 120),
    ],
)
def test_another_interval_goes_on_from_the_last_tick(
    old: Any, looks: tuple[float, ...], now: float, new: Any, anchor: float, tick: float
) -> None:
    entry, definition = begun(old), defined(new)
    for look in seconds(*looks):
        entry = fired(entry, look)
    (now_ms, anchor_ms, tick_ms) = seconds(now, anchor, tick)

    expected = redefined(entry, definition, anchor=anchor_ms, next_tick=tick_ms)
    assert change(entry, definition, now_ms, UTC) == expected


def test_a_rounded_interval_is_another_than_one_that_is_not() -> None:
    entry = fired(begun(3600, max_runs=9), NOON_MS + HOUR)
    definition = defined(schedule(3600, relative=True), max_runs=9)

    changed = change(entry, definition, NOON_MS + HOUR, UTC)
    assert changed == redefined(entry, definition, anchor=NOON_MS + HOUR)


@pytest.mark.parametrize(
    ("old", "new", "every", "anchor", "tick"),
    [
        (None, 3, 10, 3, 23),  # a new start is where an interval counts from
        (0, 3, 10, 3, 23),
        (0, None, 10, 0, 20),  # without one it keeps its phase
        (0, 0, 10, 0, 20),
        (3, 3, 10, 3, 23),
        (None, 60, 10, 60, 70),  # no tick is before it
        (0, 0, 7, 10, 17),  # another interval goes on from the last tick where the start stays
    ],
)
def test_a_new_start_is_a_new_phase(
    old: float | None, new: float | None, every: float, anchor: float, tick: float
) -> None:
    def start(after: float | None) -> datetime | None:
        return None if after is None else NOON + timedelta(seconds=after)

    entry = fired(begun(10, start=start(old)), NOON_MS + 12_000)
    definition = defined(every, start=start(new))
    (anchor_ms, tick_ms) = seconds(anchor, tick)

    expected = redefined(entry, definition, anchor=anchor_ms, next_tick=tick_ms)
    assert change(entry, definition, NOON_MS + 14_000, UTC) == expected


@pytest.mark.parametrize(
    "options", [{"max_runs": 1}, {"end": NOON + timedelta(seconds=19)}, {"end": NOON}]
)
def test_a_change_may_end_an_entry_and_another_one_resume_it(options: dict[str, Any]) -> None:
    entry = fired(begun(10), NOON_MS + 10_000)
    definition = defined(10, **options)
    ended = change(entry, definition, NOON_MS + 11_000, UTC)

    assert ended == redefined(entry, definition, next_tick=None, status="ended")
    assert change(ended, defined(10), NOON_MS + 15_000, UTC) == entry
    late = change(ended, defined(10), NOON_MS + 45_000, UTC)
    assert late.state == replace(entry.state, next_tick=NOON_MS + 50_000)


@pytest.mark.parametrize("kind", [crontab, counted])
def test_times_of_day_move_with_the_zone_and_the_start(kind: Any) -> None:
    for hour, given, tick in (
        (15, {"timezone": "Europe/Berlin"}, NOON_MS + 2 * HOUR),
        ("*", {"start": NOON + timedelta(hours=5)}, NOON_MS + 5 * HOUR),
    ):
        changed = change(begun(kind(0, hour)), defined(kind(0, hour), **given), NOON_MS, UTC)
        assert changed.state.next_tick == tick


def test_a_change_after_the_zone_of_the_app_has_changed_loses_no_day() -> None:
    # In Berlin it is time at NOON + 2 h, in UTC an hour later.
    entry = begun(crontab(0, 15))
    changed = change(entry, defined(crontab(0, 15), args=[1]), NOON_MS, BERLIN)

    assert changed.state.next_tick == NOON_MS + 2 * HOUR


def test_what_is_paused_stays_so_when_it_is_changed() -> None:
    entry = pause(fired(begun(10), NOON_MS + 10_000))
    definition = defined(7, args=[1])
    changed = change(entry, definition, NOON_MS + 11_000, UTC)

    assert changed == redefined(entry, definition, anchor=NOON_MS + 10_000)
    assert resume(changed, NOON_MS + 11_000, UTC).state.next_tick == NOON_MS + 17_000


def test_a_change_of_other_options_leaves_what_was_missed_to_be_caught_up() -> None:
    entry = begun(3600, catch_up="all")
    now = NOON_MS + 3 * HOUR + 30 * MINUTE

    changed = change(entry, defined(3600, catch_up="all", args=[1]), now, UTC)

    assert looked(changed, now).ticks == tuple(NOON_MS + hours * HOUR for hours in (1, 2, 3))


def test_a_start_that_exists_twice_is_no_new_one_when_it_is_read_from_its_record() -> None:
    start = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)  # clocks are set back
    now = round(start.timestamp() * 1000)
    entry = begin(defined(10, start=start), now, UTC)
    entry = change(state(entry, last_tick=now + 10_000), defined(7, start=start), now + 11_000, UTC)
    entry = Periodic.unpack("bell", entry.pack())

    changed = change(entry, defined(7, start=start, args=[1]), now + 11_000, UTC)

    assert changed.state.next_tick == entry.state.next_tick
