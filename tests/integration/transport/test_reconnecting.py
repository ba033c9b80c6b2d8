"""A worker that loses its connection again and again keeps nothing of the lost ones."""

from __future__ import annotations

import gc
import os
import re
import signal
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import psutil
import pytest
from celery import Celery
from kombu import Connection
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import wait_until
from tests.apps.lease_tasks import held
from tests.support.scene import Leases, StartWorker


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

    def lose_connection() -> None:
        before = connections()
        kill_connections(redis)
        wait_until(lambda: connections() > before, 30, "a connection")

    process = psutil.Process(worker.pid)
    wait_until(lambda: "dispatcher started" in worker.log, 30, "the worker")
    lose_connection()
    lose_connection()
    descriptors = process.num_fds()
    for _ in range(10):
        lose_connection()

    # Connections of other threads may be about to be opened or closed.
    wait_until(lambda: process.num_fds() <= descriptors + 2, 20, "the files to be closed")


#: Bytes that a pipe takes at least before who writes has to wait.
FULL = 15 * 4096


def pipes(pid: int, mode: int = stat.S_IRUSR | stat.S_IWUSR) -> list[tuple[str, int]]:
    """Return the pipes that a process can read from or write to, with its descriptors for them."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if str(path.readlink()).startswith("pipe:") and path.lstat().st_mode & mode:
                found.append((str(path.readlink()), int(path.name)))
    return found


def unread(pid: int) -> int:
    """Return how many bytes at most wait in a pipe that a process has open."""
    sizes = [0]
    for _, number in pipes(pid):
        with suppress(OSError):
            pipe = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
            try:
                sizes += struct.unpack("i", ioctl(pipe, FIONREAD, b"\0" * 4))
            finally:
                os.close(pipe)
    return max(sizes)


@pytest.mark.conformance
def test_a_result_that_was_read_in_part_when_the_connection_was_lost_is_read_to_its_end(
    app: Celery, leases: Leases, redis: Redis
) -> None:
    worker = leases.start("prefork")
    app.send_task("lease.wait_and_fail_at_length")
    wait_until(lambda: leases.runs("event") == ["started"], 30, "the task")
    (child,) = worker.child_pids()

    # The worker reads what is in the pipe when its child is stopped, which is not all.
    worker.send_signal(signal.SIGSTOP)
    redis.rpush("go", 1)
    wait_until(lambda: unread(child) >= FULL, 30, "a result")
    os.kill(child, signal.SIGSTOP)
    worker.send_signal(signal.SIGCONT)
    wait_until(lambda: unread(child) == 0, 30, "what there is to be read")
    kill_connections(redis)
    wait_until(lambda: worker.log.count("] Connected to ") == 2, 30, "a new connection")
    os.kill(child, signal.SIGCONT)

    wait_until(lambda: redis.hlen("{celery}:dead") == 1, 30, lambda: f"an end:\n{worker.log}")
    assert not held(redis)
    worker.term()
    assert worker.wait(30) == 0


@pytest.mark.conformance
def test_a_connection_may_be_lost_while_a_child_ends(
    app: Celery, leases: Leases, redis: Redis
) -> None:
    """A child closes the pipe that tells of its end a moment before it can be waited for."""
    worker = leases.start("prefork")
    (child,) = worker.child_pids()

    def watched() -> list[int]:
        """Return what the child can write to and the worker watches: that it has twice."""
        read = Counter(name for name, _ in pipes(worker.pid, stat.S_IRUSR))
        return [number for name, number in pipes(child, stat.S_IWUSR) if read[name] == 2]

    (descriptor,) = watched()
    app.send_task("lease.close", (descriptor,))
    wait_until(lambda: not watched(), 30, "the worker hears of an end")
    kill_connections(redis)
    wait_until(lambda: worker.log.count("] Connected to ") == 2, 30, "a new connection")

    app.send_task("lease.add", (1, 2))
    wait_until(lambda: leases.runs("event") == ["ran"], 30, lambda: f"a task:\n{worker.log}")
    worker.term()
    assert worker.wait(30) == 0
