"""A periodic entry is paused and resumed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest
from celery.schedules import crontab

from celery_delayq.periodic.definition import TICK_AHEAD_MS
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.policy import begin, change, pause, resume, upcoming
from tests.support.periodic import (
    DAY,
    HOUR,
    NOON,
    NOON_MS,
    UTC,
    begun,
    counted,
    defined,
    fired,
    seconds,
    state,
    steps,
)

AHEAD_OF_NOON = seconds(0.5, 1, 1.5, 2)


@pytest.mark.parametrize(
    "unfired", [some for number in range(5) for some in combinations(AHEAD_OF_NOON, number)]
)
@pytest.mark.parametrize("max_runs", [None, 4])
def test_ticks_that_a_pause_withdraws_do_not_count_and_the_last_ones_come_again(
    unfired: tuple[int, ...], max_runs: int | None
) -> None:
    """Some cannot be withdrawn: somebody has run them manually before their time."""
    entry = fired(begun(0.5, max_runs=max_runs), NOON_MS)
    stay = [tick for tick in AHEAD_OF_NOON if tick not in unfired]
    last = stay[-1] if stay else None

    paused = pause(entry, unfired)

    assert paused.state == replace(
        entry.state, next_tick=None, last_tick=last, count=len(stay), status="paused"
    )
    assert pause(pause(entry), unfired) == paused, "corrected after it"
    following = None if len(stay) == max_runs else (last or NOON_MS) + 500
    assert resume(paused, NOON_MS + 100, UTC).state.next_tick == following


def test_the_last_tick_of_what_is_paused_may_be_its_start() -> None:
    start = NOON + timedelta(hours=5)
    first, second = NOON_MS + 5 * HOUR, NOON_MS + 6 * HOUR
    entry = fired(fired(begun(crontab(0), start=start), first), second - TICK_AHEAD_MS)

    assert pause(entry, [second]).state.last_tick == first


def test_another_interval_goes_on_from_the_last_tick_after_a_pause() -> None:
    entry = fired(fired(begun(10), NOON_MS + 8_000), NOON_MS + 18_000)
    resumed = resume(pause(entry, seconds(20)), NOON_MS + 19_000, UTC)
    changed = change(resumed, defined(60), NOON_MS + 19_500, UTC)

    assert changed.state.anchor == NOON_MS + 10_000


def test_what_is_asked_for_its_ticks_and_never_ran_has_no_last_one() -> None:
    entry = begun(steps(10))
    tick = entry.state.next_tick
    assert tick is not None

    assert pause(fired(entry, tick - TICK_AHEAD_MS), [tick]).state == replace(
        entry.state, next_tick=None, status="paused"
    )


def test_a_pause_does_not_go_through_all_ticks_that_there_were() -> None:
    now = NOON_MS + 30 * DAY
    (tick,) = upcoming(begin(defined(counted(0)), now, UTC), 1, UTC)
    entry = state(begun(counted(0)), last_tick=tick, count=720)
    before = counted.calls

    paused = pause(entry, [tick])

    assert (paused.state.last_tick, paused.state.count) == (tick - HOUR, 719)
    assert counted.calls - before < 100


@pytest.mark.parametrize(
    ("now", "tick"), [(10.0, 20.0), (19.999, 20.0), (20.0, 30.0), (1000.5, 1010.0)]
)
def test_what_is_resumed_goes_on_in_its_phase_and_catches_nothing_up(
    now: float, tick: float
) -> None:
    entry = pause(fired(begun(10, catch_up="all"), NOON_MS + 10_000))
    (now_ms, tick_ms) = seconds(now, tick)

    assert resume(entry, now_ms, UTC) == replace(
        entry, state=replace(entry.state, next_tick=tick_ms, status="on")
    )


def test_what_was_scheduled_ahead_is_not_scheduled_again_when_resumed() -> None:
    entry = pause(fired(begun(10), NOON_MS + 8_000))

    assert resume(entry, NOON_MS + 8_500, UTC).state.next_tick == NOON_MS + 20_000


@pytest.mark.parametrize(
    ("entry", "now"),
    [
        (begun(10, end=NOON + timedelta(seconds=25)), 21.0),
        (begun(NOON + timedelta(seconds=20)), 20.0),
        (state(begun(10, max_runs=2), count=2), 0.0),
    ],
)
def test_what_has_no_tick_left_has_ended_when_it_is_resumed(entry: Periodic, now: float) -> None:
    resumed = resume(pause(entry), seconds(now)[0], UTC)

    assert resumed == replace(entry, state=replace(entry.state, next_tick=None, status="ended"))


def test_what_is_resumed_before_its_start_waits_for_it() -> None:
    entry = pause(begun(crontab(0), start=NOON + timedelta(hours=5)))

    assert resume(entry, NOON_MS, UTC).state.next_tick == NOON_MS + 5 * HOUR
