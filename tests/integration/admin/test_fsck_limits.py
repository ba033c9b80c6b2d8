"""Lanes that nobody looks at, entries that only count as held, and permits without a lease."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import Bench, bench, labelled
from tests.support.drift import by_kind, look, numbers, repaired
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.each_server


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    """A limit that leases one message of each lane; "ada" has three messages, one leased."""
    store = bench(delayq_redis)
    store.define_limit(concurrency=1, fair=True)
    store.register("q")
    for name, lane in (("a", "ada"), ("b", "ada"), ("c", "bob"), ("d", "ada")):
        store.put(labelled(name, 0, lane=f"api:{lane}"))
    assert len(store.acquire("1", 1).messages) == 1
    return store


def test_nothing_is_wrong_with_what_our_scripts_leave(store: Bench, redis: Redis) -> None:
    found = snapshot(redis)

    assert len(found["{q}:held"]) == 3
    assert len(found["delayq:permits"]) == 1
    assert repaired(store) == found


def test_a_lost_lane_is_tried_at_once(store: Bench, redis: Redis) -> None:
    redis.delete("{q}:lanes", "{q}:lanes_wake")

    assert by_kind(look(store))["lost_lane"].examples == ["api:ada", "api:bob"]
    repaired(store, lost_lane=2)

    assert {*redis.zrange("{q}:lanes", 0, -1)} == {b"api:ada", b"api:bob"}
    assert redis.llen("{q}:lanes_wake") == 1
    assert len(store.acquire("2").messages) == 1


@pytest.mark.parametrize("lost", ["delayq:blocked_lanes", "delayq:permits"])
def test_a_lane_that_waits_for_a_permit_which_does_not_come_back_is_tried(
    store: Bench, redis: Redis, lost: str
) -> None:
    assert store.acquire("2", 1).messages != []  # of the other lane
    assert store.acquire("3").messages == []
    assert redis.zscore("{q}:lanes", "api:ada") == float("inf")
    redis.delete(lost, "{q}:lanes_wake")

    assert by_kind(look(store))["forgotten_lane"].examples == ["api:ada"]
    repaired(store, forgotten_lane=1)

    assert redis.zscore("{q}:lanes", "api:ada") < float("inf")
    assert redis.llen("{q}:lanes_wake") == 1


def test_a_held_entry_that_its_lane_does_not_list_is_held_again(store: Bench, redis: Redis) -> None:
    healthy = {*redis.zrange("{q}:held", 0, -1)}
    redis.zrem("{q}:held", min(healthy))

    assert by_kind(look(store, repair=True))["lost_held"].repaired == 1
    store.promote()

    assert {*redis.zrange("{q}:held", 0, -1)} == healthy


def test_what_only_counts_as_held_is_removed(store: Bench, redis: Redis) -> None:
    healthy = snapshot(redis)
    store.put(labelled("later", lane="api:ada"))
    scheduled = snapshot(redis)
    wrong = [
        f"api:ada\0{0:03d}\0{1:015d}\0gone",
        f"api:ada\0{0:03d}\0{1:015d}\0later",
        "no member",
        *(each.replace(b"api:bob", b"api:eve").decode() for each in redis.zrange("{q}:held", 2, 2)),
    ]
    redis.zadd("{q}:held", dict.fromkeys(wrong, 0))

    assert repaired(store, misplaced_held=4) == scheduled
    store.cancel("later")
    assert snapshot(redis)["{q}:held"] == healthy["{q}:held"]


def test_a_permit_of_a_message_that_is_not_leased_is_given_back(store: Bench, redis: Redis) -> None:
    assert store.acquire("2", 1).messages != []  # of the other lane
    assert store.acquire("3").messages == []  # both lanes wait for a permit
    healthy = snapshot(redis)
    # As an earlier version acknowledges.
    [(name, value)] = [
        each for each in redis.hgetall("{q}:leased_index").items() if each[0] in (b"a", b"b", b"d")
    ]
    redis.hdel("{q}:leased_index", name)
    redis.hdel("{q}:leased:me", "1:1")

    assert by_kind(look(store))["lost_permit"].examples == [name.decode()]
    assert numbers(look(store, queue="other")) == {}
    report = look(store, repair=True)

    assert by_kind(report)["lost_permit"].repaired == 1
    assert redis.zrange("delayq:freed_lanes", 0, -1) == [b"q\0api:ada"]
    assert len(healthy["delayq:permits"]) - redis.zcard("delayq:permits") == 1
    assert len(store.acquire("4").messages) == 1
    assert value


def test_many_permits_and_lanes_are_checked_in_batches(store: Bench, redis: Redis) -> None:
    redis.zadd("delayq:permits", {f"api:{n}\0q\0id-{n}\0m": 0 for n in range(1200)})
    redis.zadd("delayq:permits", {b"not ours": 0, b"\xff\0\xff\0\xff\0\xff": 0})

    assert numbers(look(store)) == {"lost_permit": 1200}
    assert by_kind(look(store, repair=True))["lost_permit"].repaired == 1200
    assert redis.zcard("delayq:permits") == 3


def test_a_full_server_gives_permits_back(store: Bench, redis: Redis) -> None:
    redis.zadd("delayq:permits", {"api:x\0q\0gone\0m": 0})
    store.fill()
    try:
        assert by_kind(look(store, repair=True))["lost_permit"].repaired == 1
    finally:
        store.make_room()


@pytest.mark.parametrize("key", ["{q}:held", "{q}:lanes", "delayq:permits", "delayq:limits"])
def test_a_key_of_a_wrong_type_is_found(store: Bench, redis: Redis, key: str) -> None:
    redis.delete(key)
    redis.set(key, "of somebody else")

    assert "wrong_type" in numbers(look(store))
