"""RabbitMQ blocks who publishes while it is low on memory, or is silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import amqp
import pytest
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import BrokerBlocked, BrokerTimeout
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.amqp.dead_letter_connection import WORKER_TIMEOUT_SECONDS
from celery_delayq.transport.amqp.waiting import REPLY_SECONDS
from tests.apps.retry_tasks import RetryScene, tasks_of
from tests.integration.conftest import MakeApp, NewRabbitMQ
from tests.support import TIMEOUT
from tests.support.scene import StartWorker
from tests.support.stopped import stop


def set_memory_limit(server: EmbeddedRabbitMQ, limit: str) -> None:
    """Do what ``rabbitmqctl set_vm_memory_high_watermark absolute`` does, without its process."""
    done = server.evaluate(
        f'vm_memory_monitor:set_vm_memory_high_watermark({{absolute, "{limit}"}})'
    )
    assert done == "ok"


@contextmanager
def low_on_memory(server: EmbeddedRabbitMQ) -> Iterator[None]:
    set_memory_limit(server, "1MB")
    try:
        wait_until(lambda: server.ask("GET", "nodes")[0].get("mem_alarm"), TIMEOUT)
        yield
    finally:
        set_memory_limit(server, "2GB")


@pytest.mark.parametrize("size", [1, 12_000_000])
def test_a_publish_says_that_the_broker_has_blocked_the_connection(
    make_app: MakeApp, delayq_rabbitmq_server: EmbeddedRabbitMQ, size: int
) -> None:
    app = make_app()

    def send() -> None:
        app.send_task("shop.work", ["x" * size], countdown=0.1, confirm_timeout=1.0)

    send()
    with low_on_memory(delayq_rabbitmq_server):
        for _ in range(2):
            with pytest.raises(BrokerBlocked, match=r"\(low on memory\) and .* in 1 s; it may"):
                send()

    send()


LATER = "is stored later"


@pytest.fixture
def scene(app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> RetryScene:
    return RetryScene(delayq_redis, tasks_of(app), delayq_worker)


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_dead_letters_wait_for_memory_one_wait_for_all_and_each_task_ran_once(
    pool: str, late: bool, scene: RetryScene, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    ids = {"a", "b", "c"}
    worker = scene.start(pool, concurrency=len(ids), conf={"at_least_once": late})
    for id in ids:
        scene.send("plain", ["wait", "ValueError"], id=id)
    scene.wait_runs(len(ids))
    with low_on_memory(delayq_rabbitmq_server):
        for id in ids:
            scene.open(id)
        wait_until(lambda: worker.log.count(LATER) == len(ids), TIMEOUT, lambda: worker.log)
        stored_after = datetime.now(timezone.utc)

    scene.wait_dead(*ids)
    assert all(each.died < stored_after for each in scene.delayq.dead_letters())
    scene.send("plain", id="next")
    scene.wait_state("next")
    assert sorted(scene.runs("id")) == [*sorted(ids), "next"]
    worker.term()
    assert worker.wait() == 0
    assert scene.app._delayq.stats().as_dict()["ready"] == 0
    assert "Unrecoverable" not in worker.log


def test_a_message_that_no_worker_can_run_waits_for_memory(
    scene: RetryScene, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    worker = scene.start("prefork", concurrency=1)
    scene.send("plain", ["wait", "done"])
    scene.wait_runs(1)
    for _ in range(2):
        scene.app.send_task("unknown", task_id="unknown")
    with low_on_memory(delayq_rabbitmq_server):
        scene.open("a")
        wait_until(lambda: LATER in worker.log, TIMEOUT, lambda: worker.log)
        assert worker.running

    wait_until(lambda: scene.delayq.count_dead() >= 2, TIMEOUT, lambda: worker.log)
    scene.send("plain", id="next")
    scene.wait_state("next")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_worker_keeps_tasks_of_stock_producers_with_an_eta_until_it_can_put_them_off(
    scene: RetryScene,
    delayq_rabbitmq: str,
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
    kind: str,
    pool: str,
) -> None:
    scene.app.conf.task_default_queue_type = kind
    worker = scene.start(pool, concurrency=1, conf={"task_default_queue_type": kind})
    scene.send("plain", ["wait", "done"])
    scene.wait_runs(1)
    ids = {f"{n}" for n in range(5)}
    url = delayq_rabbitmq.removeprefix("delayq+")
    with Celery("stock", broker=url, set_as_current=False) as stock:
        stock.conf.task_default_queue_type = kind
        for id in ids:
            stock.send_task(
                "plain",
                (["done"],),
                task_id=id,
                countdown=3600,
                queue=Queue("celery", no_declare=True),
            )
    with low_on_memory(delayq_rabbitmq_server):
        scene.open("a")
        waits = "tasks with an ETA wait in this worker's memory"
        wait_until(lambda: waits in worker.log, TIMEOUT, lambda: worker.log)

    scene.send("plain", id="next")
    scene.wait_state("next")  # they take no place of the prefetch
    assert worker.running
    assert "Unrecoverable" not in worker.log


def test_a_worker_that_ends_says_which_dead_letters_are_lost(
    scene: RetryScene, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    worker = scene.start("prefork", concurrency=2, conf={"at_least_once": False})
    for id in ("early", "too"):
        scene.send("plain", ["wait", "ValueError"], id=id)
    scene.wait_runs(2)
    with low_on_memory(delayq_rabbitmq_server):
        for id in ("early", "too"):
            scene.open(id)
        wait_until(lambda: worker.log.count(LATER) == 2, TIMEOUT, lambda: worker.log)
        worker.term()
        assert worker.wait() == 0

    for id in ("early", "too"):
        assert f"took no dead letter before this process ended. Lost: '{id}': failed" in worker.log


def test_a_channel_that_is_closed_meanwhile_keeps_its_number_until_rabbitmq_has_read_it(
    new_rabbitmq: NewRabbitMQ, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    scene = new_rabbitmq()
    connection = scene.connection.connection
    closed = scene.connection.channel()
    number = closed.channel_id
    with low_on_memory(delayq_rabbitmq_server):
        scene.channel.basic_publish(amqp.Message("no task"), "", "nowhere")
        wait_until(connection.why_blocked, TIMEOUT, "it is blocked")
        closed.close()
        assert number in connection._used_channel_ids

    wait_until(lambda: connection.why_blocked() is None, TIMEOUT, "it goes on")
    wait_until(
        lambda: connection.why_blocked() or number not in connection._used_channel_ids,
        TIMEOUT,
        "it is free",
    )
    assert scene.connection.channel().channel_id == number
    scene.send("a")


@pytest.fixture
def silent(delayq_rabbitmq_server: EmbeddedRabbitMQ) -> Iterator[Callable[[], None]]:
    """Stop the node until the test ends."""
    pid = delayq_rabbitmq_server.pid
    yield lambda: stop(pid)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("connected", [True, False])
def test_a_worker_tries_a_silent_broker_once_and_not_for_long(
    new_rabbitmq: NewRabbitMQ, silent: Callable[[], None], connected: bool
) -> None:
    scene = new_rabbitmq()
    connection = scene.channel.connection
    store = connection.delayq.dead_letter_connection
    tries: list[Any] = []

    def work(channel: Any) -> None:
        tries.append(channel)
        channel.declarer.prepare(1, "", "orders")

    if connected:
        store.ask(lambda _: None)
    silent()

    start = time.monotonic()
    with pytest.raises((OperationalError, OSError)):
        store._run(work, WORKER_TIMEOUT_SECONDS)

    assert time.monotonic() - start < REPLY_SECONDS / 2
    assert len(tries) == connected
    assert not store._connection.connected


@pytest.mark.parametrize("delay", [0, 60], ids=["now", "later"])
def test_the_first_publish_to_a_silent_broker_keeps_its_timeout(
    new_rabbitmq: NewRabbitMQ, silent: Callable[[], None], delay: int
) -> None:
    channel = new_rabbitmq().channel
    connection = channel.connection
    eta = datetime.now(timezone.utc) + timedelta(seconds=delay)
    headers = {"task": "work", "id": "a", "eta": eta.isoformat() if delay else None}
    message = amqp.Message("[]", application_headers=headers)
    silent()

    with pytest.raises(BrokerTimeout, match=r"did not confirm in 0.5 s"):
        channel.basic_publish(message, "", "orders", confirm_timeout=0.5)

    assert not connection.connected


@pytest.mark.parametrize(
    "ask",
    [
        lambda channel: channel.queue_declare("orders", passive=True),
        lambda channel: channel.close(),
        lambda channel: channel.connection.close(),
        lambda channel: channel.connection.channel(),
    ],
    ids=["declare", "close channel", "close connection", "open channel"],
)
def test_a_connection_on_which_a_reply_does_not_come_is_lost(
    new_rabbitmq: NewRabbitMQ, silent: Callable[[], None], ask: Callable[[Any], object]
) -> None:
    """A worker that ends asks for many replies, and would wait for each."""
    channel = new_rabbitmq().channel
    connection = channel.connection
    connection.reply_timeout = 0.3
    silent()

    with pytest.raises(TimeoutError):
        ask(channel)

    assert not connection.connected
    with pytest.raises(amqp.exceptions.RecoverableConnectionError):
        channel.queue_declare("orders", passive=True)
