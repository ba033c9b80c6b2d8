"""How a periodic entry begins, when its ticks are scheduled, and which come next."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_delayq.periodic.definition import TICK_AHEAD_MS, Definition, definition_hash_of
from celery_delayq.periodic.entries import Periodic, PeriodicState
from celery_delayq.periodic.policy import (
    ahead_of,
    begin,
    change,
    fire,
    pause,
    resume,
    tick_id,
    upcoming,
)
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.serialization import describe
from tests.support.periodic import (
    BERLIN,
    DAY,
    HOUR,
    NOON,
    NOON_MS,
    SECOND,
    UTC,
    YEAR,
    Ticks,
    begun,
    defined,
    fired,
    firing_of,
    looked,
    seconds,
    state,
    steps,
)

# -- how an entry begins


@pytest.mark.parametrize(
    ("definition", "anchor", "tick"),
    [
        (defined(10), NOON_MS, NOON_MS + 10 * SECOND),
        (defined(timedelta(days=1)), NOON_MS, NOON_MS + DAY),
        (defined(10, start=NOON + timedelta(hours=1)), NOON_MS + HOUR, NOON_MS + HOUR + 10_000),
        (defined(10, start=NOON - timedelta(seconds=7)), NOON_MS - 7_000, NOON_MS + 3_000),
        (defined(10, start=NOON - timedelta(seconds=10)), NOON_MS - 10_000, NOON_MS + 10_000),
        (defined(crontab(0)), NOON_MS, NOON_MS + HOUR),
        (
            defined(crontab(0), start=NOON + timedelta(hours=5)),
            NOON_MS + 5 * HOUR,
            NOON_MS + 5 * HOUR,
        ),
        (
            defined(crontab(0), start=NOON + timedelta(hours=5, microseconds=1)),
            NOON_MS + 5 * HOUR + 1,
            NOON_MS + 6 * HOUR,
        ),
        (defined(rrule("FREQ=HOURLY;INTERVAL=2")), NOON_MS, NOON_MS + 2 * HOUR),
        (defined(NOON + timedelta(milliseconds=1)), NOON_MS, NOON_MS + 1),
        (defined(10, end=NOON + timedelta(seconds=10)), NOON_MS, NOON_MS + 10 * SECOND),
    ],
)
def test_a_new_entry_waits_for_its_first_tick(
    definition: Definition, anchor: int, tick: int
) -> None:
    expected = PeriodicState(
        definition_hash=definition_hash_of(definition), anchor=anchor, next_tick=tick
    )
    assert begin(definition, NOON_MS, UTC) == Periodic(definition, expected)


@pytest.mark.parametrize(
    "definition",
    [
        defined(NOON),
        defined(NOON - timedelta(days=1)),
        defined(10, end=NOON + timedelta(seconds=10) - timedelta(milliseconds=1)),
        defined(10, end=NOON - timedelta(days=1)),
        defined(NOON + timedelta(hours=2), start=NOON + timedelta(hours=3)),
        defined(rrule("FREQ=DAILY;UNTIL=20260302T115959")),
    ],
)
def test_what_is_never_due_from_now_on_has_ended_before_it_begins(definition: Definition) -> None:
    assert begin(definition, NOON_MS, UTC).state == PeriodicState(
        definition_hash=definition_hash_of(definition),
        anchor=NOON_MS if definition.start is None else NOON_MS + 3 * HOUR,
        status="ended",
    )


def test_times_of_day_are_by_the_wall_clock_of_the_entry_or_else_of_the_app() -> None:
    at_three, first, second = crontab(0, 15), NOON_MS + 2 * HOUR, NOON_MS + 26 * HOUR
    entry = begin(defined(at_three), NOON_MS, BERLIN)
    firing = looked(entry, first, BERLIN)

    assert begin(defined(at_three), NOON_MS, UTC).state.next_tick == NOON_MS + 3 * HOUR
    tokyo = defined(at_three, timezone="Asia/Tokyo")
    assert begin(tokyo, NOON_MS, BERLIN).state.next_tick == NOON_MS + 18 * HOUR
    assert (entry.state.next_tick, firing.ticks, firing.then.next_tick) == (first, (first,), second)
    assert upcoming(entry, 2, BERLIN) == [first, second]
    assert ahead_of(state(entry, last_tick=first), BERLIN) == [first]
    assert change(begun(10), defined(at_three), NOON_MS, BERLIN).state.next_tick == first
    assert resume(pause(entry), NOON_MS, BERLIN).state.next_tick == first
    assert pause(state(entry, last_tick=second, count=2), [second], BERLIN).state.last_tick == first


@pytest.mark.parametrize("manual", [0, 1, 25])
def test_manual_runs_stand_in_the_record_and_count_as_runs(manual: int) -> None:
    entry = state(begun(10, max_runs=8), count=7, manual_runs=manual)

    assert Periodic.unpack("bell", entry.pack()) == entry
    assert upcoming(entry, 5, UTC) == [*seconds(10)], "they are no ticks"
    assert entry.total_run_count == 7 + manual


def test_an_entry_that_waits_for_nothing_has_no_next_tick() -> None:
    entry = pause(begun(10))

    assert (entry.next, entry.last_run_at, entry.next_look_ms, entry.status) == (
        None,
        None,
        None,
        "paused",
    )


@pytest.mark.parametrize(
    ("overlap", "ahead"), [("allow", TICK_AHEAD_MS), ("skip", 0), ("queue_one", 0)]
)
def test_an_entry_is_looked_at_ahead_unless_it_depends_on_what_runs_then(
    overlap: str, ahead: int
) -> None:
    assert begun(10, overlap=overlap).next_look_ms == NOON_MS + 10 * SECOND - ahead


def test_an_entry_as_json_says_what_it_is_and_how_it_stands() -> None:
    entry = state(
        begun(10, args=[1], kwargs={"loud": True}, options={"queue": "tower"}, max_runs=5),
        last_tick=NOON_MS - 500,
        count=2,
    )

    assert json.loads(json.dumps(entry.as_dict())) == {
        "name": "bell",
        "source": "api",
        "when": describe(entry.definition.schedule),
        "task": "tower.ring",
        "schedule": {"every": 10},
        "args": [1],
        "kwargs": {"loud": True},
        "options": {"queue": "tower"},
        "max_runs": 5,
        "status": "on",
        "next": "2026-03-02T12:00:10+00:00",
        "last_run_at": "2026-03-02T11:59:59.500000+00:00",
        "total_run_count": 2,
        "manual_runs": 0,
        "since": "2026-03-02T12:00:00+00:00",
    }


def test_as_dict_accepts_times_among_arguments() -> None:
    told = json.dumps(begun(10, args=[NOON]).as_dict())

    assert "2026-03-02T12:00:00" in told


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    "every",
    [10, crontab(), schedule(10, relative=True), rrule("FREQ=DAILY"), steps(10)],
    ids=["interval", "crontab", "relative", "rrule", "asked"],
)
def test_as_dict_accepts_an_end_in_the_last_year(every: Any, zone: str) -> None:
    last = datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    ages = begun(every, timezone=zone, start=last, end=datetime.max.replace(tzinfo=UTC))

    assert ages.as_dict()["name"] == "bell"
    assert all(tick > NOON_MS + 7900 * YEAR for tick in upcoming(ages, 3, UTC))


def test_the_last_moment_of_all_is_no_tick() -> None:
    assert begun(datetime.max.replace(tzinfo=UTC)).as_dict()["status"] == "ended"


def test_the_task_of_a_tick_is_named_after_it() -> None:
    assert tick_id("a:b", NOON_MS) == f"a:b:{NOON_MS}"


# -- when it is time


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize(
    "entry", [pause(begun(10)), state(begun(10), next_tick=None, status="ended")]
)
def test_nothing_is_fired_of_an_entry_that_does_not_go_on(entry: Periodic, overlap: Any) -> None:
    entry = replace(entry, definition=replace(entry.definition, overlap=overlap))

    assert fire(entry, NOON_MS + 10 * YEAR, UTC) is None


def test_what_is_due_once_is_fired_once() -> None:
    entry = begun(NOON + timedelta(hours=1))
    tick = NOON_MS + HOUR

    assert looked(entry, tick - TICK_AHEAD_MS) == firing_of(
        entry, tick - TICK_AHEAD_MS, (tick,), None
    )


# -- ticks to come


@pytest.mark.parametrize(
    ("definition", "count", "ticks"),
    [
        (defined(10), 3, seconds(10, 20, 30)),
        (defined(10), 1, seconds(10)),
        (defined(10), 0, ()),
        (defined(10, max_runs=2), 5, seconds(10, 20)),
        (defined(10, end=NOON + timedelta(seconds=30)), 5, seconds(10, 20, 30)),
        (defined(NOON + timedelta(hours=1)), 5, seconds(3600)),
        (defined(10, start=NOON + timedelta(seconds=100)), 2, seconds(110, 120)),
        (defined(crontab("*/20", "12-13")), 4, seconds(1200, 2400, 3600, 4800)),
        (defined(NOON), 5, ()),
    ],
)
def test_the_next_ticks_are_those_that_will_be_fired(
    definition: Definition, count: int, ticks: Ticks
) -> None:
    assert upcoming(begin(definition, NOON_MS, UTC), count, UTC) == list(ticks)


@pytest.mark.parametrize(("runs", "ticks"), [(None, seconds(20, 30)), (2, seconds(20)), (1, ())])
def test_the_next_ticks_are_not_those_that_are_scheduled(runs: int | None, ticks: Ticks) -> None:
    entry = fired(begun(10, max_runs=runs), NOON_MS + 8_000)

    assert upcoming(entry, 2, UTC) == list(ticks)


def test_nothing_is_to_come_of_what_is_paused() -> None:
    assert upcoming(pause(begun(10)), 5, UTC) == []


@pytest.mark.parametrize("every", [0.5, 1, 2])
def test_ticks_ahead_are_those_of_the_last_look_also_when_they_are_due(every: float) -> None:
    entry = fired(begun(every), NOON_MS)
    ticks = seconds(*(every * n for n in range(1, 1 + int(2 / every))))

    assert ahead_of(entry, UTC) == list(ticks)


def test_nothing_is_ahead_where_a_tick_depends_on_the_task_of_an_earlier_one() -> None:
    assert ahead_of(fired(begun(0.5, overlap="skip"), NOON_MS + 500), UTC) == []


def test_there_are_no_ticks_ahead_of_what_has_not_been_fired() -> None:
    assert ahead_of(begun(0.5), UTC) == []


def test_ticks_ahead_are_known_of_what_is_paused() -> None:
    entry = pause(fired(begun(crontab()), NOON_MS + 59_000))

    assert ahead_of(entry, UTC) == [NOON_MS + 60_000]


def test_all_ticks_ahead_are_known_however_many_they_are() -> None:
    entry = state(begun(0.001), last_tick=NOON_MS + TICK_AHEAD_MS)

    assert ahead_of(entry, UTC) == list(range(NOON_MS + 1, NOON_MS + TICK_AHEAD_MS + 1))


@pytest.mark.parametrize("every", [steps(10), solar("sunrise", 52.5, 13.4)], ids=["own", "solar"])
def test_the_tick_ahead_is_known_of_what_is_asked_for_it(every: BaseSchedule) -> None:
    entry = begun(every)
    tick = entry.state.next_tick
    assert tick is not None

    assert ahead_of(fired(entry, tick - TICK_AHEAD_MS), UTC) == [tick]
