"""Which ticks are scheduled while the task of an earlier one runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from celery_delayq.periodic.policy import GRACE
from tests.support.periodic import (
    HOUR,
    NOON,
    NOON_MS,
    SECOND,
    begun,
    every,
    firing_of,
    looked,
    seconds,
    state,
)


def test_where_others_may_run_beside_it_every_tick_is_scheduled() -> None:
    entry = begun(0.5, overlap="allow")

    assert looked(entry, NOON_MS + 1000).ticks == every(0.5, 0.5, 3)


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_what_does_not_run_beside_another_goes_on_with_the_next_tick_when_refused(
    catch_up: str,
) -> None:
    entry = state(begun(0.5, overlap="skip", catch_up=catch_up), count=3, last=NOON_MS)
    (now,) = seconds(1.7)

    assert looked(entry, now) == firing_of(entry, now, seconds(1.5), NOON_MS + 2000)


def test_what_does_not_run_beside_another_skips_what_was_missed() -> None:
    entry = begun(3600, overlap="skip", catch_up="skip")
    now = NOON_MS + HOUR + GRACE + 1

    assert looked(entry, now) == firing_of(entry, now, (), NOON_MS + 2 * HOUR)


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
@pytest.mark.parametrize(("since", "tick"), [(0.5, 0.5), (1.7, 1.5), (3600.2, 3600)])
def test_what_runs_after_another_stays_where_it_is_when_refused_and_means_the_last_tick(
    catch_up: str, since: float, tick: float
) -> None:
    entry = begun(0.5, overlap="queue_one", catch_up=catch_up)
    (now,), (due,) = seconds(since), seconds(tick)

    assert looked(entry, now) == firing_of(entry, now, (due,), due + 500, entry.state)


def test_what_runs_after_another_still_does_so_when_its_end_has_passed() -> None:
    entry = begun(10, overlap="queue_one", end=NOON + timedelta(seconds=25))
    now = NOON_MS + HOUR

    assert looked(entry, now) == firing_of(entry, now, seconds(20), None, entry.state)


def test_a_tick_that_is_refused_is_no_run() -> None:
    entry = state(begun(10, overlap="skip", max_runs=3), count=2)
    firing = looked(entry, NOON_MS + 10 * SECOND)

    assert (firing.then.count, firing.then.status) == (3, "ended")
    assert (firing.refused.count, firing.refused.status) == (2, "on")


def test_the_last_tick_of_all_ends_an_entry_even_when_refused() -> None:
    entry = begun(10, overlap="skip", end=NOON + timedelta(seconds=19))
    firing = looked(entry, NOON_MS + 10 * SECOND)

    assert firing.refused == replace(entry.state, tick=None, status="ended")
