"""RabbitMQ blocks who publishes while it is low on memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_delayq import DelayQ
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import BrokerBlocked
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support.scene import TIMEOUT, AppScene, StartWorker

LIMIT = "set_vm_memory_high_watermark"


@contextmanager
def low_on_memory(server: EmbeddedRabbitMQ) -> Iterator[None]:
    server.control(LIMIT, "absolute", "1MB")
    try:
        wait_until(lambda: server.ask("GET", "nodes")[0].get("mem_alarm"), TIMEOUT)
        yield
    finally:
        server.control(LIMIT, "absolute", "2GB")


@pytest.mark.parametrize("size", [1, 20_000_000])
def test_a_publish_says_that_the_broker_has_blocked_the_connection(
    make_app: MakeApp, delayq_rabbitmq_server: EmbeddedRabbitMQ, size: int
) -> None:
    app = make_app()

    def send() -> None:
        app.send_task("shop.work", ["x" * size], countdown=0.1, confirm_timeout=1.0)

    send()
    with low_on_memory(delayq_rabbitmq_server):
        for _ in range(2):
            begin = time.monotonic()
            with pytest.raises(BrokerBlocked, match=r"blocked this connection \(low on memory\)"):
                send()
            assert time.monotonic() - begin < 10

    send()


@pytest.mark.parametrize("task", ["header.fails", "unknown"])
def test_a_worker_that_cannot_store_a_dead_letter_gives_the_message_back(
    task: str,
    make_app: MakeApp,
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> None:
    app = make_app()
    scene = AppScene(delayq_redis, app, delayq_worker)
    scene.module = "header_tasks"
    worker = scene.start("prefork")
    delays = {"a": 6, "b": 12, "c": 18}  # one of them is due while it is low on memory
    for id, countdown in delays.items():
        app.send_task(task, task_id=id, countdown=countdown)
    with low_on_memory(delayq_rabbitmq_server):
        wait_until(lambda: "goes back, no dead letter" in worker.log, 60, lambda: worker.log)

    delayq = DelayQ.of(app)
    # RabbitMQ may have read the first one, too.
    wait_until(lambda: {each.id for each in delayq.dead_letters()} == {*delays}, 60, "all are dead")
    wait_until(lambda: not delayq.stats().as_dict()["ready"], TIMEOUT, "nothing is left")
    assert worker.running
    assert "Unrecoverable" not in worker.log
