"""A periodic entry is paused and resumed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from celery.schedules import crontab

from celery_delayq.periodic.definition import AHEAD
from celery_delayq.periodic.policy import begin, change, pause, resume, upcoming
from celery_delayq.periodic.state import Periodic
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


def test_what_is_paused_keeps_its_last_tick_and_count() -> None:
    entry = fired(begun(10), NOON_MS + 10_000)

    assert pause(entry) == replace(entry, state=replace(entry.state, tick=None, status="paused"))


def test_ticks_that_are_withdrawn_by_a_pause_do_not_count_and_may_come_again() -> None:
    entry = fired(begun(0.5), NOON_MS)
    paused = pause(entry, seconds(1, 1.5, 2))

    assert (paused.state.tick, paused.state.count, paused.status) == (None, 1, "paused")
    assert resume(paused, NOON_MS + 600, UTC) == replace(
        paused, state=replace(paused.state, tick=NOON_MS + 1000, status="on")
    )


def test_a_pause_is_corrected_by_what_was_withdrawn_after_it() -> None:
    entry = fired(begun(0.5), NOON_MS)

    assert pause(pause(entry), seconds(2)) == pause(entry, seconds(2))


@pytest.mark.parametrize("unfired", [(0.5,), (1,), (1, 1.5), (0.5, 1, 1.5)])
def test_ticks_that_could_not_be_withdrawn_count_and_do_not_come_again(
    unfired: tuple[float, ...],
) -> None:
    # Somebody has run the last one manually before its time.
    entry = fired(begun(0.5), NOON_MS)
    paused = pause(entry, seconds(*unfired))

    assert paused.state == replace(entry.state, tick=None, count=4 - len(unfired), status="paused")
    assert resume(paused, NOON_MS + 100, UTC).state.tick == NOON_MS + 2500


def test_the_last_tick_of_what_is_paused_may_be_its_start() -> None:
    start = NOON + timedelta(hours=5)
    first, second = NOON_MS + 5 * HOUR, NOON_MS + 6 * HOUR
    entry = fired(fired(begun(crontab(0), start=start), first), second - AHEAD)

    assert pause(entry, [second]).state.last == first


def test_the_last_tick_of_what_is_paused_is_one_that_was_scheduled() -> None:
    entry = fired(begun(0.5), NOON_MS)

    assert pause(entry, seconds(1.5, 2)).state.last == NOON_MS + 1000


def test_another_interval_goes_on_from_the_last_tick_after_a_pause() -> None:
    entry = fired(fired(begun(10), NOON_MS + 8_000), NOON_MS + 18_000)
    resumed = resume(pause(entry, seconds(20)), NOON_MS + 19_000, UTC)
    changed = change(resumed, defined(60), NOON_MS + 19_500, UTC)

    assert changed.state.anchor == NOON_MS + 10_000


def test_a_tick_that_could_not_be_withdrawn_does_not_come_again() -> None:
    # Somebody has run the second of three manually before its time.
    entry = fired(begun(0.5), NOON_MS - 500)
    resumed = resume(pause(entry, seconds(0.5, 1.5)), NOON_MS, UTC)

    assert NOON_MS + 1000 not in upcoming(resumed, 10, UTC)


def test_what_is_asked_for_its_ticks_and_never_ran_has_no_last_one() -> None:
    entry = begun(steps(10))
    tick = entry.state.tick
    assert tick is not None

    assert pause(fired(entry, tick - AHEAD), [tick]).state == replace(
        entry.state, tick=None, status="paused"
    )


@pytest.mark.parametrize("unfired", [(0.5,), (0.5, 1), (0.5, 1, 1.5, 2)])
def test_what_never_ran_has_no_last_tick_when_it_is_paused(unfired: tuple[float, ...]) -> None:
    entry = begun(0.5, max_runs=len(unfired))
    paused = pause(fired(entry, NOON_MS), seconds(*unfired))

    assert paused.state == replace(entry.state, tick=None, status="paused")


def test_a_pause_does_not_go_through_all_ticks_that_there_were() -> None:
    now = NOON_MS + 30 * DAY
    (tick,) = upcoming(begin(defined(counted(0)), now, UTC), 1, UTC)
    entry = state(begun(counted(0)), last=tick, count=720)
    before = counted.asked

    paused = pause(entry, [tick])

    assert (paused.state.last, paused.state.count) == (tick - HOUR, 719)
    assert counted.asked - before < 100


@pytest.mark.parametrize(
    ("now", "tick"), [(10.0, 20.0), (19.999, 20.0), (20.0, 30.0), (1000.5, 1010.0)]
)
def test_what_is_resumed_goes_on_in_its_phase_and_catches_nothing_up(
    now: float, tick: float
) -> None:
    entry = pause(fired(begun(10, catch_up="all"), NOON_MS + 10_000))
    (now_ms, tick_ms) = seconds(now, tick)

    assert resume(entry, now_ms, UTC) == replace(
        entry, state=replace(entry.state, tick=tick_ms, status="on")
    )


def test_what_was_scheduled_ahead_is_not_scheduled_again_when_resumed() -> None:
    entry = pause(fired(begun(10), NOON_MS + 8_000))

    assert resume(entry, NOON_MS + 8_500, UTC).state.tick == NOON_MS + 20_000


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

    assert resumed == replace(entry, state=replace(entry.state, tick=None, status="ended"))


def test_what_is_resumed_before_its_start_waits_for_it() -> None:
    entry = pause(begun(crontab(0), start=NOON + timedelta(hours=5)))

    assert resume(entry, NOON_MS, UTC).state.tick == NOON_MS + 5 * HOUR
