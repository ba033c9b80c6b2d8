"""Redis' clock was an hour ahead and has been set right: intervals go on at once.

The clock of the server cannot be set here. What it keeps is made what it would be instead: ticks of
the hour ahead were fired, and the latest look was then.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ
from celery_delayq.periodic import policy
from celery_delayq.periodic.definition import Definition, Overlap
from celery_delayq.periodic.entries import Periodic
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.periodic import HOUR
from tests.support.ticking import stored_ticks, ticking, write_entries

#: Some ticks are scheduled two seconds ahead, ms.
NEAR = 10_000


def fire_an_hour_ahead(delayq: DelayQ, every: Any, **given: Any) -> Periodic:
    """Write an entry as it stands after an hour that has not come yet, and return it."""
    now = delayq.store.now_ms()
    definition = Definition.from_fields(every, task="tasks.add", **given)
    entry = policy.begin(definition, now, timezone.utc)
    firing = policy.fire(entry, now + HOUR, timezone.utc)
    assert firing is not None
    entry = replace(entry, state=firing.then)
    write_entries(delayq, entry)
    delayq.store.client.hset("delayq:clock", "ticked", str(now + HOUR))
    return entry


@pytest.mark.parametrize("count", [1, 3], ids=["one runner", "three runners"])
@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_an_interval_goes_on_from_now(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, overlap: Overlap, count: int
) -> None:
    client = delayq_redis.client
    fire_an_hour_ahead(delayq, 0.5, name="often", overlap=overlap)
    before = fire_an_hour_ahead(delayq, crontab(), name="minutely")
    began = delayq.store.now_ms()

    with ticking(app, count):
        wait_until(lambda: stored_ticks(client).get("often"), what="it ticks")

    ticks = stored_ticks(client)
    now = delayq.store.now_ms()
    assert all(began < tick < now + NEAR for tick in ticks["often"])
    assert len(ticks["often"]) == len({*ticks["often"]})
    assert "minutely" not in ticks
    minutely_now, entry = delayq.periodic.list()
    assert minutely_now == before
    assert entry.state.last_tick == max(ticks["often"])
    assert entry.state.next_tick is not None
    assert entry.state.next_tick < now + NEAR
    assert int(client.hget("delayq:clock", "ticked") or 0) <= now


def test_one_that_somebody_looked_at_then_is_looked_at_again(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    """Who looked at it has died, and it was left alone until then."""
    now = delayq.store.now_ms()
    delayq.periodic.add("often", 0.5, "tasks.add", (1, 2))
    delayq_redis.client.zadd("delayq:periodic_at", {"often": now + HOUR})
    delayq_redis.client.hset("delayq:clock", "ticked", str(now + HOUR))

    with ticking(app):
        wait_until(lambda: stored_ticks(delayq_redis.client).get("often"), what="it ticks")
