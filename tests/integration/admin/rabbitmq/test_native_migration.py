"""``migrate`` between Celery's native delay and ours, on RabbitMQ."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.transport import native_delayed_delivery as native

from celery_delayq.admin.rabbitmq.native_migration import from_native, to_native
from celery_delayq.admin.stock_migration import Moved
from celery_delayq.testing import wait_until
from tests.integration.conftest import NewRabbitMQ
from tests.support.cli import CommandLine
from tests.support.rabbitmq import TIMEOUT, RabbitMQScene

QUORUM = {"x-queue-type": "quorum"}
TOPIC = Queue("orders", Exchange("orders", "topic"), "orders", queue_arguments=QUORUM)
FANOUT = Queue("copies", Exchange("all", "fanout"), "copies", queue_arguments=QUORUM)
CLASSIC = Queue("plain", Exchange("plain"), "plain")


@pytest.fixture
def scene(new_rabbitmq: NewRabbitMQ) -> RabbitMQScene:
    """The app with our URL."""
    scene = new_rabbitmq()
    scene.app.conf.task_queues = [TOPIC, FANOUT, CLASSIC]
    return scene


@pytest.fixture
def stock(delayq_rabbitmq: str) -> Iterator[Celery]:
    """The same app on stock Celery; a worker of it was there and has declared all."""
    url = delayq_rabbitmq.removeprefix("delayq+")
    with Celery("shop", broker=url, set_as_current=False) as app:
        app.conf.task_queues = [TOPIC, FANOUT, CLASSIC]
        app.conf.task_default_queue = "orders"
        with app.connection_for_write() as connection:
            native.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
            for queue in (TOPIC, FANOUT):
                queue(connection.default_channel).declare()
                native.bind_queue_to_native_delayed_delivery_exchange(connection, queue)
        yield app


def _last(steps: Iterator[Moved]) -> Moved:
    *_, last = steps
    return last


def test_native_tasks_go_on_here_and_run_when_they_are_due(
    scene: RabbitMQScene, stock: Celery
) -> None:
    dues = {}
    for n, queue in enumerate(["orders", "copies", "orders"]):
        dues[f"{n}"] = time.time() + 4
        stock.send_task("shop.work", task_id=f"{n}", countdown=4, queue=queue)

    # RabbitMQ counts nowhere what it is moving from queue to queue.
    wait_until(
        lambda: _last(from_native(scene.app, dry_run=True)).scheduled == 3, TIMEOUT, "all wait"
    )
    moved = 0
    while moved < 3:
        moved += _last(from_native(scene.app)).scheduled

    came = {**scene.receive("orders", 2), **scene.receive("copies", 1)}
    assert came.keys() == dues.keys()
    assert all(came[id] >= dues[id] for id in dues)


def test_a_native_task_that_nobody_here_would_get_stays(
    scene: RabbitMQScene, stock: Celery
) -> None:
    stock.send_task("shop.work", countdown=60, exchange="orders", routing_key="others")
    delayed = Exchange("celery_delayed_27", "topic")
    key = native.calculate_routing_key(60, "others")
    with stock.producer_or_acquire() as producer:
        producer.publish([[], {}, {}], exchange=delayed, routing_key=key, headers={})

    left = _last(from_native(scene.app)).left

    assert left == _last(from_native(scene.app)).total > 0


def test_ours_go_back_as_stock_sends_them(scene: RabbitMQScene, stock: Celery) -> None:
    topic = scene.send("native", 4.0)
    scene.send("classic", 60.0, queue="plain")

    ran = CommandLine(scene.app)("migrate", "--to", "native")
    assert (ran.code, "moved: 2 delayed tasks" in ran.out) == (0, True)
    assert _last(to_native(scene.app)).total == 0

    with stock.connection_for_read() as connection:
        message = connection.default_channel.basic_get("plain")
        headers = message.properties["application_headers"]
        assert (headers["id"], headers["eta"][:2]) == ("classic", "20")
        assert not [name for name in headers if name.startswith("delayq")]
    # Celery counts whole seconds.
    assert scene.receive("orders")["native"] >= topic - 1


def test_the_command_names_the_way_of_this_broker(scene: RabbitMQScene) -> None:
    ran = CommandLine(scene.app)("migrate", "--from", "stock")

    assert (ran.code, "--from native" in ran.err) == (2, True)
