"""A child is forked while a thread of its parent is in the middle of something."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import isclass
from itertools import chain
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from celery_delayq.utils import native_threads
from celery_delayq.utils.lazy import import_all
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import StartWorker, start_worker

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


def locked(package: str) -> Iterator[Any]:
    """Yield the cached properties with a lock of the classes in a package's loaded modules."""
    modules = [each for name, each in sys.modules.items() if name.split(".")[0] == package]
    for owner in filter(isclass, chain(*(vars(module).values() for module in modules))):
        for each in vars(owner).values():
            if isinstance(each, cached_property) and hasattr(each, "lock"):
                yield each


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


def test_a_child_computes_what_a_thread_of_its_parent_computes() -> None:
    import_all()
    native_threads.renew_property_locks("celery", "kombu", "celery_delayq")
    found = {each for package in ("celery", "kombu", "celery_delayq") for each in locked(package)}
    assert {"amqp", "connection_errors"} <= {each.attrname for each in found}

    def compute() -> None:
        for each in found:
            assert each.lock.acquire(blocking=False), each.attrname

    with held_by_a_thread(*(each.lock for each in found)):
        assert exit_code_of(compute) == 0


def test_a_child_of_a_worker_publishes_while_its_parent_connects(
    app: Celery, delayq_worker: StartWorker
) -> None:
    """A lost connection and the end of a child come together: both follow from one task."""
    worker = start_worker(delayq_worker, "forking_tasks", concurrency=1).wait_ready()
    wait_until(lambda: worker.log.count("connecting") == 2, what="both threads connect")
    former = set(worker.kill_children())
    wait_until(lambda: set(worker.child_pids()) - former, what="another child")

    app.send_task("forking.send", ("second",))

    assert app.AsyncResult("second").get(timeout=TIMEOUT) == "ended"


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
