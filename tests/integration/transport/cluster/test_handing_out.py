"""Errors while messages are handed out: of a shard that goes, and of whoever gets a message."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Queue
from kombu.asynchronous import Hub
from redis.exceptions import ConnectionError

from celery_delayq import DelayQ
from celery_delayq.embedded.cluster import ask
from celery_delayq.model.cluster_tags import slot_of
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.cluster import QUEUES, TAGS, Cluster
from tests.support.dead_letters import message

pytestmark = pytest.mark.full

LOST, OTHER = QUEUES[TAGS[0]], QUEUES[TAGS[11]]
FAR = datetime(2100, 1, 1, tzinfo=timezone.utc).isoformat()


@pytest.fixture
def app(make_app: MakeApp, delayq_cluster: str) -> Celery:
    return make_app(broker=delayq_cluster)


class Moving:
    """A hash tag that answers nothing for a time, as while its slot moves."""

    def __init__(self, cluster: Cluster, tag: str) -> None:
        self.cluster, self.slot = cluster, slot_of(tag)
        self.nodes = [cluster.master_of(self.slot), cluster.masters[1]]

    def begin(self) -> None:
        self.cluster.begin_move(self.slot, self.nodes[1])

    def end(self) -> None:
        for each in self.nodes:
            ask(each, "SETSLOT", self.slot, "STABLE")


@pytest.fixture
def moving(cluster_server: Cluster) -> Iterator[Moving]:
    found = Moving(cluster_server, TAGS[0])
    yield found
    found.end()


@pytest.fixture(params=["drain", "loop"])
def turn(request: pytest.FixtureRequest, app: Celery) -> Iterator[tuple[Connection, Any]]:
    """A connection, and a function that waits for its messages for a moment.

    By ``drain_events``, or in an event loop as workers have.
    """
    with app.connection_for_read() as connection, ExitStack() as stack:
        if request.param == "drain":

            def drain() -> None:
                with suppress(socket.timeout):
                    connection.drain_events(timeout=0.1)

            yield connection, drain
            return
        hub = Hub()
        stack.callback(hub.close)
        hub.call_repeatedly(0.1, lambda: None)
        assert connection.default_channel.qos  # by this it connects
        connection.transport.register_with_event_loop(connection.connection, hub)
        yield connection, hub.run_once


def push(app: Celery, queue: str, *ids: str, **headers: Any) -> None:
    """Send tasks as a stock producer does."""
    store = DelayQ.of(app).session.stores.of(queue)
    call = store.ready_call(queue)
    for id in ids:
        call.add(0, message(id, **headers))
    store.run(call)


def id_of(taken: Any) -> str:
    return str(json.loads(taken.message)["headers"]["id"])


def test_a_message_that_cannot_be_put_off_holds_up_its_shard_only(
    app: Celery, moving: Moving, turn: tuple[Connection, Callable[[], None]]
) -> None:
    """Its shard goes while messages of one request are handed out, which are then requeued."""
    connection, step = turn
    push(app, LOST, "now")
    push(app, LOST, "far-1", "far-2", eta=FAR)
    push(app, LOST, "last")
    came: list[str] = []
    shards = DelayQ.of(app).session.stores
    channel = connection.default_channel
    part = channel.part_of(LOST)
    part.consumer.batch_size.size = 4  # so that one request gets all

    def receive(_body: Any, got: Any) -> None:
        came.append(got.headers["id"])
        if came == ["now"]:
            assert [id_of(each) for each in part.consumer.taken] == ["far-1", "far-2", "last"]
            moving.begin()
            push(app, OTHER, "other")

    def has_come(id: str) -> bool:
        step()
        return id in came

    queues = [Queue(name, channel=channel) for name in (LOST, OTHER)]
    with Consumer(channel, queues, callbacks=[receive]) as consumer:
        consumer.qos(prefetch_count=20)
        wait_until(lambda: has_come("other"), TIMEOUT, lambda: f"the other shard: {came}")
        assert came == ["now", "other"]
        moving.end()

        wait_until(lambda: has_come("last"), TIMEOUT, lambda: f"the shard to be back: {came}")
        assert came == ["now", "other", "last"]
        wait_until(lambda: shards.of(LOST).scheduled(LOST) == 2, TIMEOUT, "the others")


def test_an_error_of_whoever_gets_a_message_is_raised(
    app: Celery, turn: tuple[Connection, Callable[[], None]]
) -> None:
    """Such as that of a result backend that is away: Celery connects anew, which gives it back."""
    connection, step = turn
    push(app, LOST, "a")

    def receive(_body: Any, _got: Any) -> None:
        raise ConnectionError("results are away")

    def take() -> None:
        for _ in range(300):
            step()

    with Consumer(connection, [Queue(LOST)], callbacks=[receive]):
        with pytest.raises(ConnectionError, match="results are away"):
            take()
        assert not connection.transport.cycle.is_away(connection.default_channel.part_of(LOST))


def test_a_message_that_is_done_in_another_thread_wakes_the_shard_that_waits_for_it(
    app: Celery,
) -> None:
    """All shards share one prefetch; the one of the message waits for Redis already."""
    came: list[Any] = []

    def come(number: int) -> bool:
        with suppress(socket.timeout):
            connection.drain_events(timeout=0.1)
        return len(came) == number

    with app.connection_for_read() as connection:
        channel = connection.default_channel
        queues = [Queue(name, channel=channel) for name in (LOST, OTHER)]
        with Consumer(channel, queues, on_message=came.append) as consumer:
            consumer.qos(prefetch_count=2)
            push(app, OTHER, "other")
            wait_until(lambda: come(1), TIMEOUT, "the first")
            wait_until(
                lambda: come(1) and channel.part_of(OTHER)._in_poll, TIMEOUT, "its shard waits"
            )
            push(app, LOST, "a", "b")
            wait_until(lambda: come(2), TIMEOUT, "the second")
            done = threading.Timer(0.3, channel.part_of(OTHER).hand_out.settle_soon, [came[0].ack])
            done.start()

            connection.drain_events(timeout=TIMEOUT)
            connection.drain_events(timeout=TIMEOUT)

    done.join()
    assert [message.headers["id"] for message in came] == ["other", "a", "b"]


def test_one_thread_promotes_for_the_dispatchers_of_all_hash_tags(
    app: Celery, turn: tuple[Connection, Callable[[], None]]
) -> None:
    came: list[str] = []
    connection, take = turn
    before = {*threading.enumerate()}
    for queue in QUEUES.values():
        app.send_task("t", countdown=1, queue=queue, ignore_result=True)

    def receive(_body: object, message: Any) -> None:
        came.append(message.delivery_info["routing_key"])
        message.ack()

    queues = [Queue(name) for name in QUEUES.values()]
    with Consumer(connection, queues, callbacks=[receive], accept=["json"]):
        wait_until(lambda: take() or len(came) == 12, TIMEOUT, lambda: f"all to come: {came}")
        names = Counter(each.name for each in {*threading.enumerate()} - before)

    assert {*came} == {*QUEUES.values()}
    assert (names["delayq-dispatcher"], names["delayq-promotions"]) == (12, 1)
