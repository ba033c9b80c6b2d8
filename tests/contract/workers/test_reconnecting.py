"""A prefork worker that loses its connection keeps its processes."""

from __future__ import annotations

import os
import signal
import stat
import struct
from collections import Counter
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.brokers import Broker
from tests.support.scene import Leases
from tests.support.stopped import stop


@pytest.fixture
def leases(broker: Broker, leases: Leases) -> Leases:
    """Workers whose tasks note the leased messages."""
    return broker.show(leases)


#: Bytes that fill a pipe at least, so that its writer waits.
FULL = 15 * 4096


def pipes(pid: int, mode: int = stat.S_IRUSR | stat.S_IWUSR) -> list[tuple[str, int]]:
    """Return the pipes that a process can read from or write to, with their descriptors."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if str(path.readlink()).startswith("pipe:") and path.lstat().st_mode & mode:
                found.append((str(path.readlink()), int(path.name)))
    return found


def unread(pid: int) -> int:
    """Return the most bytes that wait in an open pipe of a process."""
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
    app: Celery, delayq: DelayQ, leases: Leases, redis: Redis, broker: Broker
) -> None:
    """On RabbitMQ a delivery ends with its connection, so the task runs again."""
    worker = leases.start("prefork")
    app.send_task("lease.wait_and_fail_at_length")
    wait_until(lambda: leases.runs("event") == ["started"], TIMEOUT, "the task")
    (child,) = worker.child_pids()

    # When its child is stopped, the worker has read only a part of the pipe.
    stop(worker.pid)
    redis.rpush("go", 1)
    wait_until(lambda: unread(child) >= FULL, TIMEOUT, "a result")
    stop(child)
    worker.send_signal(signal.SIGCONT)
    wait_until(lambda: unread(child) == 0, TIMEOUT, "what there is to be read")
    broker.lose_connections(leases)
    wait_until(lambda: broker.is_back(worker), TIMEOUT, "a new connection")
    os.kill(child, signal.SIGCONT)

    redis.rpush("go", 1)
    wait_until(delayq.dead_letters.count, TIMEOUT, lambda: f"an end:\n{worker.log}")
    worker.term()
    assert worker.wait(TIMEOUT) == 0
    runs = 2 if broker.name == "rabbitmq" else 1
    assert (leases.runs("event"), delayq.dead_letters.count()) == (["started"] * runs, 1)
    assert not leases.unfinished().get("leased")


@pytest.mark.conformance
def test_a_connection_may_be_lost_while_a_child_ends(
    app: Celery, leases: Leases, broker: Broker
) -> None:
    """A child closes its sentinel pipe a moment before its exit can be waited for."""
    worker = leases.start("prefork")
    (child,) = worker.child_pids()

    def watched() -> list[int]:
        """Return the pipes to which the child can write and which the worker watches twice."""
        read = Counter(name for name, _ in pipes(worker.pid, stat.S_IRUSR))
        return [number for name, number in pipes(child, stat.S_IWUSR) if read[name] == 2]

    (descriptor,) = watched()
    app.send_task("lease.close", (descriptor,))
    wait_until(lambda: not watched(), TIMEOUT, "the worker hears of an end")
    broker.lose_connections(leases)
    wait_until(lambda: broker.is_back(worker), TIMEOUT, "a new connection")

    app.send_task("lease.add", (1, 2))
    wait_until(lambda: leases.runs("event") == ["ran"], TIMEOUT, lambda: f"a task:\n{worker.log}")
    worker.term()
    assert worker.wait(TIMEOUT) == 0
