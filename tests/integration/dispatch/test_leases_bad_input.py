"""Acknowledgements that are not ours to give, worker ids in use: nothing is done, all is logged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue
from redis import Redis

from celery_delayq.dispatch.acks import LeaseTally
from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.settings import Settings
from celery_delayq.testing import wait_until
from tests.integration.dispatch.conftest import drain, publish
from tests.support import TIMEOUT
from tests.support.keyspace import snapshot


@pytest.fixture
def channel(connection: Connection) -> Iterator[Any]:
    channel = connection.channel()
    # A keeper belongs to the process: others may have counted before.
    for each in fields(LeaseTally):
        setattr(channel.deliveries.keeper.tally, each.name, 0)
    yield channel
    channel.close()


def get(channel: Any) -> Any:
    queue = Queue("a")(channel)
    queue.declare()
    return queue.get()


def test_an_ack_for_what_is_not_held_here_does_nothing_and_is_counted(
    channel: Any, redis: Redis
) -> None:
    publish(channel.connection.client, "a", 2)
    message = get(channel)
    channel.basic_reject(message.delivery_tag, requeue=True)
    # Another process holds the other one.
    channel.store.leases.acquire("a", "host.1.0123456789ab", 30, "1", 1)
    before = snapshot(redis)
    assert redis.llen("a") == 1

    own = f"{channel.deliveries.keeper.worker_id}:999:1"
    for tag in ("host.1.0123456789ab:1:1", "0123456789abcdef", own, message.delivery_tag):
        channel.basic_ack(tag)
    channel.basic_reject(message.delivery_tag, requeue=False)
    channel.basic_reject(message.delivery_tag, requeue=True)
    channel.deliveries.keeper.acks.drain(channel.store)

    assert snapshot(redis) == before
    assert channel.deliveries.keeper.tally == LeaseTally(foreign_acks=6)


@pytest.mark.parametrize("tag", ["host.1.0123456789ab:1:1", "{own}:999:1"])
def test_an_ack_for_a_foreign_tag_makes_no_room_in_the_prefetch(tag: str, channel: Any) -> None:
    publish(channel.connection.client, "a", 3)
    got: list[Any] = []
    with Consumer(channel, [Queue("a")], on_message=got.append, prefetch_count=1):
        channel.connection.client.drain_events(timeout=TIMEOUT)
        channel.basic_ack(tag.format(own=channel.deliveries.keeper.worker_id))
        drain(channel.connection.client)

    assert [message.payload for message in got] == ["0"]


def test_an_ack_that_comes_after_the_message_was_given_to_others_is_counted(
    channel: Any, redis: Redis
) -> None:
    publish(channel.connection.client, "a", 1)
    message = get(channel)
    keeper = channel.deliveries.keeper
    channel.store.leases.requeue("a", keeper.worker_id, [keeper.field(message.delivery_tag)])
    message.ack()
    keeper.acks.drain(channel.store)

    wait_until(lambda: keeper.tally == LeaseTally(late_acks=1), TIMEOUT, "it is counted")
    assert redis.llen("a") == 1


def test_an_worker_id_in_use_is_not_taken_a_second_time(channel: Any, redis: Redis) -> None:
    """Also what one who has died may still hold is not mixed up with what is ours."""
    store = channel.new_store()
    names = iter(["used", "used", "new"])
    first = LeaseKeeper(store, store.leases.claim, Settings(), lambda: next(names))
    second = LeaseKeeper(store, store.leases.claim, Settings(), lambda: next(names))

    assert (first.worker_id, second.worker_id) == ("used", "new")
    alive = {key.decode() for key in redis.keys("delayq:worker_id:*")}
    assert {"delayq:worker_id:used", "delayq:worker_id:new"} <= alive
    for key in alive:
        assert 80_000 < redis.pttl(key) <= 90_000
    store.client.connection_pool.disconnect()
