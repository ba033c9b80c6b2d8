"""Which ticks that were missed are scheduled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery.schedules import crontab

from celery_delayq.periodic.definition import AHEAD
from celery_delayq.periodic.policy import BURST, GRACE
from tests.support.periodic import (
    DAY,
    HOUR,
    MINUTE,
    NOON_MS,
    SECOND,
    YEAR,
    Ticks,
    begun,
    every,
    firing_of,
    looked,
    scheduled,
    seconds,
    state,
    walk,
)


@pytest.mark.parametrize(("catch_up", "caught_up"), [("skip", False), ("one", True), ("all", True)])
def test_a_tick_is_missed_more_than_a_second_after_its_time_to_the_ms(
    catch_up: str, caught_up: bool
) -> None:
    entry = begun(3600, catch_up=catch_up)
    tick = NOON_MS + HOUR
    in_time, late = tick + GRACE, tick + GRACE + 1

    assert looked(entry, in_time) == firing_of(entry, in_time, (tick,), tick + HOUR)
    ticks = (tick,) if caught_up else ()
    assert looked(entry, late) == firing_of(entry, late, ticks, tick + HOUR)


@pytest.mark.parametrize(
    ("options", "caught_up"),
    [
        ({"catch_up": "skip"}, ()),
        ({"catch_up": "skip", "catch_up_max": 5}, ()),
        ({"catch_up": "one"}, seconds(8.5)),
        ({"catch_up": "one", "catch_up_max": 5}, seconds(8.5)),
        ({"catch_up": "all"}, every(0.5, 0.5, 8.5)),
        ({"catch_up": "all", "catch_up_max": 17}, every(0.5, 0.5, 8.5)),
        ({"catch_up": "all", "catch_up_max": 16}, every(0.5, 1, 8.5)),
        ({"catch_up": "all", "catch_up_max": 3}, seconds(7.5, 8, 8.5)),
        ({"catch_up": "all", "catch_up_max": 1}, seconds(8.5)),
    ],
)
def test_what_runs_of_the_ticks_that_were_missed_is_as_catch_up_says(
    options: dict[str, Any], caught_up: Ticks
) -> None:
    entry = begun(0.5, **options)
    (now,) = seconds(10)
    ticks = caught_up + every(0.5, 9, 12)

    assert looked(entry, now) == firing_of(entry, now, ticks, NOON_MS + 12_500)


@pytest.mark.parametrize("gap", [3 * MINUTE, HOUR, DAY, 3 * YEAR])
@pytest.mark.parametrize(
    ("options", "caught_up"),
    [
        ({"catch_up": "skip"}, 0),
        ({}, 1),
        ({"catch_up": "all"}, 100),
        ({"catch_up": "all", "catch_up_max": 1000}, 1000),
    ],
)
def test_of_a_long_gap_the_last_ticks_run(
    options: dict[str, Any], caught_up: int, gap: int
) -> None:
    entry = begun(1, **options)
    now = NOON_MS + gap
    first = max(NOON_MS + SECOND, now - GRACE - caught_up * SECOND)
    ticks = tuple(range(first, now + AHEAD + 1, SECOND))

    assert scheduled(entry, now) == (
        ticks,
        replace(entry.state, tick=now + AHEAD + SECOND, last=now + AHEAD, count=len(ticks)),
    )


def test_ticks_that_are_skipped_do_not_count() -> None:
    entry = state(begun(3600, catch_up="skip", max_runs=3), last=NOON_MS - DAY, count=2)
    now = NOON_MS + 5 * HOUR + 30 * MINUTE

    assert looked(entry, now) == firing_of(entry, now, (), NOON_MS + 6 * HOUR)


def test_a_day_that_was_missed_is_caught_up_by_the_calendar() -> None:
    entry = begun(crontab(0, 9, day_of_week="mon-fri"), catch_up="all")
    (friday, monday, tuesday) = (NOON_MS + days * DAY - 3 * HOUR for days in (4, 7, 8))
    entry = state(entry, tick=friday)
    firing = looked(entry, monday + HOUR)

    assert (firing.ticks, firing.then.tick) == ((friday, monday), tuesday)


def test_at_most_so_many_ticks_are_scheduled_at_once_and_others_at_the_next_look() -> None:
    entry = begun(0.001)
    end = NOON_MS + AHEAD

    looks = walk(entry, [0] * (AHEAD // BURST + 1))

    assert looks[:-1] == [
        (NOON_MS, tuple(range(first, first + BURST)))
        for first in range(NOON_MS + 1, end + 1, BURST)
    ]
    assert looks[-1] == (NOON_MS, ())


def test_what_was_missed_is_caught_up_beside_many_that_are_in_time() -> None:
    entry = begun(0.002, catch_up="all")
    now = NOON_MS + GRACE + 100

    assert scheduled(entry, now)[0] == tuple(range(NOON_MS + 2, now + AHEAD + 1, 2))
