"""``migrate`` between Celery's native delay and ours, on RabbitMQ."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.transport import native_delayed_delivery as native

from celery_delayq.admin.rabbitmq.native_migration import from_native, to_native
from celery_delayq.admin.stock_migration import Moved
from celery_delayq.testing import wait_until
from celery_delayq.transport.amqp.sizes import ready_messages
from celery_delayq.transport.amqp.topology import QueueItem
from tests.integration.conftest import NewRabbitMQ
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.rabbitmq import RabbitMQScene

QUORUM = {"x-queue-type": "quorum"}
TOPIC = Queue("orders", Exchange("orders", "topic"), "orders", queue_arguments=QUORUM)
FANOUT = Queue("copies", Exchange("all", "fanout"), "copies", queue_arguments=QUORUM)
CLASSIC = Queue("plain", Exchange("plain"), "plain")

#: Delays in seconds that are one wait: until then RabbitMQ moves nothing by itself.
NATIVE, OURS = 16.0, 25.6


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
        dues[f"{n}"] = time.time() + NATIVE
        stock.send_task("shop.work", task_id=f"{n}", countdown=NATIVE, queue=queue)
    _wait_all(scene, from_native, 3)

    assert _last(from_native(scene.app)).scheduled == 3

    came = {**scene.receive("orders", 2), **scene.receive("copies", 1)}
    assert came.keys() == dues.keys()
    assert all(came[id] >= dues[id] for id in dues)


def test_a_native_task_that_nobody_here_would_get_stays(
    scene: RabbitMQScene, stock: Celery
) -> None:
    delayed = Exchange("celery_delayed_27", "topic")
    key = native.calculate_routing_key(60, "others")
    with stock.producer_or_acquire() as producer:
        producer.publish([[], {}, {}], exchange=delayed, routing_key=key, headers={})

    _wait_all(scene, from_native, 1)

    moved = [_last(from_native(scene.app)) for _ in range(2)]

    assert [(each.scheduled, each.unmovable, each.total) for each in moved] == [(0, 1, 1)] * 2


def _wait_all(scene: RabbitMQScene, move: Callable[..., Iterator[Moved]], count: int) -> None:
    """Wait until so many tasks wait where they are taken from."""
    wait_until(lambda: _last(move(scene.app, dry_run=True)).scheduled == count, TIMEOUT, "all wait")


def test_a_due_task_that_waits_for_a_binding_needs_no_move(
    scene: RabbitMQScene, stock: Celery
) -> None:
    Exchange("late", "topic")(scene.channel).declare()
    scene.send("due", 0.1, exchange="late", routing_key="late")
    wait_until(lambda: scene.app._delayq.stats().scheduled == 0, TIMEOUT, "it is due")
    assert _last(to_native(scene.app)).total == 0
    came: list[dict[str, Any]] = []

    with stock.connection_for_read() as connection:
        queue = Queue("late", Exchange("late", "topic"), "late")(connection.default_channel)
        queue.declare()

        def take() -> bool:
            came.extend(message.headers for message in [queue.get(no_ack=True)] if message)
            return bool(came)

        wait_until(take, TIMEOUT, "stock gets it")
    assert [(each["id"], each["eta"]) for each in came] == [("due", None)]


def test_ours_go_back_as_stock_sends_them(scene: RabbitMQScene, stock: Celery) -> None:
    topic = scene.send("native", OURS)
    scene.send("classic", 60.0, queue="plain")
    scene.send("direct", 60.0, exchange=CLASSIC.exchange, routing_key="plain")
    scene.send("fanout", 60.0, queue=Queue("copies", no_declare=True))

    ran = CommandLine(scene.app)("migrate", "--to", "native")
    assert ran.code == 0, ran.err
    assert "moved: 4 delayed tasks" in ran.out
    assert _last(to_native(scene.app)).total == 0

    with stock.connection_for_read() as connection:
        # Native delay knows neither direct exchanges nor which queue of a fanout one.
        for queue, ids in (("plain", {"classic", "direct"}), ("copies", {"fanout"})):
            messages = [connection.default_channel.basic_get(queue) for _ in ids]
            headers = [message.properties["application_headers"] for message in messages]
            assert {each["id"] for each in headers} == ids
            assert {each["eta"][:2] for each in headers} == {"20"}
            assert not [name for each in headers for name in each if name.startswith("delayq")]
    # Celery counts whole seconds.
    assert scene.receive("orders")["native"] >= topic - 1


def test_what_cannot_be_moved_stays_and_holds_up_nothing(
    scene: RabbitMQScene, stock: Celery
) -> None:
    scene.send("good", 60.0, queue="plain")
    [delay] = [name for name in _sizes(scene) if name.startswith("delayq.delay.5")]
    for headers in ({}, {"task": "x", "id": "y"}, {"task": "x", "id": "y", "delayq-due": "soon"}):
        message = scene.channel.prepare_message(b"x", headers=headers)
        scene.channel.basic_publish(message, "", delay)

    moved = _last(to_native(scene.app))

    assert (moved.scheduled, moved.unmovable) == (1, 3)
    assert scene.channel.basic_get("plain").properties["application_headers"]["id"] == "good"


#: Kills its process when a batch is confirmed, and not yet taken from where it was.
KILLED = """
import os, signal, sys
from celery_delayq.admin.rabbitmq import native_migration
from tests.integration.admin.rabbitmq.test_native_migration import TOPIC
from tests.support.rabbitmq import RabbitMQScene

native_migration.PUBLISH_BATCH = 3
with RabbitMQScene(sys.argv[1], task_queues=[TOPIC]) as scene:
    settle = type(scene.channel).basic_ack
    type(scene.channel).basic_ack = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    [*getattr(native_migration, sys.argv[2])(scene.app)]
"""


@pytest.mark.parametrize("way", ["from_native", "to_native"])
def test_a_move_that_was_killed_is_repeated_and_loses_nothing(
    scene: RabbitMQScene, stock: Celery, delayq_rabbitmq: str, way: str
) -> None:
    ids = {f"{n}" for n in range(8)}
    sender, move, back = {
        "from_native": (stock, from_native, to_native),
        "to_native": (scene.app, to_native, from_native),
    }[way]
    for id in ids:
        sender.send_task("shop.work", task_id=id, countdown=4096, queue="orders")
    _wait_all(scene, move, 8)

    ended = subprocess.run([sys.executable, "-c", KILLED, delayq_rabbitmq, way], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert _last(move(scene.app)).scheduled == 8

    # Those of one batch are there twice.
    _wait_all(scene, back, 8 + 3)
    names = [native.level_name(level) for level in range(native.MAX_LEVEL + 1)]
    names = [*_sizes(scene)] if way == "from_native" else names
    came: Counter[str] = Counter()
    for name in ready_messages(scene.channel.connection, names):
        while (message := scene.channel.basic_get(name)) is not None:
            came[message.properties["application_headers"]["id"]] += 1
    assert {*came} == ids
    assert sorted(came.values()) == [1] * 5 + [2] * 3


def _sizes(scene: RabbitMQScene) -> dict[str, int]:
    names = [item.name for item in scene.channel.topology.all() if isinstance(item, QueueItem)]
    return {
        name: size for name, size in ready_messages(scene.channel.connection, names).items() if size
    }


def test_the_command_names_the_way_of_this_broker(scene: RabbitMQScene) -> None:
    ran = CommandLine(scene.app)("migrate", "--from", "stock")

    assert (ran.code, "--from native" in ran.err) == (2, True)
