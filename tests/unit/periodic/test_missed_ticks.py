"""Which missed ticks a deadline leaves out, and when a tick that was scheduled ahead is missed."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab

from celery_delayq.periodic.policy import GRACE_MS, drop_after, fire
from tests.support.periodic import HOUR, NOON_MS, SECOND, UTC, Ticks, begun, looked

MINUTE = 60 * SECOND


@pytest.mark.parametrize(
    ("every", "deadline", "late", "ticks"),
    [
        (crontab(0), None, 10 * SECOND, (HOUR,)),
        (crontab(0), 10 * SECOND, 10 * SECOND, (HOUR,)),
        (crontab(0), 10 * SECOND, 10 * SECOND + 1, ()),
        (crontab(0), 0, GRACE_MS, (HOUR,)),
        (crontab(), 10 * SECOND, HOUR + 5 * SECOND, (2 * HOUR,)),
        (3600, 10 * SECOND, MINUTE, (HOUR,)),
    ],
)
def test_a_tick_of_a_crontab_that_is_later_than_the_deadline_does_not_run(
    every: Any, deadline: int | None, late: int, ticks: Ticks
) -> None:
    firing = fire(begun(every), NOON_MS + HOUR + late, UTC, deadline)

    assert firing is not None
    assert firing.ticks == tuple(NOON_MS + tick for tick in ticks)
    assert firing.then.next_tick is not None
    assert firing.then.next_tick > NOON_MS + HOUR + late


@pytest.mark.parametrize(
    ("every", "given", "deadline", "limits"),
    [
        (2, {"catch_up": "skip"}, None, [GRACE_MS]),
        (2, {}, None, [2 * SECOND + GRACE_MS]),
        (1, {}, None, [SECOND + GRACE_MS]),
        (2, {"max_runs": 1}, None, [0]),
        (2, {"catch_up": "all"}, None, [0]),
        (2, {}, GRACE_MS, [2 * SECOND + GRACE_MS]),
        (crontab(1), {}, None, [HOUR + GRACE_MS]),
        (crontab(1), {}, 10 * SECOND, [10 * SECOND]),
        (crontab(1), {"catch_up": "all"}, 10 * SECOND, [10 * SECOND]),
        (crontab(1), {"catch_up": "skip"}, 10 * SECOND, [GRACE_MS]),
        (crontab(1), {}, 0, [GRACE_MS]),
    ],
)
def test_a_tick_ahead_is_missed_when_no_look_would_catch_it_up(
    every: Any, given: dict[str, Any], deadline: int | None, limits: list[int]
) -> None:
    entry = begun(every, **given)
    look = entry.next_look_ms
    assert look is not None

    assert drop_after(entry, looked(entry, look), deadline) == limits


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_a_tick_that_is_due_is_ready_and_no_more_missed(catch_up: str) -> None:
    entry = begun(2, catch_up=catch_up)

    assert drop_after(entry, looked(entry, NOON_MS + 2 * SECOND))[0] == 0


def test_a_look_that_schedules_nothing_has_nothing_to_drop() -> None:
    entry = begun(HOUR / SECOND, catch_up="skip")

    assert drop_after(entry, looked(entry, NOON_MS + HOUR + MINUTE)) == []
