"""The exporter on a Redis Cluster: the numbers of all hash tags."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.cluster_tags import slot_of, tag_of
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.integration.metrics.conftest import Export
from tests.integration.metrics.test_command import serves_until_term
from tests.support import TIMEOUT
from tests.support.cluster import TAGS, Cluster

pytestmark = pytest.mark.full

QUEUES = [f"mail.{number}" for number in range(24)]


@pytest.fixture
def cluster(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> Cluster:
    return Cluster.start(delayq_redis_factory)


@pytest.fixture
def delayq_broker_url(cluster: Cluster) -> str:
    """The broker of apps and commands."""
    return cluster.url


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


def test_the_command_serves_until_term(shop: list[str]) -> None:
    serves_until_term(shop)


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


def test_queues_of_other_masters_are_counted_while_one_is_away(
    cluster: Cluster, app: Celery, export: Export
) -> None:
    for queue in QUEUES:
        app.send_task("tasks.add", (1, 2), countdown=60, queue=queue)
    exported = export(DelayQ.of(app))
    assert exported.all("up") == {("delayq_up",): 1}
    lost = cluster.masters[2]  # the first one has kombu's bindings
    away = {name for name in QUEUES if cluster.master_of(slot_of(tag_of(name, TAGS))) is lost}
    assert away

    cluster.replica_of(lost).kill()  # nobody takes over
    lost.kill()
    found = exported.all("up", "entries", "scheduled_entries")

    assert found["delayq_up",] == 0
    by_state = {key[1] for key in found if key[0] == "delayq_entries"}
    by_task = {key[1] for key in found if key[0] == "delayq_scheduled_entries"}
    assert by_state - {"celery"} == by_task == {*QUEUES} - away

    def is_cluster_up() -> bool:
        found = exported.all("up", "entries")
        return found["delayq_up",] == 1 and {*QUEUES} <= {key[1] for key in found if key[1:]}

    lost.start()
    wait_until(is_cluster_up, TIMEOUT, "it is counted again")
