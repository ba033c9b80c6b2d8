"""Settling a message sends changes to Redis; some of them are interrupted."""

from __future__ import annotations

import json
import select
import threading
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from celery_delayq.errors import BrokerUnavailable
from celery_delayq.store.dead_letters import DeadLetterStore
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport import deliveries, fair_share
from celery_delayq.transport.consumer import LAST_REPLY_SECONDS, State
from tests.apps.lease_tasks import held
from tests.integration.conftest import Through
from tests.integration.dispatch.conftest import publish
from tests.support import TIMEOUT
from tests.support.proxy import Fault


def body_of(message: bytes) -> str:
    return b64decode(json.loads(message)["body"]).decode()


class Killed(BaseException):
    """Ends a greenlet, as GreenletExit does."""


@pytest.mark.parametrize("while_it", ["waits", "logs"])
def test_whoever_is_killed_while_it_makes_a_dead_letter_leaves_it_to_the_keeper(
    delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch, while_it: str
) -> None:
    add = DeadLetterStore.add
    calls: list[str] = []

    def be_killed(*_: Any) -> None:
        raise Killed

    def fail_first(self: DeadLetterStore, queue: str, id: str, *args: Any) -> None:
        calls.append(id)
        if len(calls) == 1:
            raise Killed if while_it == "waits" else BrokerUnavailable
        add(self, queue, id, *args)

    monkeypatch.setattr(DeadLetterStore, "add", fail_first)
    monkeypatch.setattr(deliveries.logger, "warning", be_killed)
    with Connection(delayq_redis.server.url_for("delayq+redis")) as connection:
        channel: Any = connection.channel()

        with pytest.raises(Killed):
            channel.deliveries.add_dead_letter_copy("tag", "q", "id", "failed", b"{}", b"")
        wait_until(lambda: list(channel.store.dead_letters.all("q")), what="the keeper makes it")

        assert [dead_letter.id for dead_letter in channel.store.dead_letters.all("q")] == ["id"]


def test_a_channel_settles_all_where_it_closes_as_its_connection_is_lost(
    delayq_redis: RedisUnderTest, through: Through
) -> None:
    """A request is under way, with an acknowledgement; nobody has read that the server has gone."""
    proxy, delayq = through()
    with delayq.app.connection_for_read() as connection:
        publish(connection, "q", 3)
        channel: Any = connection.default_channel
        got: list[Any] = []
        Consumer(channel, [Queue("q")], on_message=got.append).consume()
        while len(got) < 2:
            connection.drain_events(timeout=TIMEOUT)
        proxy.hold("leases/ack", "leases/acquire")
        channel.consumer.serves_worker = True  # whose acknowledgements wait for the next request
        got[0].ack()
        while channel.consumer.state is not State.REQUESTED:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
        sock = channel._in_poll._sock

        proxy.cut_all()
        select.select([sock], [], [], 10)
    wait_until(lambda: not held(delayq_redis.client), what="nothing is held")

    assert delayq_redis.client.llen("q") == 2


def test_a_refusal_after_which_to_connect_anew_leaves_calls_of_other_threads_alone(
    through: Through,
) -> None:
    proxy, delayq = through()
    store = delayq.store
    late = proxy.on("leases/acquire", Fault.DELAY, seconds=1)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(store.leases.acquire, "q", "me", 60, "1", 1)
        assert late.fired.wait(TIMEOUT)
        proxy.on("deadletters/page", Fault.REFUSE, answer="READONLY You can't write.")

        with pytest.raises(BrokerUnavailable):
            list(store.dead_letters.all("q"))

        assert other.result().messages == []


@pytest.mark.parametrize("ends", [("close",), ("cancel", "close"), ("cancel", "read")])
def test_fetched_messages_go_back_in_order_with_what_a_late_reply_brings(
    delayq_redis: RedisUnderTest,
    through: Through,
    monkeypatch: pytest.MonkeyPatch,
    ends: tuple[str, ...],
) -> None:
    """A worker that ends cancels its consumers, and then closes the channel."""
    monkeypatch.setattr(fair_share, "QUICK_DELIVERY_SECONDS", 60.0)  # several are taken at once
    proxy, delayq = through()
    with delayq.app.connection_for_read() as connection:
        publish(connection, "q", 150)
        channel: Any = connection.default_channel
        channel.consumer.serves_worker = True
        got: list[Any] = []
        consumer = Consumer(channel, [Queue("q")], on_message=got.append)
        consumer.consume()
        while channel.consumer.batch_size.size < 16:
            connection.drain_events(timeout=TIMEOUT)
        late = proxy.on("leases/acquire", Fault.DELAY, seconds=3 * LAST_REPLY_SECONDS)
        while not late.fired.wait(0.01):
            connection.drain_events(timeout=TIMEOUT)
        there = sum(held(delayq_redis.client).values())
        assert there > len(got) + len(channel.consumer.taken) > len(got)
        if "cancel" in ends:
            consumer.cancel()
        while "read" in ends and len(got) < sum(held(delayq_redis.client).values()):
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
    wait_until(lambda: not held(delayq_redis.client), what="nothing is held")

    ready = delayq_redis.client.lrange("q", 0, -1)
    assert [body_of(each) for each in reversed(ready)] == [str(n) for n in range(150)]


@pytest.mark.parametrize("is_refused", [False, True])
def test_leased_messages_go_back_where_kombu_cannot_put_back_those_that_it_keeps(
    delayq_redis: RedisUnderTest, through: Through, is_refused: bool
) -> None:
    proxy, delayq = through()
    with delayq.app.connection_for_read() as connection:
        publish(connection, "q", 1)
        publish(connection, "brief", 1)
        got: list[Any] = []
        queues = [Queue("q"), Queue("brief", auto_delete=True)]
        Consumer(connection.default_channel, queues, on_message=got.append).consume()
        while len(got) < 2:
            connection.drain_events(timeout=TIMEOUT)
        assert delayq_redis.client.hlen("unacked") == len(held(delayq_redis.client)) == 1
        refused = proxy.on("HGET", Fault.REFUSE)

        raised = (*connection.connection_errors, *connection.channel_errors)

        with nullcontext() if is_refused else proxy.away(), pytest.raises(raised):
            connection.default_channel.close()
        wait_until(lambda: not held(delayq_redis.client), what="nothing is held")

    assert refused.fired.is_set() == is_refused
    assert delayq_redis.client.llen("q") == 1


def test_a_message_is_settled_when_its_handler_has_returned_and_at_once_by_other_threads(
    delayq_redis: RedisUnderTest,
) -> None:
    """A solo worker runs the task in the handler: a task whose worker is killed comes back."""
    waiting: dict[str, int] = {}

    def handle(message: Any) -> None:
        settling = partial(channel.hand_out.settle_soon, message.ack)
        if message.payload == "0":
            settling()
        else:
            thread = threading.Thread(target=settling)
            thread.start()
            thread.join()
        waiting[f"in handler {message.payload}"] = len(held(delayq_redis.client))

    with Connection(delayq_redis.server.url_for("delayq+redis")) as connection:
        channel: Any = connection.channel()
        publish(connection, "q", 2)
        Consumer(channel, [Queue("q")], on_message=handle).consume()
        for number in range(2):
            connection.drain_events(timeout=TIMEOUT)
            waiting[f"after handler {number}"] = len(held(delayq_redis.client))

    assert waiting == {
        "in handler 0": 1,
        "after handler 0": 0,
        "in handler 1": 0,
        "after handler 1": 0,
    }


def test_an_error_in_settling_is_logged_and_keeps_nothing_else(
    delayq_redis: RedisUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    """In threads Celery settles before it runs the task, which would never run."""

    def fail() -> None:
        raise RuntimeError("no more threads")

    def handle(message: Any) -> None:
        for method in (fail, message.ack):
            channel.hand_out.settle_soon(method)

    with Connection(delayq_redis.server.url_for("delayq+redis")) as connection:
        channel: Any = connection.channel()
        publish(connection, "q", 1)
        Consumer(channel, [Queue("q")], on_message=handle).consume()
        connection.drain_events(timeout=TIMEOUT)
        channel.hand_out.settle_soon(fail)

        assert not held(delayq_redis.client)
    assert [record.message for record in caplog.records if record.exc_info] == [
        "A message could not be acknowledged or rejected"
    ] * 2
