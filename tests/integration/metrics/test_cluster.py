"""The exporter on a Redis Cluster: the numbers of all hash tags."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from tests.integration.conftest import MakeApp
from tests.integration.metrics.conftest import Export
from tests.support.cluster import Cluster

pytestmark = pytest.mark.full

QUEUES = [f"mail.{number}" for number in range(24)]


@pytest.fixture
def app(delayq_redis_factory: Callable[..., EmbeddedRedis], make_app: MakeApp) -> Celery:
    cluster = Cluster.start(delayq_redis_factory)
    urls = (f"delayq+rediscluster://{host}:{port}" for host, port in cluster.addresses)
    return make_app(broker=";".join(urls))


def test_each_queue_is_counted_once_by_the_master_that_has_it(app: Celery, export: Export) -> None:
    delayq = DelayQ.of(app)
    for number, queue in enumerate(QUEUES):
        for _ in range(number):
            app.send_task("tasks.add", (1, 2), countdown=60, queue=queue)
        app.send_task("tasks.add", (1, 2), queue=queue)

    found = export(delayq).all("entries", "scheduled_entries", "ready_entries", "accepted_total")

    filled = dict(enumerate(QUEUES))
    assert {queue: found["delayq_entries", queue, "scheduled"] for queue in QUEUES} == {
        queue: number for number, queue in filled.items()
    }
    assert {queue: found["delayq_entries", queue, "ready"] for queue in QUEUES} == dict.fromkeys(
        QUEUES, 1
    )
    assert {key[1:]: count for key, count in found.items() if "scheduled_entries" in key[0]} == {
        (queue, "tasks.add"): number for number, queue in filled.items() if number
    }
    assert {key[1:]: count for key, count in found.items() if "ready_entries" in key[0]} == {
        (queue, "tasks.add"): 1 for queue in QUEUES
    }
    accepted = {key[2]: count for key, count in found.items() if key[0] == "delayq_accepted_total"}
    assert accepted == {queue: number + 1 for number, queue in filled.items()}


def test_what_is_of_no_queue_is_of_the_master_that_is_worst_off(
    app: Celery, export: Export
) -> None:
    app.send_task("tasks.add", (1, 2), countdown=60, queue=QUEUES[0])

    found = export(DelayQ.of(app)).all(
        "up", "clock_skew_seconds", "redis_memory_used_bytes", "redis_memory_max_bytes"
    )

    assert found.keys() == {
        ("delayq_up",),
        ("delayq_clock_skew_seconds",),
        ("delayq_redis_memory_used_bytes",),
        ("delayq_redis_memory_max_bytes",),
    }
    assert found["delayq_up",] == 1
    assert found["delayq_redis_memory_used_bytes",] > 1_000_000
