"""A server refuses writes for a while, as a master without its replicas does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from celery_delayq.dispatch.pending_changes import PendingChanges
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import BrokerUnavailable
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.ending_tasks import Desk
from tests.support.scene import StartWorker

pytestmark = pytest.mark.each_server


def test_a_dead_letter_waits_until_a_master_has_its_replicas_again(
    delayq_redis_factory: Callable[[], EmbeddedRedis],
) -> None:
    with delayq_redis_factory().client() as client:
        store = Store(client, Keys(), Layout())
        changes = PendingChanges(lambda: None)
        changes.add(
            lambda store: store.dead_letters.add("q", "id", "failed", b"{}"), "its message is lost"
        )
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            store.dead_letters.add("q", "other", "failed", b"{}")

        for _ in range(20):
            with pytest.raises(BrokerUnavailable, match="NOREPLICAS"):
                changes.flush(store)
        client.config_set("min-replicas-to-write", 0)
        changes.flush(store)

        assert [dead_letter.id for dead_letter in store.dead_letters.all("q")] == ["id"]


# -- what happens to a running worker


def demoted(redis: Redis) -> Callable[[], object]:
    redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    return lambda: redis.execute_command("REPLICAOF", "NO", "ONE")


def without_replicas(redis: Redis) -> Callable[[], object]:
    redis.config_set("min-replicas-to-write", 1)
    return lambda: redis.config_set("min-replicas-to-write", 0)


def full(redis: Redis) -> Callable[[], object]:
    redis.config_set("maxmemory", 1)
    return lambda: redis.config_set("maxmemory", 0)


def denying(redis: Redis) -> Callable[[], object]:
    redis.execute_command("ACL", "SETUSER", "default", "resetkeys", "~none")
    return lambda: redis.execute_command("ACL", "SETUSER", "default", "allkeys")


def locked(redis: Redis) -> Callable[[], object]:
    redis.config_set("requirepass", "s3cret")
    return lambda: redis.config_set("requirepass", "")


def crowded(redis: Redis) -> Callable[[], object]:
    most = redis.config_get("maxclients")["maxclients"]
    redis.config_set("maxclients", 1)
    return lambda: redis.config_set("maxclients", most)


def busy(redis: Redis) -> Callable[[], object]:
    redis.config_set("lua-time-limit", 50)
    other = redis.connection_pool.make_connection()
    other.send_command("EVAL", "while true do end", 0)

    def end() -> None:
        redis.execute_command("SCRIPT", "KILL")
        other.disconnect()

    return end


CONDITIONS = [demoted, without_replicas, full, denying, locked, crowded, busy]


@pytest.mark.full
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
@pytest.mark.parametrize("lost", [False, True], ids=["connected", "connections lost"])
def test_a_worker_outlives_each_condition(
    pool: str,
    lost: bool,
    delayq_redis_factory: Callable[[], EmbeddedRedis],
    delayq_worker: StartWorker,
    delayq_redis: RedisUnderTest,
) -> None:
    """It goes on within seconds, and ran nothing twice."""
    server = delayq_redis_factory()
    desk = Desk(delayq_worker, server, delayq_redis.url)
    worker = desk.worker(pool, lease=10)
    ids = []
    for condition in CONDITIONS:
        ids += desk.send(3, countdown=2.0)
        ids += desk.send(3)
        end = condition(desk.redis)
        try:
            if lost and condition is not busy:  # which allows no other command
                for kind in ("normal", "pubsub"):
                    desk.redis.client_kill_filter(_type=kind, skipme=True)
            time.sleep(3)  # for which it lasts
        finally:
            end()
        desk.wait_finished(ids)
        assert worker.returncode is None, (condition.__name__, worker.log[-3000:])
    desk.wait_empty()
    assert "Unrecoverable error" not in worker.log
    desk.close()
