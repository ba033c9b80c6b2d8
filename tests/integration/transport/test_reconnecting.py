"""A worker that loses its connection again and again keeps nothing of the lost ones."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import psutil
import pytest
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq.embedded.ports import free_port
from celery_delayq.store.keys import Keys
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.epolls import registered, strays
from tests.support.scene import StartWorker


@pytest.fixture
def hub() -> Iterator[Hub]:
    with closing(Hub()) as hub:
        yield hub


def kill_connections(redis: Redis) -> None:
    """Have the server close all connections but that of the test."""
    for kind in ("normal", "pubsub"):
        redis.client_kill_filter(_type=kind, skipme=True)


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    """What is closed is closed by its owner, and not by luck."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_garbage_collection")
def test_an_event_loop_keeps_nothing_of_a_connection_that_was_lost(
    delayq_broker_url: str, hub: Hub
) -> None:
    def connect_and_lose() -> None:
        connection = Connection(delayq_broker_url)
        connection.as_uri()
        connection.transport.register_with_event_loop(connection.connection, hub)
        assert len(hub.on_tick) == 1
        connection.collect()
        hub.reset()

    connect_and_lose()
    descriptors = psutil.Process().num_fds()
    connect_and_lose()
    connect_and_lose()

    assert psutil.Process().num_fds() == descriptors
    assert hub.on_tick == set()
    assert [each.entry for each in hub.timer.queue if not each.entry.canceled] == []


def test_what_kombu_takes_out_of_the_event_loop_is_called_no_more(
    delayq_broker_url: str, hub: Hub
) -> None:
    """Before 5.7 it does so when a connection is lost, until it connects again."""

    def others() -> None:
        """Be no callback of ours."""

    hub.on_tick.add(others)
    with Connection(delayq_broker_url) as connection:
        transport = connection.transport
        transport.register_with_event_loop(connection.connection, hub)
        [ours] = hub.on_tick - {others}

        transport.cycle.loop.on_tick.remove(ours)

        assert hub.on_tick == {others}
    assert hub.on_tick == {others}


class Polling:
    """A consumer of a queue and of a fanout exchange."""

    def __init__(self, connection: Connection, hub: Hub | None) -> None:
        self.connection, self._hub, self.got = connection, hub, list[Any]()
        channel = connection.default_channel
        for queue in (Queue("celery"), Queue("news", Exchange("news", "fanout"))):
            Consumer(channel, queue, on_message=self._note, no_ack=True).consume()
        if hub is not None:
            connection.transport.register_with_event_loop(connection.connection, hub)
        self.poll_until(lambda: len(self.polled()) == 2, "two connections are polled")

    def _note(self, message: Message) -> None:
        self.got.append(message.payload)

    def poll_until(self, has_come: Callable[[], bool], what: str) -> None:
        """Poll until a condition holds."""

        def polled() -> bool:
            if self._hub is not None:
                self._hub.run_once()
            else:
                with suppress(TimeoutError):
                    self.connection.drain_events(timeout=0.05)
            return has_come()

        wait_until(polled, TIMEOUT, what)

    def polled(self) -> list[tuple[Any, int]]:
        """Return the connections that are polled, and the descriptor of each."""
        sockets = self.connection.transport.cycle._chan_to_sock.items()
        return [(client.connection, sock.fileno()) for (_, client, _), sock in sockets]

    def epoll(self) -> int:
        """Return the descriptor of the epoll."""
        return int(self.connection.transport.cycle.poller._epoll.fileno())


@pytest.fixture(params=["redis", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """Of a broker."""
    name = {"redis": "delayq_broker_url", "cluster": "delayq_cluster"}[request.param]
    return str(request.getfixturevalue(name))


@pytest.fixture(params=["in an event loop", "by itself"])
def polling(request: pytest.FixtureRequest, url: str, hub: Hub) -> Iterator[Polling]:
    with Connection(url) as connection:
        yield Polling(connection, hub if request.param == "in an event loop" else None)


def test_a_closed_connection_is_polled_no_more_where_another_process_has_it_open(
    polling: Polling,
) -> None:
    """A child that was forked meanwhile has: a copy of a descriptor is the same to the kernel."""
    before = {*strays(os.getpid())}
    with ExitStack() as stack:
        for connection, descriptor in polling.polled():
            stack.callback(os.close, os.dup(descriptor))
            connection.disconnect()
        assert {*strays(os.getpid())} - before == set()

        Producer(polling.connection.clone()).publish("here", routing_key="celery")
        polling.poll_until(lambda: polling.got == ["here"], "a message")
        assert {*strays(os.getpid())} - before == set()


def test_a_forked_child_that_closes_its_copies_takes_nothing_from_what_its_parent_polls(
    polling: Polling,
) -> None:
    before = registered(os.getpid(), polling.epoll())
    child = os.fork()
    if not child:
        try:
            for connection, _ in polling.polled():
                connection.disconnect()
            polling.connection.transport.cycle.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert registered(os.getpid(), polling.epoll()) == before


@pytest.mark.usefixtures("_no_garbage_collection")
def test_a_connection_that_cannot_be_made_keeps_nothing() -> None:
    url = f"delayq+redis://127.0.0.1:{free_port()}"

    def fail_to_connect() -> None:
        with Connection(url) as connection, pytest.raises(OperationalError):
            connection.ensure_connection(max_retries=1, interval_start=0)
        Connection(url).as_uri()

    fail_to_connect()
    descriptors = psutil.Process().num_fds()
    for _ in range(5):
        fail_to_connect()

    assert psutil.Process().num_fds() == descriptors


@pytest.mark.full
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_that_loses_its_connections_opens_no_more_files_than_it_needs(
    delayq_worker: StartWorker, redis: Redis, pool: str
) -> None:
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool=pool, loglevel="INFO")

    def connections() -> int:
        return len(re.findall("dispatcher (?:started|resumed)", worker.log))

    def is_connected() -> bool:
        """Return whether the worker listens and waits with all its threads."""
        channels = {Keys().fleet.encode(), Keys().periodic_wake.encode()}
        waits = any("b" in client["flags"] for client in redis.client_list())
        return waits and redis.pubsub_numpat() == 2 and channels <= {*redis.pubsub_channels()}

    def lose_connection() -> int:
        """Return the most files that it had open until it was connected again."""
        before, files = connections(), [0]
        kill_connections(redis)

        def is_back() -> bool:
            files.append(process.num_fds())
            return connections() > before and is_connected()

        wait_until(is_back, TIMEOUT, "all connections")
        return max(files)

    process = psutil.Process(worker.pid)
    wait_until(lambda: "dispatcher started" in worker.log, TIMEOUT, "the worker")
    needed = max(lose_connection() for _ in range(3))
    for _ in range(10):
        lose_connection()

    wait_until(lambda: process.num_fds() <= needed, TIMEOUT, "the files to be closed")
