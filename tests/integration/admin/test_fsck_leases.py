"""Leases and counts that were put out of step, found and repaired."""

from __future__ import annotations

from hashlib import sha1

import pytest
from redis import Redis

from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.repair import RepairStore
from celery_delayq.store.schedule import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.drift import FAR, SETTINGS, lease, look, repaired
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.each_server


@pytest.fixture
def redis(delayq_redis: RedisUnderTest) -> Redis:
    return delayq_redis.client


@pytest.fixture
def store(redis: Redis) -> Store:
    return Store(redis, Keys(), Layout())


# -- leases


def test_a_process_that_holds_messages_without_a_lease_gets_one(store: Store, redis: Redis) -> None:
    lease(store, "x", "y")
    redis.delete("{q}:leases", "delayq:lease_ends")
    now = store.now_ms()

    state = repaired(store, unleased=1)

    ends = state["{q}:leases"][b"me"]
    assert now + 30_000 <= ends <= store.now_ms() + 30_000
    assert state["delayq:lease_ends"] == {b"q": ends}
    assert len(state["{q}:leased:me"]) == 2


def test_a_new_lease_does_not_include_the_time_in_which_nobody_looked(
    store: Store, redis: Redis
) -> None:
    lease(store, "x")
    seen = store.now_ms() - 3_600_000
    redis.hset("delayq:clock", mapping={"seen": seen, "stood": 0})
    redis.delete("{q}:leases", "delayq:lease_ends")

    look(store, repair=True)

    assert (
        redis.zscore("{q}:leases", "me") == redis.zscore("delayq:lease_ends", "q") == seen + 30_000
    )
    assert store.next_queue(SETTINGS.lease / 3).reclaim_expired == ()


@pytest.mark.parametrize("lease_ends", [{}, {"q": float(2 * FAR)}])
def test_leases_that_nobody_would_reclaim_are_watched_again(
    store: Store, redis: Redis, lease_ends: dict[str, float]
) -> None:
    lease(store, "x")
    healthy = snapshot(redis)
    redis.delete("delayq:lease_ends")
    if lease_ends:
        redis.zadd("delayq:lease_ends", lease_ends)

    assert repaired(store, unwatched=1) == healthy


def test_what_was_repaired_is_reclaimed(store: Store, redis: Redis) -> None:
    lease(store, "x", "y", "z")
    redis.delete("{q}:leases", "delayq:lease_ends", "{q}:wake")

    look(store, repair=True)
    redis.zadd("{q}:leases", {"me": 5})

    assert store.leases.reclaim_expired("q", Layout(), "me", 100, 5).requeued == 3
    assert redis.lrange("q", 0, -1) == [b"z", b"y", b"x"]


# -- deliveries


def count(redis: Redis, *messages: bytes) -> None:
    """Count a delivery of each of these."""
    for message in messages:
        redis.hset("{q}:deliveries", sha1(message).hexdigest(), "1 0 0")


def test_counts_of_messages_that_are_gone_are_removed(store: Store, redis: Redis) -> None:
    lease(store, "held")
    call = store.ready_call("q")
    call.add(0, b"ready")
    call.add(9, b"urgent")
    store.run(call)
    redis.lpush("{q}:quarantined", "0\nquarantined")
    count(redis, b"held", b"ready", b"urgent", b"quarantined")
    healthy = snapshot(redis)
    count(redis, b"popped", b"purged")

    RepairStore(store).forget_counts("q", Layout())

    assert snapshot(redis) == healthy
