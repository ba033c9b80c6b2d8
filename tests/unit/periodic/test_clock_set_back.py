"""How a periodic entry goes on after Redis' clock was set back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.policy import begin, pause, resume, set_back
from tests.support.periodic import HOUR, NOON, NOON_MS, SECOND, UTC, begun, defined, fired, state

#: How far the clock was ahead, ms.
JUMPS = st.integers(5 * SECOND, 48 * HOUR)


@given(JUMPS, st.sampled_from(["allow", "skip", "queue_one"]), st.integers(1, 7200))
def test_an_interval_goes_on_from_now(jump: int, overlap: str, every: int) -> None:
    entry = fired(begun(every, overlap=overlap), NOON_MS + jump + every * SECOND)

    back = set_back(entry, NOON_MS, UTC)

    assert back.state.next_tick is not None
    assert NOON_MS < back.state.next_tick <= NOON_MS + 2 * SECOND + every * SECOND
    assert back.state.last_tick is not None
    assert back.state.last_tick <= NOON_MS + back.definition.ahead
    assert (back.state.next_tick - NOON_MS) % (every * SECOND) == 0
    assert back.state.count == entry.state.count


@given(JUMPS)
def test_one_that_began_while_the_clock_was_ahead_goes_on_from_now(jump: int) -> None:
    entry = begin(defined(10), NOON_MS + jump, UTC)

    back = set_back(entry, NOON_MS, UTC)

    assert back.state.next_tick == NOON_MS + 10 * SECOND


@given(st.integers(0, 100 * SECOND))
def test_what_was_not_ahead_stays_as_it_is(passed: int) -> None:
    now = NOON_MS + passed
    entry = fired(begun(1), now)

    assert set_back(entry, now, UTC) == entry


@pytest.mark.parametrize("every", [crontab(minute="*/5"), NOON + timedelta(hours=2)])
def test_times_of_day_and_moments_are_fired_once(every: object) -> None:
    entry = fired(begun(every), NOON_MS + 3 * HOUR)

    assert set_back(entry, NOON_MS, UTC) == entry


def test_a_start_that_is_given_stays() -> None:
    entry = begun(10, start=NOON + timedelta(hours=1))

    assert set_back(entry, NOON_MS, UTC) == entry


def test_one_that_is_paused_goes_on_from_now_when_it_is_resumed() -> None:
    entry = pause(fired(begun(10), NOON_MS + HOUR))

    back = set_back(entry, NOON_MS, UTC)

    assert back.state.next_tick is None
    assert resume(back, NOON_MS, UTC).state.next_tick == NOON_MS + 10 * SECOND


def test_one_that_has_ended_stays_so() -> None:
    ended: Periodic = state(begun(10), status="ended", next_tick=None, last_tick=NOON_MS + HOUR)

    assert set_back(ended, NOON_MS, UTC) == replace(ended)
