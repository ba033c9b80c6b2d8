"""The stores of a Redis Cluster: real masters and replicas, moved slots and lost nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError
from redis.retry import Retry

from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import BrokerUnavailable, ConfigError
from celery_delayq.model.cluster_tags import slot_of
from celery_delayq.settings import Settings
from celery_delayq.store.cluster.nodes import Nodes
from celery_delayq.store.cluster.slots import REREAD_SECONDS, Address, SlotRange
from celery_delayq.store.cluster.stores import check_number, cluster_stores, number_keys
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import entry
from tests.support import TIMEOUT
from tests.support.cluster import QUEUES, TAGS, Cluster

pytestmark = pytest.mark.full


@pytest.fixture
def cluster(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> Cluster:
    """Return three masters, each with a replica."""
    return Cluster.start(delayq_redis_factory)


@pytest.fixture
def stores(cluster: Cluster) -> Iterator[Stores]:
    found = connected(cluster)
    yield found
    found.disconnect()


def connected(cluster: Cluster) -> Stores:
    """Connect without redis-py's own retries."""
    nodes = cluster.nodes(retry=Retry(NoBackoff(), 0))
    check_number(nodes, Keys("shop:"), len(TAGS))
    return cluster_stores(nodes, Keys("shop:"), Layout(), number=len(TAGS))


def comes_back(store: Store, queue: str) -> None:
    """Wait until a lost shard answers again."""

    def answers() -> bool:
        try:
            return store.scheduled(queue) >= 0
        except BrokerUnavailable:
            return False

    wait_until(answers, what="the shard to answer")


def test_a_task_goes_its_whole_way_on_the_master_of_its_tag(
    cluster: Cluster, stores: Stores
) -> None:
    for tag, queue in QUEUES.items():
        store = stores.of(queue)
        store.register(queue)
        store.schedule(queue, entry("a", 5, relative=True))
        wait_until(partial(_promotes_one, store, queue), what="the entry to be due")
        [(field, message, _)] = store.leases.acquire(queue, "me", 30, "1", 5).messages
        assert message == b'{"id": "a"}'
        store.run(store.leases.ack_call(queue, "me", {field: b""}))

        with cluster.master_of(slot_of(tag)).client() as client:
            assert client.hget(store.keys.queues, queue) is not None
    names = {name.decode() for each in cluster.masters for name in _names(each)}
    tagged = {name for name in names if name.startswith("shop:{dq")}
    assert names - tagged == {*number_keys(Keys("shop:"))}


def _promotes_one(store: Store, queue: str) -> bool:
    return store.promote(queue, Layout(), 10).moved == 1


def _names(server: EmbeddedRedis) -> list[bytes]:
    with server.client() as client:
        return list(client.scan_iter())


def test_a_dispatcher_listens_at_the_master_of_its_tag_and_promotes(
    cluster: Cluster, stores: Stores
) -> None:
    queue = QUEUES[TAGS[7]]
    given = stores.of(queue)
    thread = Dispatcher(connected(cluster).of(queue), Settings.from_options({}))
    thread.start()
    try:
        wait_until(lambda: given.client.pubsub_numsub(given.keys.fleet)[0][1], what="listening")
        given.register(queue)
        given.schedule(queue, entry("a", 100, relative=True))

        found = given.client.brpop(given.keys.ready(queue, 0, Layout()), timeout=TIMEOUT)

        assert found is not None
        assert found[1] == b'{"id": "a"}'
    finally:
        thread.stop()
        thread.join()


def test_calls_wait_while_a_slot_moves_and_go_on_at_its_new_master(
    cluster: Cluster, stores: Stores
) -> None:
    tag, queue = TAGS[1], QUEUES[TAGS[1]]
    store = stores.of(queue)
    store.schedule(queue, entry("a", 60_000, relative=True))
    target = cluster.masters[2]
    cluster.begin_move(slot_of(tag), target)
    with pytest.raises(BrokerUnavailable, match=rf"slot {slot_of(tag)} is not served by"):
        store.schedule(queue, entry("b", 60_000, relative=True))
    cluster.finish_move(slot_of(tag), target)
    comes_back(store, queue)

    store.schedule(queue, entry("b", 60_000, relative=True))

    assert store.scheduled(queue) == 2
    with target.client() as client:
        assert client.zcard(store.keys.queue(queue).due) == 2


def test_a_killed_master_holds_up_its_own_queues_only(cluster: Cluster, stores: Stores) -> None:
    tag, queue, other = TAGS[0], QUEUES[TAGS[0]], QUEUES[TAGS[11]]
    master = cluster.master_of(slot_of(tag))
    call = stores.of(queue).schedule_call(queue)
    call.add(entry("a", 60_000, relative=True))
    stores.of(queue).run_replicated(call, replicas=1, seconds=5.0)
    master.kill()

    with pytest.raises(BrokerUnavailable):
        stores.of(queue).scheduled(queue)
    stores.of(other).schedule(other, entry("b", 60_000, relative=True))
    comes_back(stores.of(queue), queue)

    assert stores.of(queue).scheduled(queue) == 1
    with cluster.replica_of(master).client() as client:
        assert client.role()[0] == b"master"


def test_a_node_that_refuses_writes_is_left_for_the_master(cluster: Cluster) -> None:
    """A replica answers READONLY to a script on a connection that may read from it."""
    tag, queue = TAGS[5], QUEUES[TAGS[5]]
    slot = slot_of(tag)
    master = cluster.master_of(slot)
    replica = _address(cluster.replica_of(master))
    nodes = Nodes([replica], retry=Retry(NoBackoff(), 0))
    nodes.table.ranges, nodes.table.is_stale = [SlotRange(slot, slot, replica)], False
    refusal = rf"slot {slot} is not served by {replica.host}:{replica.port}: .* read only replica"

    with nodes.briefly(slot) as client:
        client.readonly()
        store = Store(client, Keys("shop:").of_tag(tag), Layout())
        with pytest.raises(BrokerUnavailable, match=refusal) as raised:
            store.schedule(queue, entry("a", 60_000, relative=True))
        assert isinstance(raised.value, ConnectionError)
        assert nodes.table.is_stale

        store.schedule(queue, entry("b", 60_000, relative=True))
        assert store.scheduled(queue) == 1
    assert nodes.table.master_of(slot) == _address(master)
    assert not nodes.table.is_stale


def _address(server: EmbeddedRedis) -> Address:
    return Address(server.host, server.port)


def test_a_lost_shard_does_not_have_the_slots_read_for_each_that_tries(
    cluster: Cluster, stores: Stores
) -> None:
    tag, other = TAGS[0], TAGS[11]
    lost = cluster.master_of(slot_of(tag))
    for each in (lost, cluster.replica_of(lost)):
        each.kill()
    others = [each for each in (*cluster.masters, *cluster.replicas) if each.running]
    before = sum(map(_times_slots_were_read, others))

    began = time.monotonic()
    for _ in range(100):
        with (
            pytest.raises(ConnectionError),
            # A new view and a new connection, as each thread of a worker has.
            cluster.nodes(retry=Retry(NoBackoff(), 1)).briefly(slot_of(tag)) as client,
        ):
            client.ping()
    seconds = time.monotonic() - began

    # When it is seen first, and then each `REREAD_SECONDS`.
    assert 1 <= sum(map(_times_slots_were_read, others)) - before <= 1 + seconds / REREAD_SECONDS
    assert stores.of(QUEUES[other]).scheduled(QUEUES[other]) == 0


def _times_slots_were_read(server: EmbeddedRedis) -> int:
    with server.client() as client:
        found = client.info("commandstats").get("cmdstat_cluster|slots", {"calls": 0})
    return int(found["calls"])


def test_another_number_of_tags_is_refused(cluster: Cluster, stores: Stores) -> None:
    with pytest.raises(ConfigError, match="6 hash tags: this cluster has 12"):
        check_number(cluster.nodes(), Keys("shop:"), 6)


def test_a_slot_without_a_node_is_said(cluster: Cluster, stores: Stores) -> None:
    tag = TAGS[4]
    with cluster.master_of(slot_of(tag)).client() as client:
        client.execute_command("CLUSTER", "DELSLOTS", slot_of(tag))

    with pytest.raises(BrokerUnavailable, match=rf"slot {slot_of(tag)}\b"):
        stores.of(QUEUES[tag]).scheduled(QUEUES[tag])

    assert stores.of(QUEUES[TAGS[9]]).scheduled(QUEUES[TAGS[9]]) == 0


def test_a_single_redis_is_refused(delayq_redis: RedisUnderTest) -> None:
    nodes = Nodes([Address("127.0.0.1", delayq_redis.port)])
    with pytest.raises(ConfigError, match=r"no part of a cluster: use a delayq\+redis:// URL"):
        check_number(nodes, Keys(), 12)


def test_nodes_that_are_away_are_named() -> None:
    nodes = Nodes([Address("127.0.0.1", 1)], retry=Retry(NoBackoff(), 0))
    with pytest.raises(BrokerUnavailable, match=r"no node of the Redis Cluster answers.*:1: "):
        check_number(nodes, Keys(), 12)
