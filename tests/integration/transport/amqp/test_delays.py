"""Where delayed tasks go on RabbitMQ: by queue, by exchange, and when nobody would get them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Producer, Queue, exceptions

from celery_delayq import DelayQ
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import InvalidETA, InvalidOption, NotSupported, QueueFull
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, NewRabbitMQ
from tests.support import TIMEOUT
from tests.support.rabbitmq import RabbitMQScene as Scene
from tests.support.scene import AppScene, StartWorker


@pytest.fixture
def scene(new_rabbitmq: NewRabbitMQ) -> Scene:
    return new_rabbitmq()


def test_delays_of_all_lengths_end_when_they_are_due(scene: Scene) -> None:
    delays = [0.001, 0.024, 0.025, 0.026, 0.1, 0.5, 1.0, 1.6, 2.3, 3.999]
    dues = {f"{n}": scene.send(f"{n}", delay) for n, delay in enumerate(delays)}

    came = scene.receive("orders", len(delays))

    assert {id for id, at in came.items() if at < dues[id]} == set()


def test_a_delay_is_counted_when_the_message_is_sent(scene: Scene) -> None:
    """And not when it was put into a batch."""
    Queue("orders")(scene.channel).declare()
    routed = scene.channel.routed(_message(scene, 3600), "", "orders")
    soon = time.time() + 0.1

    scene.channel.send([routed._replace(due_ms=soon * 1000)])

    assert scene.receive("orders")["a"] >= soon


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_a_task_for_an_exchange_goes_to_the_queues_that_are_bound_when_it_is_due(
    scene: Scene, kind: str
) -> None:
    exchange = Exchange("shop", kind)
    exchange(scene.channel).declare()
    due = scene.send("a", 4.0, exchange=exchange, routing_key="orders.new")
    late = Queue("late", exchange, "orders.*" if kind == "topic" else "orders.new")
    late(scene.channel).declare()

    assert scene.receive("late")["a"] >= due


@pytest.mark.parametrize("gone", ["queue", "exchange", "binding"])
def test_a_hundred_tasks_that_nobody_gets_are_kept_and_hold_up_no_other(
    scene: Scene, gone: str
) -> None:
    empty, shop = Exchange("empty"), Exchange("shop")
    empty(scene.channel).declare()
    Queue("orders", shop, "new")(scene.channel).declare()
    to = {"queue": "gone"} if gone == "queue" else {"exchange": empty, "routing_key": "gone"}
    for n in range(100):
        scene.send(f"lost-{n}", 12.8, **to)  # by then all are sent, and the queue is deleted
    if gone == "queue":
        scene.channel.queue_delete("gone")
    elif gone == "exchange":
        scene.channel.exchange_delete("empty")
    dues = {f"queue-{n}": scene.send(f"queue-{n}", 12.9) for n in range(10)}
    for n in range(10):
        dues[f"exchange-{n}"] = scene.send(f"exchange-{n}", 12.9, exchange=shop, routing_key="new")

    came = scene.receive("orders", 20)

    assert all(dues[id] <= at < dues[id] + 60 for id, at in came.items())
    if gone != "queue":
        empty(scene.channel).declare()
        scene.channel.queue_bind("delayq.unroutable", "empty", "gone")
    assert len(scene.receive("delayq.unroutable", 100)) == 100


def test_a_task_whose_queue_was_deleted_is_a_dead_letter_and_can_be_replayed(scene: Scene) -> None:
    delayq = DelayQ.of(scene.app)
    scene.send("a", 6, queue="gone")
    scene.channel.queue_delete("gone")
    wait_until(
        lambda: delayq.admin.stats().as_dict()["unroutable"] == 1, TIMEOUT, "it is unroutable"
    )

    [dead] = delayq.dead_letters()

    assert (dead.id, dead.queue) == ("a", "gone")
    assert dead.reason == "it was due, and there is no queue 'gone'"
    assert delayq.stats().as_dict()["unroutable"] == 0
    Queue("gone")(scene.channel).declare()
    delayq.replay(dead)
    assert scene.receive("gone").keys() == {"a"}
    assert [*delayq.dead_letters()] == []


def test_a_worker_gets_the_delayed_tasks_of_a_queue_that_was_deleted(
    make_app: MakeApp, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    """As to change its type: the publisher has bound it already, and keeps its connection."""
    app = make_app()
    workers = AppScene(delayq_redis, app, delayq_worker)
    workers.module = "delayq_tasks"
    app.send_task("add", (1, 2), countdown=0.1)
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete("celery")

    workers.start("solo")

    assert app.send_task("add", (3, 4), countdown=0.5).get(timeout=TIMEOUT) == 7


# -- what is refused


def _message(scene: Scene, countdown: float) -> Any:
    headers = {
        "task": "shop.work",
        "id": "a",
        "eta": (datetime.now(timezone.utc) + timedelta(seconds=countdown)).isoformat(),
    }
    return scene.channel.prepare_message(
        "[[], {}, {}]", content_type="application/json", content_encoding="utf-8", headers=headers
    )


def _to_unknown_queue(scene: Scene) -> None:
    scene.channel.basic_publish(_message(scene, 60), exchange="", routing_key="unknown")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        pytest.param(
            lambda scene: scene.send("a", skip_after=60),
            NotSupported,
            "^skip_after: an amqp broker",
            id="skip_after",
        ),
        pytest.param(
            lambda scene: scene.send("a", retry_budget=3),
            NotSupported,
            "^retry_budget: an amqp broker",
            id="retry_budget",
        ),
        pytest.param(
            lambda scene: scene.send("a", 4e9), InvalidETA, "is longer than", id="too long"
        ),
        pytest.param(_to_unknown_queue, InvalidOption, "has no queue of this name", id="no queue"),
        pytest.param(
            lambda scene: scene.app.send_task(
                "shop.work",
                countdown=1,
                exchange=Exchange("none", no_declare=True),
                routing_key="k",
            ),
            InvalidOption,
            "has no exchange of this name",
            id="no exchange",
        ),
        pytest.param(
            lambda scene: scene.app.send_task(
                "shop.work", exchange=Exchange("none", no_declare=True), routing_key="k"
            ),
            InvalidOption,
            "no exchange 'none'",
            id="no exchange, at once",
        ),
        pytest.param(
            lambda scene: scene.send("a", queue=Queue("all", Exchange("all", "fanout"))),
            InvalidOption,
            "is a fanout exchange",
            id="fanout",
        ),
        pytest.param(
            lambda scene: scene.send("a", headers={"a": float("nan")}),
            InvalidOption,
            "nan would end the connection",
            id="no number",
        ),
    ],
)
def test_a_call_that_cannot_arrive_is_refused(
    scene: Scene, call: Callable[[Scene], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(scene)

    scene.send("b", 0.05, retry=False, confirm_timeout=TIMEOUT)
    assert scene.receive("orders").keys() == {"b"}


def _send_batch(app: Celery, queue: Queue) -> None:
    with app.producer_pool.acquire() as producer, producer.batch(100):
        for _ in range(3):
            app.send_task("shop.work", queue=queue, producer=producer, retry=False)


def test_a_queue_that_is_full_refuses_at_once(scene: Scene) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = Queue("small", Exchange("small"), "small", queue_arguments=full)
    queue(scene.channel).declare()
    scene.app.send_task("shop.work", queue=queue)

    with pytest.raises(QueueFull, match="RabbitMQ refused a message for 'small'"):
        scene.app.send_task("shop.work", queue=queue)
    if hasattr(Producer, "batch"):
        with pytest.raises(exceptions.BatchPublishError):
            _send_batch(scene.app, queue)


@pytest.mark.parametrize("number", [1, 3])
def test_publishers_that_come_first_at_the_same_time_all_get_through(
    new_rabbitmq: NewRabbitMQ, number: int
) -> None:
    """One by one or in batches. New delay queues refuse everything until they have a leader."""
    if number > 1 and not hasattr(Producer, "batch"):
        return  # kombu before 5.7 has no batches
    scenes = [new_rabbitmq() for _ in range(8)]
    Queue("orders")(scenes[0].channel).declare()
    begin = threading.Barrier(len(scenes))

    def send(scene: Scene) -> None:
        with scene.app.producer_pool.acquire() as producer:
            batch = nullcontext() if number == 1 else producer.batch(100)
            begin.wait(TIMEOUT)
            with batch:
                for _ in range(number):
                    scene.app.send_task(
                        "shop.work", countdown=5, queue="orders", producer=producer, retry=False
                    )

    with ThreadPoolExecutor(len(scenes)) as pool:
        for each in [pool.submit(send, scene) for scene in scenes]:
            each.result()

    assert len(scenes[0].receive("orders", len(scenes) * number)) == len(scenes) * number


def test_other_messages_on_the_channel_leave_the_confirms_in_step(scene: Scene) -> None:
    scene.app.conf.task_send_sent_event = True
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = Queue("small", Exchange("small"), "small", queue_arguments=full)
    queue(scene.channel).declare()

    for n, delay in enumerate((0.1, 0.4, 1.7)):
        scene.app.control.revoke("another")
        # Each has to declare more queues, and the answers to what was sent before are read then.
        scene.send(str(n), delay, confirm_timeout=TIMEOUT)
    scene.app.send_task("shop.work", queue=queue)
    with pytest.raises(QueueFull):
        scene.app.send_task("shop.work", queue=queue)

    assert len(scene.receive("orders", 3)) == 3


# -- Celery's own delays


def test_celery_does_not_delay_by_itself_for_a_quorum_queue(
    scene: Scene, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    arguments = {"x-queue-type": "quorum"}
    exchange = Exchange("quick", "topic")
    queue = Queue("quick", exchange, "quick", queue_arguments=arguments)
    scene.app.conf.task_queues = [queue]
    due = scene.send("a", 0.5, queue="quick")

    assert scene.receive("quick")["a"] >= due
    vhost = scene.channel.connection.virtual_host
    names = {each["name"] for each in delayq_rabbitmq_server.ask("GET", f"queues/{vhost}")}
    assert not any(name.startswith("celery_delayed") for name in names)


def test_the_option_of_celery_for_confirms_does_no_harm(scene: Scene) -> None:
    scene.app.conf.broker_transport_options = {"confirm_publish": True}
    due = scene.send("a", 0.5)

    assert scene.receive("orders")["a"] >= due
