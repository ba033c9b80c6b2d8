"""What cannot be the right Redis Cluster is a clear error; what may pass is waited for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq.embedded.cluster import ask
from celery_delayq.embedded.ports import free_port
from celery_delayq.errors import ConfigError, UnsupportedServer
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.integration.transport.cluster.conftest import ClusterScene, Shard
from tests.support import TIMEOUT
from tests.support.cluster import QUEUES, TAGS, Cluster

pytestmark = pytest.mark.full

ONCE = {"max_retries": 0}


def send(app: Any, **options: Any) -> Any:
    """Send a task that is not tried again."""
    return app.tasks["tasks.add"].apply_async((1, 2), countdown=9, retry_policy=ONCE, **options)


def test_a_single_redis_is_refused(make_app: MakeApp, delayq_redis: RedisUnderTest) -> None:
    app = make_app(broker=delayq_redis.server.url_for("delayq+rediscluster"))

    with pytest.raises(ConfigError, match=r"no part of a cluster: use a delayq\+redis:// URL"):
        send(app)


def test_a_node_is_refused_as_a_single_redis(make_app: MakeApp, cluster: Cluster) -> None:
    app = make_app(broker=cluster.masters[1].url_for("delayq+redis"))

    with pytest.raises(UnsupportedServer, match=r"use a delayq\+rediscluster:// URL"):
        send(app)


def test_another_number_of_tags_is_refused(make_app: MakeApp, cluster: Cluster) -> None:
    url = cluster.masters[0].url_for("delayq+rediscluster")
    send(make_app(broker=url))
    other = make_app(broker=url, broker_transport_options={"delayq": {"cluster_tags": 6}})

    with pytest.raises(ConfigError, match=r"6 hash tags: this cluster has 12.*cluster_tags to 12"):
        send(other)


def test_a_prefix_with_a_brace_is_refused(make_app: MakeApp, cluster: Cluster) -> None:
    url = cluster.masters[0].url_for("delayq+rediscluster")
    app = make_app(broker=url, broker_transport_options={"global_keyprefix": "{shop}"})

    with pytest.raises(ConfigError, match=r"expected one without '\{'"):
        send(app)


def test_a_replica_among_the_urls_leads_to_the_masters(make_app: MakeApp, cluster: Cluster) -> None:
    app = make_app(broker=cluster.replicas[2].url_for("delayq+rediscluster"))

    send(app)

    assert app._delayq.count() == 1


def test_a_slot_without_a_node_is_said_and_waited_for(scene: ClusterScene) -> None:
    shard, other = scene.shard(7), scene.shard(2)
    worker = scene.work(2, 7)
    ask(shard.master, "DELSLOTS", shard.slot)
    worker.wait_log(f"shard of {shard.tag} is away, its queues wait")

    with pytest.raises(OperationalError, match=rf"slot {shard.slot}\b"):
        scene.send("plain", id="lost", queue=shard.queue, retry_policy=ONCE)
    scene.send("plain", id="a", queue=other.queue)
    scene.wait_state("a")
    ask(shard.master, "ADDSLOTS", shard.slot)

    worker.wait_log(f"shard of {shard.tag} is back")
    scene.send("plain", id="b", queue=shard.queue)
    scene.wait_state("b")


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port at which packets are dropped: nobody takes a connection, and no more may wait."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = int(listener.getsockname()[1])
        with suppress(TimeoutError):
            while True:
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 0.2))
        yield port


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_an_announced_address_that_cannot_be_reached_is_named(
    make_app: MakeApp, cluster: Cluster, deaf: int, silent: bool
) -> None:
    away = f"127.0.0.1:{deaf if silent else free_port()}"
    for each in cluster.masters:
        with each.client() as client:
            client.config_set("cluster-announce-port", int(away.rpartition(":")[2]))
    seed = cluster.masters[0]

    def slots() -> Any:
        return ask(seed, "SLOTS")

    def announces() -> bool:
        return all(master[1] == int(away.rpartition(":")[2]) for _, _, master, *_ in slots())

    wait_until(announces, TIMEOUT, "the announced port")
    app = make_app(
        broker=seed.url_for("delayq+rediscluster"),
        broker_transport_options={"socket_connect_timeout": 1},
    )

    with pytest.raises(OperationalError, match=rf"{away}.*the Redis Cluster announces"):
        send(app)


def test_a_password_on_some_nodes_only_names_the_node(make_app: MakeApp, cluster: Cluster) -> None:
    for each in cluster.masters[1:]:
        with each.client() as client:
            client.config_set("requirepass", "s3cret")
    seed = cluster.masters[0]
    app = make_app(broker=seed.url_for("delayq+rediscluster"))

    with pytest.raises(OperationalError, match=r"(?i)127.0.0.1:\d+: .*authenticat"):
        send(app, queue=QUEUES[TAGS[11]])


def test_a_node_that_gets_a_password_holds_up_its_own_queues_only(scene: ClusterScene) -> None:
    lost, other = scene.shard(11), scene.shard(0)
    worker = scene.work(0, 11)

    with lost.master.client() as client:
        refuse_login(scene, lost, client)
        worker.wait_log(f"shard of {lost.tag} is away, its queues wait: {node_of(lost)}: ")
        worker.wait_log(f"dispatcher for the shard of {lost.tag} waits: {node_of(lost)}: ")
        scene.send("plain", id="other", countdown=0.1, queue=other.queue)
        scene.wait_state("other")
        client.config_set("requirepass", "")

    worker.wait_log(f"shard of {lost.tag} is back")
    scene.send("plain", id="after", countdown=0.1, queue=lost.queue)
    scene.wait_state("after")
    assert "Connection to broker lost" not in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_ends_in_order_while_a_node_wants_a_password(scene: ClusterScene) -> None:
    lost = scene.shard(11)
    worker = scene.work(0, 11)
    with lost.master.client() as client:
        refuse_login(scene, lost, client)
    worker.wait_log(f"shard of {lost.tag} is away, its queues wait")

    worker.stop()

    assert "Traceback" not in worker.log


def test_a_worker_that_starts_names_the_node_that_wants_a_password(scene: ClusterScene) -> None:
    shard = scene.shard(11)
    with shard.master.client() as client:
        client.config_set("requirepass", "s3cret")
        worker = scene.work(0, 11, wait_ready=False)
        worker.wait_log(f"its queues wait: {node_of(shard)}: .*(?i:authenticat)")
        client.config_set("requirepass", "")

    worker.wait_ready()
    scene.send("plain", id="a", countdown=0.1, queue=shard.queue)
    scene.wait_state("a")


def refuse_login(scene: ClusterScene, shard: Shard, client: Redis) -> None:
    """Have the master of a shard want a password, after a task of its queue has run."""
    scene.send("plain", id="before", queue=shard.queue)
    scene.wait_state("before")
    client.config_set("requirepass", "s3cret")
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)


def node_of(shard: Shard) -> str:
    """Return how log lines name the master of a shard."""
    return f"{shard.master.host}:{shard.master.port}"
