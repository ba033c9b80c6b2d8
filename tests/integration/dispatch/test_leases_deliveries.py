"""A task can read how often it was delivered, and that this is not the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.lease_tasks import held, logged, settings
from tests.integration.conftest import MakeApp

StartWorker = Callable[..., WorkerProcess]

LEASE = {"broker_transport_options": {"delayq": {"lease": 1}}}
AGAIN = [(1, False), (2, True)]


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


def start(delayq_worker: StartWorker, pool: str, **conf: Any) -> WorkerProcess:
    return delayq_worker(
        "tests.apps.lease_tasks:app",
        pool=pool,
        concurrency=1,
        extra_args=FAST_START,
        env=settings(**conf),
    )


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_after_a_reject_with_requeue_it_is_the_second_delivery(
    pool: str, app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    client = delayq_redis.client
    start(delayq_worker, pool)
    result = app.send_task("lease.reject", (True,), countdown=0.1)

    assert result.get(timeout=20) == "accepted"

    assert logged(client, "deliveries", "redelivered") == AGAIN
    wait_until(lambda: not held(client), what="all is acknowledged")
    assert not client.exists("{celery}:deliveries")


def test_after_the_worker_was_killed_it_is_the_second_delivery(
    app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    client = delayq_redis.client
    doomed = start(delayq_worker, "solo", **LEASE)
    result = app.send_task("lease.die", (1,))
    assert doomed.wait() == -9
    start(delayq_worker, "solo", **LEASE)

    assert result.get(timeout=20) == "survived"

    assert logged(client, "deliveries", "redelivered") == AGAIN
    wait_until(lambda: not held(client), what="all is acknowledged")
    assert not client.exists("{celery}:deliveries")


def test_what_was_only_prefetched_and_given_back_was_not_delivered(
    delayq_broker_url: str, delayq_redis: RedisUnderTest
) -> None:
    with Connection(delayq_broker_url) as connection:
        simple = connection.SimpleQueue("a")
        for n in range(3):
            simple.put(n)
        simple.consumer.qos(prefetch_count=3)
        assert simple.get(timeout=60).payload == 0
        connection.drain_events(timeout=5)
        in_hand = 1 + len(simple.buffer)
        assert in_hand < 3
        simple.close()

    before = [message(delayq_broker_url) for _ in range(3)]
    assert before == [(n, 2 if n < in_hand else 1, n < in_hand) for n in range(3)]


def message(url: str) -> tuple[int, int, bool]:
    """Take a message for good; return its text and what it says of its deliveries."""
    with Connection(url) as connection:
        simple = connection.SimpleQueue("a")
        found = simple.get_nowait()
        found.ack()
        simple.close()
        deliveries = found.properties["delayq"]["deliveries"]
        return found.payload, deliveries, found.delivery_info.get("redelivered", False)
