"""Which messages are leased and which are popped, and who gets them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from kombu import Connection, Queue

from celery_delayq.errors import StoreFull
from celery_delayq.store.store import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.consumer import State
from tests.apps.lease_tasks import held
from tests.integration.conftest import Through
from tests.integration.dispatch.conftest import drain, publish
from tests.support.proxy import Fault


def test_messages_of_a_queue_that_cannot_be_registered_are_leased(
    delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise StoreFull("no memory")

    got: list[Any] = []
    with Connection(delayq_redis.server.url_for("delayq+redis")) as connection:
        publish(connection, "q", 1)
        channel: Any = connection.default_channel
        with monkeypatch.context() as patch:
            patch.setattr(Store, "register", refuse)
            with pytest.raises(StoreFull):
                channel.basic_consume("q", False, got.append, "tag")

        drain(connection, until=lambda: got)

        assert [message.payload for message in got] == ["0"]
        assert sum(held(delayq_redis.client).values()) == 1


def test_a_message_that_comes_while_a_channel_of_popped_queues_closes_is_handed_out(
    delayq_redis: RedisUnderTest,
) -> None:
    got: list[Any] = []
    with Connection(delayq_redis.server.url_for("delayq+redis")) as connection:
        channel: Any = connection.channel()
        Queue("q")(channel).declare()
        channel.basic_consume("q", True, got.append, "tag")
        while channel.consumer.state is not State.BLOCKED:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.01)
        publish(connection, "q", 1)

        channel.close()

    assert [message.payload for message in got] == ["0"]
    assert delayq_redis.client.llen("q") == 0


def test_the_last_consumer_of_a_queue_says_whether_its_messages_are_leased(
    delayq_redis: RedisUnderTest,
) -> None:
    first: list[Any] = []
    second: list[Any] = []
    with Connection(delayq_redis.server.url_for("delayq+redis")) as connection:
        publish(connection, "q", 1)
        channel: Any = connection.default_channel
        channel.basic_consume("q", False, first.append, "first")
        channel.basic_consume("q", True, second.append, "second")

        drain(connection, until=lambda: first or second)

        assert (len(first), len(second), held(delayq_redis.client)) == (0, 1, {})


def test_kombu_does_not_repeat_a_publish_that_a_full_redis_refuses(through: Through) -> None:
    proxy, delayq = through()
    full = "OOM command not allowed when used memory > 'maxmemory'."
    refused = [proxy.on("schedule/push_ready", Fault.REFUSE, answer=full) for _ in range(2)]

    with pytest.raises(StoreFull):
        delayq.app.send_task("t", retry=True)

    assert [each.fired.is_set() for each in refused] == [True, False]
