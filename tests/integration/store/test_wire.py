"""One connection: what is sent before replies are read, refused or lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from celery_delayq.errors import BrokerUnavailable, CommandRefused
from celery_delayq.store.scripting.calls import pack
from celery_delayq.store.scripting.wire import Wire
from celery_delayq.testing.fixtures import RedisUnderTest


@pytest.fixture
def client(delayq_redis: RedisUnderTest) -> Iterator[Redis]:
    with Redis(port=delayq_redis.port) as client:
        yield client


@pytest.fixture
def wire(client: Redis) -> Iterator[Wire]:
    wire = Wire(client.connection_pool)
    yield wire
    wire.close()


def test_replies_are_read_in_the_order_of_the_commands(wire: Wire) -> None:
    wire.send(pack([("SET", "a", 1), ("LPUSH", "a", 1)]), 2)
    wire.send(pack([("GET", "a")]))

    refused = wire.read_all()

    assert wire.unread == 0
    assert isinstance(refused[1], CommandRefused)
    assert [refused[0], refused[2]] == [b"OK", b"1"]


def test_a_refusal_leaves_the_connection_in_step(wire: Wire) -> None:
    wire.send(pack([("NOSUCH",), ("ECHO", "next")]), 2)

    with pytest.raises(CommandRefused, match="NOSUCH"):
        wire.read()

    assert (wire.read(), wire.unread) == (b"next", 0)


@pytest.mark.parametrize("unread", [0, 1])
def test_a_connection_goes_back_to_its_pool_unless_a_reply_is_unread(
    wire: Wire, client: Redis, unread: int
) -> None:
    wire.send(pack([("CLIENT", "ID")]))
    before = wire.read()
    if unread:
        wire.send(pack([("ECHO", "stale")]))

    wire.close()

    assert (client.client_id() == before) == (not unread)


@pytest.mark.parametrize("number", [1, 2])
def test_a_lost_connection_loses_its_replies_and_the_next_command_has_another_one(
    wire: Wire, delayq_redis: RedisUnderTest, number: int
) -> None:
    wire.send(pack([("CLIENT", "ID")]))
    id = wire.read()
    wire.send(pack([("BLPOP", "nothing", 0)] * number), number)
    delayq_redis.client.client_kill_filter(_id=str(id))

    with pytest.raises(BrokerUnavailable):
        wire.read()
    with pytest.raises(BrokerUnavailable, match="and with it the replies"):
        wire.read()

    wire.send(pack([("ECHO", "here")]))
    assert (wire.read(), wire.unread) == (b"here", 0)
