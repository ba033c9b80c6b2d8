"""A periodic entry ends: by its end, or its number of runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab

from celery_delayq.periodic.policy import upcoming
from tests.support.periodic import (
    DAY,
    HOUR,
    NOON,
    NOON_MS,
    SECOND,
    UTC,
    Ticks,
    begun,
    every,
    firing_of,
    looked,
    seconds,
    state,
)


def test_an_entry_ends_with_the_last_tick_before_its_end() -> None:
    entry = begun(1, end=NOON + timedelta(seconds=3))

    (now,) = seconds(1.5)
    assert looked(entry, now) == firing_of(entry, now, seconds(1, 2, 3), None)


@pytest.mark.parametrize(
    ("catch_up", "ticks"), [("skip", ()), ("one", seconds(30)), ("all", seconds(10, 20, 30))]
)
def test_what_was_missed_before_the_end_is_caught_up_after_it(catch_up: str, ticks: Ticks) -> None:
    entry = begun(10, catch_up=catch_up, end=NOON + timedelta(seconds=39))

    assert looked(entry, NOON_MS + DAY) == firing_of(entry, NOON_MS + DAY, ticks, None)


def test_no_tick_is_after_the_end_of_a_day() -> None:
    last_moment = datetime(2026, 3, 3, 23, 59, 59, 999_999, tzinfo=UTC)
    entry = begun(crontab(0, 0), end=last_moment)

    assert upcoming(entry, 5, UTC) == [NOON_MS + 12 * HOUR]


def test_an_end_between_two_ms_is_that_of_the_tick_before_it() -> None:
    entry = begun(0.001, end=NOON + timedelta(microseconds=5500))

    ticks = every(0.001, 0.001, 0.005)
    assert looked(entry, NOON_MS) == firing_of(entry, NOON_MS, ticks, None)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
def test_a_tick_after_the_end_is_not_fired_whoever_has_written_it(overlap: str) -> None:
    entry = begun(10, end=NOON + timedelta(seconds=15), overlap=overlap)
    entry = state(entry, tick=NOON_MS + 20_000)

    assert looked(entry, NOON_MS + HOUR) == firing_of(entry, NOON_MS + HOUR, (), None)


@pytest.mark.parametrize(
    ("options", "ticks"),
    [
        ({"catch_up": "all"}, seconds(1, 2, 3)),
        ({"catch_up": "all", "catch_up_max": 2}, seconds(7, 8, 9)),
        ({"catch_up": "one"}, seconds(8, 9, 10)),
        ({"catch_up": "skip"}, seconds(9, 10, 11)),
        ({"overlap": "skip"}, seconds(10)),
        ({"overlap": "queue_one"}, seconds(10)),
    ],
)
def test_the_number_of_runs_counts_what_is_caught_up_first(
    options: dict[str, Any], ticks: Ticks
) -> None:
    entry = state(begun(1, max_runs=5, **options), count=2)
    firing = looked(entry, NOON_MS + 10 * SECOND)

    then = None if len(ticks) == 3 else firing.then.tick
    assert firing.ticks == ticks
    assert firing.then == firing_of(entry, firing.now, ticks, then).then


@pytest.mark.parametrize(("runs", "then"), [(1, None), (2, NOON_MS + 20_000)])
def test_an_entry_ends_with_its_last_run(runs: int, then: int | None) -> None:
    entry = begun(10, max_runs=runs)
    refused = replace(entry.state, tick=NOON_MS + 20_000)
    (now,) = seconds(8)

    assert looked(entry, now) == firing_of(entry, now, seconds(10), then, refused)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_what_has_run_as_often_as_it_may_is_not_fired(overlap: str, count: int) -> None:
    entry = state(begun(10, max_runs=3, catch_up="all", overlap=overlap), count=count)
    (now,) = seconds(45)

    assert looked(entry, now) == firing_of(entry, now, (), None)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
def test_manual_runs_do_not_use_up_the_number_of_runs(overlap: str) -> None:
    entry = state(begun(10, max_runs=1, overlap=overlap), manual=5)
    (now,) = seconds(10)

    assert looked(entry, now).then == firing_of(entry, now, (now,), None).then
    assert upcoming(entry, 5, UTC) == [*seconds(10)]
