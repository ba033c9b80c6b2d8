"""A child is forked while a thread of its parent is in the middle of something."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_delayq import DelayQ
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@contextmanager
def held_by_a_thread(*locks: Any) -> Iterator[None]:
    """Have a thread hold locks that only itself can release."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def exit_code_of(work: Callable[[], object]) -> int | None:
    """Return how a forked child ends that does some work; None if it does not end."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(TIMEOUT)
    code = child.exitcode
    child.kill()
    child.join()
    return code


def test_a_child_asks_redis_while_its_parent_does(app: Celery) -> None:
    delayq = DelayQ.of(app)
    pool: Any = delayq.store.client.connection_pool

    with held_by_a_thread(pool._fork_lock, pool._lock):
        assert exit_code_of(delayq.count) == 0


def test_a_child_connects_while_its_parent_does(app: Celery) -> None:
    delayq = DelayQ.of(app)
    delayq.count()

    with held_by_a_thread(delayq.session._lock):
        assert exit_code_of(delayq.count) == 0


def test_a_child_forgets_the_channels_of_its_parent(delayq_broker_url: str) -> None:
    with Connection(delayq_broker_url) as connection:
        channel: Any = connection.channel()
        channel.client.ping()
        pools = channel.pool, channel.async_pool

        with held_by_a_thread(*(pool._lock for pool in pools)):
            assert exit_code_of(lambda: None) == 0


def test_a_child_asks_rabbitmq_by_a_connection_of_its_own(
    make_app: MakeApp, delayq_rabbitmq: str
) -> None:
    delayq = DelayQ.of(make_app(broker=delayq_rabbitmq))
    connection = delayq.session.dead_letter_connection

    def ask() -> object:
        return delayq.count_dead()

    ask()
    with held_by_a_thread(connection._lock):
        assert exit_code_of(ask) == 0
    assert ask() == 0


def test_a_child_and_its_parent_publish_to_rabbitmq_by_connections_of_their_own(
    make_app: MakeApp, delayq_rabbitmq: str
) -> None:
    app = make_app(broker=delayq_rabbitmq)

    def send(id: str) -> None:
        app.send_task("tests.add", task_id=id, retry=False, confirm_timeout=TIMEOUT)

    send("before")
    assert exit_code_of(lambda: send("child")) == 0
    send("after")

    with Connection(delayq_rabbitmq) as connection:
        channel = connection.default_channel
        ids = [message.headers["id"] for message in iter(lambda: channel.basic_get("celery"), None)]
    assert ids == ["before", "child", "after"]
