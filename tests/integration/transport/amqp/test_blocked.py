"""RabbitMQ blocks who publishes while it is low on memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import Celery

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import BrokerBlocked
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.retry_tasks import TIMEOUT, RetryScene, tasks_of
from tests.integration.conftest import MakeApp
from tests.support.scene import StartWorker

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

    scene.wait_dead(*ids)
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


def test_a_worker_keeps_tasks_of_stock_producers_with_an_eta_in_its_memory(
    scene: RetryScene, delayq_rabbitmq: str, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    worker = scene.start("prefork", concurrency=1)
    scene.send("plain", ["wait", "done"])
    scene.wait_runs(1)
    ids = {f"{n}" for n in range(5)}
    url = delayq_rabbitmq.removeprefix("delayq+")
    with Celery("stock", broker=url, set_as_current=False) as stock:
        for id in ids:
            stock.send_task("plain", (["done"],), task_id=id, countdown=3600)
    with low_on_memory(delayq_rabbitmq_server):
        scene.open("a")
        wait_until(
            lambda: all(f"Task plain[{id}] received" in worker.log for id in ids),
            TIMEOUT,
            lambda: worker.log,
        )

    assert "tasks with an ETA wait in this worker's memory" in worker.log
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
