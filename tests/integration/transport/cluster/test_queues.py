"""What kombu does with queues of two hash tags, and queues whose names have braces."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from celery_delayq import DelayQ
from celery_delayq.model.cluster_tags import tag_of
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT
from tests.support.cluster import TAGS, Cluster
from tests.support.keyspace import is_answer, look

pytestmark = pytest.mark.full

ORDERS = Exchange("orders", "topic")
#: Queues at two masters; the bindings are at the third.
QUEUES = (Queue("orders-east", ORDERS, "order.*"), Queue("orders-west", ORDERS, "#.paid"))

#: Redis goes by the first braces of a key. The last name is the hash tag of other queues.
BRACED = ("{x}}{{0}", "{}", "}{", f"{{{TAGS[3]}}}")


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    return shared_cluster


@pytest.fixture
def orders(make_app: MakeApp) -> Celery:
    """An app with both queues."""
    return make_app(task_queues=QUEUES, task_default_queue=QUEUES[0].name)


def stored(cluster: Cluster) -> dict[bytes, Any]:
    """Return all keys of all masters with their values, but for replies to repeated calls."""
    found: dict[bytes, Any] = {}
    for master in cluster.masters:
        with master.client() as client:
            found |= look(client, "*")
    return {key: value for key, value in found.items() if not is_answer(key)}


def test_queues_of_two_tags_are_counted_purged_and_deleted(
    orders: Celery, cluster: Cluster
) -> None:
    with orders.connection_for_write() as connection:
        channel = connection.default_channel
        before = stored(cluster)
        queues = [queue(channel) for queue in QUEUES]
        for queue in queues:
            queue.declare()

        def send() -> None:
            """Send a ready and a delayed task, each of them to both queues."""
            for options in ({}, {"countdown": 600}):
                orders.send_task("tasks.add", (1, 2), routing_key="order.paid", **options)

        def counts(**options: Any) -> list[int]:
            return [queue.queue_declare(**options).message_count for queue in queues]

        send()
        assert counts(passive=True) == [2, 2]
        assert DelayQ.of(orders).count() == 2

        assert orders.control.purge() == 4
        assert counts() == [0, 0]
        assert DelayQ.of(orders).count() == 0

        send()
        assert counts(passive=True) == [2, 2]
        for queue in queues:
            queue.delete()

    assert stored(cluster) == before


def test_delayed_tasks_run_in_queues_with_braces_in_their_names(scene: ClusterScene) -> None:
    delayq, ids = scene.delayq, {f"in {queue}": queue for queue in BRACED}
    assert tag_of(BRACED[-1], TAGS) != TAGS[3]
    for id, queue in ids.items():
        scene.send("plain", id=id, countdown=0.5, queue=queue)

    # No worker promotes them yet.
    assert [delayq.count(queue=queue) for queue in BRACED] == [1, 1, 1, 1]
    known = [delayq.get(id) for id in ids]
    assert {each.id: each.queue for each in known if each} == ids
    scene.start(queues=BRACED)
    for id in ids:
        scene.wait_state(id)

    assert dict(scene.runs("id", "queue")) == ids

    def left() -> dict[str, int]:
        found = delayq.stats().queues
        sizes = {each.name: each.scheduled + each.ready + each.leased for each in found}
        return {name: size for name, size in sizes.items() if size}

    wait_until(lambda: not left(), TIMEOUT, lambda: f"nothing to be left: {left()}")
    assert len(scene.runs("id")) == len(ids)
