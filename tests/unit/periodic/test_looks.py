"""Which ticks a look at a periodic entry schedules: those that going through all of them finds."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest
from celery.schedules import BaseSchedule, crontab
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_delayq.periodic.definition import TICK_AHEAD_MS
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.policy import GRACE_MS, MAX_TICKS_PER_LOOK, Firing, fire, upcoming
from celery_delayq.periodic.wall_clock import datetime_of_ms
from tests.support.periodic import (
    DAY,
    HOUR,
    MINUTE,
    NOON_MS,
    SECOND,
    UTC,
    YEAR,
    begun,
    counted,
    firing_of,
    scheduled,
    state,
    steps,
    walk,
)


def expected(entry: Periodic, now: int, step: int) -> Firing | None:
    """Return what a look at an interval has to find, by going through all its ticks."""
    its, old = entry.definition, entry.state
    assert old.next_tick is not None
    until = now if its.overlap in ("skip", "queue_one") else now + TICK_AHEAD_MS
    if old.next_tick > until:
        return None

    def following(count: int) -> int | None:
        tick = due[-1] + step
        over = its.end is not None and datetime_of_ms(tick) > its.end
        return None if over or (its.max_runs is not None and count >= its.max_runs) else tick

    ticks = range(old.next_tick, until + 1, step)
    due = [tick for tick in ticks if its.end is None or datetime_of_ms(tick) <= its.end]
    if not due:
        return firing_of(entry, now, (), None)
    missed = [tick for tick in due if now - tick > GRACE_MS]
    caught_up = {"skip": 0, "one": 1, "all": its.catch_up_max}[its.catch_up]
    runs = missed[max(0, len(missed) - caught_up) :] + due[len(missed) :]
    if its.overlap == "skip":
        runs = runs[-1:]
    if its.overlap == "queue_one":
        runs = due[-1:]
    if its.max_runs is not None:
        runs = runs[: max(0, its.max_runs - old.count)]
    passed = firing_of(entry, now, (), following(old.count)).then
    refused = old if runs and its.overlap == "queue_one" else passed
    return firing_of(entry, now, tuple(runs), following(old.count + len(runs)), refused)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize(
    ("catch_up", "most"),
    [("skip", 100), ("skip", 5), ("one", 100), ("one", 5), ("all", 1), ("all", 3), ("all", 100)],
)
def test_a_look_schedules_what_is_due_and_of_what_was_missed_what_catch_up_says(
    overlap: str, catch_up: str, most: int
) -> None:
    for step, max_runs in product((SECOND // 2, 10 * SECOND), (None, 1, 3)):
        first = NOON_MS + step
        for end in (-0.001, 0, step - 1, 2 * step + 0.5, 19 * step, None):  # ms after the first
            last_moment = (
                None if end is None else datetime_of_ms(first) + timedelta(milliseconds=end)
            )
            entry = begun(
                step / SECOND,
                overlap=overlap,
                catch_up=catch_up,
                max_runs=max_runs,
                end=last_moment,
            )
            # A record may have a number that calls refuse, where it has no meaning.
            entry = replace(entry, definition=replace(entry.definition, catch_up_max=most))
            for count, ticks, ms in product(
                (0, 2, 3, 4),
                (0, 1, 9),
                (-TICK_AHEAD_MS - 1, -TICK_AHEAD_MS, -1, 0, 1, GRACE_MS, GRACE_MS + 1),
            ):
                before = state(entry, next_tick=first, count=count, manual_runs=5, status="on")
                now = first + ticks * step + ms
                assert fire(before, now, UTC) == expected(before, now, step), (before, now)


@given(
    step=st.integers(50, 20_000),
    gaps=st.lists(st.integers(0, 5000) | st.integers(0, 60_000), min_size=1, max_size=15),
)
def test_with_all_caught_up_each_tick_is_scheduled_once_and_in_order(
    step: int, gaps: list[int]
) -> None:
    entry = begun(step / 1000, catch_up="all", catch_up_max=1000)
    # As long as there are fewer than that.
    gaps = [min(gap, 1000 * step) for gap in gaps]
    at_once = 1000 // MAX_TICKS_PER_LOOK + 2
    looks = walk(entry, [each for gap in gaps for each in (gap, *[0] * at_once)])

    end = looks[-1][0] + TICK_AHEAD_MS
    assert [tick for _, some in looks for tick in some] == list(
        range(NOON_MS + step, end + 1, step)
    )


@settings(max_examples=40)
@given(gaps=st.lists(st.integers(0, 3 * DAY), min_size=1, max_size=10))
def test_a_crontab_is_caught_up_as_upcoming_foretold(gaps: list[int]) -> None:
    # Through the night in which clocks are set forward.
    entry = begun(crontab(30, "2,14"), catch_up="all", timezone="Europe/Berlin")
    entry = state(entry, next_tick=NOON_MS + 26 * DAY + 90 * MINUTE)
    foretold = upcoming(entry, 100, UTC)

    looks = walk(entry, [26 * DAY, *gaps])
    ticks = [tick for _, some in looks for tick in some]

    assert ticks == [tick for tick in foretold if tick <= looks[-1][0] + TICK_AHEAD_MS]


@settings(max_examples=30)
@given(
    every=st.sampled_from([steps(30), counted("*/7")]),
    catch_up=st.sampled_from(["skip", "one", "all"]),
    gaps=st.lists(st.integers(0, HOUR) | st.integers(0, 3 * DAY), min_size=1, max_size=5),
)
def test_what_is_asked_for_its_ticks_has_each_of_them_once_and_in_order(
    every: BaseSchedule, catch_up: str, gaps: list[int]
) -> None:
    most = {"skip": 0, "one": 1, "all": 5}[catch_up]
    entry = begun(every, catch_up=catch_up, **({"catch_up_max": 5} if most == 5 else {}))
    found: list[int] = []

    for now, ticks in walk(entry, gaps):
        assert all(tick <= now + TICK_AHEAD_MS for tick in ticks)
        assert sum(tick < now - GRACE_MS for tick in ticks) <= most
        found += ticks

    assert found == sorted(set(found))
    assert all(tick % MINUTE == 0 for tick in found if isinstance(every, counted))


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
    first = max(NOON_MS + SECOND, now - GRACE_MS - caught_up * SECOND)
    ticks = tuple(range(first, now + TICK_AHEAD_MS + 1, SECOND))

    assert scheduled(entry, now) == (
        ticks,
        replace(
            entry.state,
            next_tick=now + TICK_AHEAD_MS + SECOND,
            last_tick=now + TICK_AHEAD_MS,
            count=len(ticks),
        ),
    )


def test_at_most_so_many_ticks_are_scheduled_at_once_and_others_at_the_next_look() -> None:
    entry = begun(0.001)
    end = NOON_MS + TICK_AHEAD_MS

    looks = walk(entry, [0] * (TICK_AHEAD_MS // MAX_TICKS_PER_LOOK + 1))

    assert looks[:-1] == [
        (NOON_MS, tuple(range(first, first + MAX_TICKS_PER_LOOK)))
        for first in range(NOON_MS + 1, end + 1, MAX_TICKS_PER_LOOK)
    ]
    assert looks[-1] == (NOON_MS, ())


def test_what_was_missed_is_caught_up_beside_many_that_are_in_time() -> None:
    entry = begun(0.002, catch_up="all")
    now = NOON_MS + GRACE_MS + 100

    assert scheduled(entry, now)[0] == tuple(range(NOON_MS + 2, now + TICK_AHEAD_MS + 1, 2))


def test_no_tick_is_after_the_end_of_a_day() -> None:
    last_moment = datetime(2026, 3, 3, 23, 59, 59, 999_999, tzinfo=UTC)

    assert upcoming(begun(crontab(0, 0), end=last_moment), 5, UTC) == [NOON_MS + 12 * HOUR]
