"""The same ``beat_schedule`` for stock beat and for workers of this package."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from kombu import pools

from celery_delayq.periodic.code_entries import definitions_of
from celery_delayq.periodic.definition import Definition
from celery_delayq.testing.fixtures import RedisUnderTest

OURS: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "start": datetime(2030, 1, 1, tzinfo=timezone.utc),
    "end": datetime(2040, 1, 1, tzinfo=timezone.utc),
    "max_runs": 7,
    "catch_up": "all",
    "catch_up_max": 20,
    "overlap": "skip",
}


@pytest.fixture
def app(delayq_redis: RedisUnderTest) -> Iterator[Celery]:
    with Celery("shop", broker=delayq_redis.url, set_as_current=False) as app:
        yield app
    pools.reset()


def test_what_is_ours_is_among_the_options_where_beat_is_to_take_it_too(app: Celery) -> None:
    app.conf.beat_schedule = {
        "poll": {"task": "shop.poll", "schedule": 30, "options": {"queue": "slow", **OURS}}
    }

    scheduler = Scheduler(app, lazy=False)
    sent = scheduler.apply_async(scheduler.schedule["poll"], advance=False)
    [(_, definition)] = definitions_of(app)

    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("slow").get(block=False)
    assert message.headers["id"] == sent.id
    assert isinstance(definition, Definition)
    assert definition.options == {"queue": "slow"}
    assert {what: getattr(definition, what) for what in OURS} == OURS


def test_beat_knows_no_keys_of_ours(app: Celery) -> None:
    app.conf.beat_schedule = {"poll": {"task": "shop.poll", "schedule": 30, "catch_up": "all"}}

    with pytest.raises(TypeError, match="catch_up"):
        Scheduler(app, lazy=False)
