"""A worker that loses its connection again and again keeps nothing of the lost ones."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
from kombu import Connection
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq.embedded.ports import free_port
from celery_delayq.store.keys import Keys
from celery_delayq.testing import wait_until
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

        wait_until(is_back, 30, "all connections")
        return max(files)

    process = psutil.Process(worker.pid)
    wait_until(lambda: "dispatcher started" in worker.log, 30, "the worker")
    needed = max(lose_connection() for _ in range(3))
    for _ in range(10):
        lose_connection()

    wait_until(lambda: process.num_fds() <= needed, 20, "the files to be closed")
