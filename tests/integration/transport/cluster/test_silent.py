"""A shard that stands still: a worker without ``socket_timeout`` goes on with the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from tests.apps import shared_locks
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.integration.transport.cluster.test_away import have_replies_in
from tests.support import TIMEOUT
from tests.support.cluster import Cluster
from tests.support.stopped import stopped

pytestmark = pytest.mark.full

#: Stores of a master each.
NUMBERS = (1, 6, 11)


def gets_events(client: Redis) -> bool:
    """Return whether the worker sends its events to this node."""
    return any(line["cmd"] == "publish" for line in client.client_list())


def gives_commands(client: Redis) -> bool:
    """Return whether the worker has subscribed to remote control at this node."""
    return bool(client.pubsub_numpat())


def node_that(cluster: Cluster, uses: Callable[[Redis], bool]) -> EmbeddedRedis:
    """Return the master that the worker uses so."""

    def found() -> list[EmbeddedRedis]:
        masters = []
        for each in cluster.masters:
            with each.client() as client:
                if uses(client):
                    masters.append(each)
        return masters

    [node] = wait_until(found, TIMEOUT, uses.__name__)
    return node


def wait_heartbeat(client: Redis) -> None:
    """Wait for an event of the worker."""
    with client.pubsub(ignore_subscribe_messages=True) as events:
        events.psubscribe("*celeryev*")
        wait_until(
            lambda: b"heartbeat" in ((events.get_message(timeout=0.1) or {}).get("data") or b""),
            TIMEOUT,
            "a heartbeat",
        )


@pytest.mark.parametrize(
    ("pool", "uses"),
    [
        ("prefork", gets_events),
        ("prefork", gives_commands),
        ("gevent", gets_events),
        ("eventlet", gives_commands),
    ],
)
def test_a_silent_shard_holds_up_its_own_queues_only(
    scene: ClusterScene, pool: str, uses: Callable[[Redis], bool]
) -> None:
    watched = pool if pool in shared_locks.LOCKS else None
    worker = scene.work(
        *NUMBERS, pool=pool, concurrency=2, conf={"watched": watched}, delayq={"block_timeout": 0.5}
    )
    node = node_that(scene.cluster, uses)
    shards = [scene.shard(number) for number in NUMBERS]
    [lost] = [each for each in shards if each.master is node]
    others = [each for each in shards if each is not lost]
    have_replies_in(scene.app.control.mailbox, others[0].tag)
    for number in range(4):
        scene.send("plain", id=f"lost-{number}", countdown=3, queue=lost.queue)

    with ExitStack() as stack:
        for each in (node, scene.cluster.replica_of(node)):
            stack.enter_context(stopped(each.pid))
        until = time.monotonic() + 4  # two heartbeats
        number = 0
        while time.monotonic() < until:
            number += 1
            scene.send("plain", id=f"other-{number}", queue=others[number % 2].queue)
            scene.wait_state(f"other-{number}")
        with others[0].master.client() as client:
            wait_heartbeat(client)
        inspect = scene.app.control.inspect(timeout=2)
        wait_until(
            lambda: inspect.ping() == {worker.hostname: {"ok": "pong"}}, TIMEOUT, "an answer"
        )
        worker.wait_log(f"shard of {lost.tag} is away, its queues wait: no reply for")

    worker.wait_log(f"shard of {lost.tag} is back")
    for number in range(4):
        scene.wait_state(f"lost-{number}")
    assert "Connection to broker lost" not in worker.log
    assert shared_locks.FOUND not in worker.log
