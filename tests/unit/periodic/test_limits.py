"""A periodic entry ends: by its end, or its number of runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab

from celery_delayq.periodic.policy import Firing, fire, upcoming
from tests.support.periodic import (
    DAY,
    HOUR,
    NOON,
    NOON_MS,
    SECOND,
    UTC,
    Ticks,
    begun,
    seconds,
    state,
)


def test_an_entry_ends_with_the_last_tick_before_its_end() -> None:
    entry = begun(1, end=NOON + timedelta(seconds=3))

    assert fire(entry, NOON_MS + 1500, UTC) == Firing(
        ticks=seconds(1, 2, 3),
        then=replace(entry.state, tick=None, last=NOON_MS + 3000, count=3, status="ended"),
        refused=replace(entry.state, tick=None, status="ended"),
        now=NOON_MS + 1500,
    )


@pytest.mark.parametrize(
    ("catch_up", "ticks"),
    [("skip", ()), ("one", seconds(30)), ("all", seconds(10, 20, 30))],
)
def test_what_was_missed_before_the_end_is_caught_up_after_it(catch_up: str, ticks: Ticks) -> None:
    entry = begun(10, catch_up=catch_up, end=NOON + timedelta(seconds=39))
    firing = fire(entry, NOON_MS + DAY, UTC)

    assert firing is not None
    assert (firing.ticks, firing.then.tick, firing.then.status) == (ticks, None, "ended")
    assert firing.then.count == len(ticks)


def test_no_tick_is_after_the_end_of_a_day() -> None:
    last_moment = datetime(2026, 3, 3, 23, 59, 59, 999_999, tzinfo=UTC)
    entry = begun(crontab(0, 0), end=last_moment)

    assert upcoming(entry, 5, UTC) == [NOON_MS + 12 * HOUR]


def test_an_end_between_two_ms_is_that_of_the_tick_before_it() -> None:
    entry = begun(0.001, end=NOON + timedelta(microseconds=5500))

    assert fire(entry, NOON_MS, UTC) == Firing(
        ticks=seconds(0.001, 0.002, 0.003, 0.004, 0.005),
        then=replace(entry.state, tick=None, last=NOON_MS + 5, count=5, status="ended"),
        refused=replace(entry.state, tick=None, status="ended"),
        now=NOON_MS,
    )


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
def test_a_tick_after_the_end_is_not_fired_whoever_has_written_it(overlap: str) -> None:
    entry = begun(10, end=NOON + timedelta(seconds=15), overlap=overlap)
    entry = state(entry, tick=NOON_MS + 20_000)
    ended = replace(entry.state, tick=None, status="ended")

    assert fire(entry, NOON_MS + HOUR, UTC) == Firing((), ended, ended, NOON_MS + HOUR)


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
    firing = fire(entry, NOON_MS + 10 * SECOND, UTC)

    assert firing is not None
    assert (firing.ticks, firing.then.count) == (ticks, 2 + len(ticks))
    assert firing.then.last == ticks[-1]
    ended = len(ticks) == 3
    assert (firing.then.status, firing.then.tick is None) == ("ended" if ended else "on", ended)


@pytest.mark.parametrize(("runs", "then"), [(1, "ended"), (2, "on")])
def test_an_entry_ends_with_its_last_run(runs: int, then: str) -> None:
    entry = begun(10, max_runs=runs)

    assert fire(entry, NOON_MS + 8000, UTC) == Firing(
        ticks=seconds(10),
        then=replace(
            entry.state,
            tick=NOON_MS + 20_000 if then == "on" else None,
            last=NOON_MS + 10_000,
            count=1,
            status=then,  # type: ignore[arg-type]
        ),
        refused=replace(entry.state, tick=NOON_MS + 20_000),
        now=NOON_MS + 8000,
    )


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_what_has_run_as_often_as_it_may_is_not_fired(overlap: str, count: int) -> None:
    entry = state(begun(10, max_runs=3, catch_up="all", overlap=overlap), count=count)
    ended = replace(entry.state, tick=None, status="ended")
    now = NOON_MS + 45_000

    assert fire(entry, now, UTC) == Firing((), ended, ended, now)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
def test_manual_runs_do_not_use_up_the_number_of_runs(overlap: str) -> None:
    entry = state(begun(10, max_runs=1, overlap=overlap), manual=5)
    ended = replace(entry.state, tick=None, last=NOON_MS + 10_000, count=1, status="ended")

    firing = fire(entry, NOON_MS + 10_000, UTC)

    assert firing is not None
    assert (firing.ticks, firing.then) == (seconds(10), ended)
    assert upcoming(entry, 5, UTC) == [*seconds(10)]
