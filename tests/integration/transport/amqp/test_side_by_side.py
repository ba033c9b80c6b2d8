"""What a delay keeps of a message, and apps and settings side by side on one broker."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from kombu import Exchange, Queue

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import ConfigError, QueueFull
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import NewRabbitMQ
from tests.support import TIMEOUT
from tests.support.scene import StartWorker

LONGEST = "k" * 255
QUORUM = {"x-queue-type": "quorum"}


def test_exchanges_with_the_same_keys_do_not_mix(new_rabbitmq: NewRabbitMQ) -> None:
    scenes = {name: new_rabbitmq() for name in ("one", "two")}
    for name, scene in scenes.items():
        exchange = Exchange(name, "topic")
        Queue(f"of-{name}", exchange, LONGEST)(scene.channel).declare()
        scene.send(name, 0.3, exchange=exchange, routing_key=LONGEST)

    for name, scene in scenes.items():
        assert scene.receive(f"of-{name}").keys() == {name}
        assert scene.channel.basic_get(f"of-{name}") is None


def test_a_task_for_a_queue_with_the_longest_name_arrives(new_rabbitmq: NewRabbitMQ) -> None:
    scene = new_rabbitmq()
    scene.send("a", 0.1, queue=LONGEST)

    assert scene.receive(LONGEST).keys() == {"a"}


def test_a_delay_keeps_priorities(new_rabbitmq: NewRabbitMQ) -> None:
    scene = new_rabbitmq()
    queue = Queue("ranked", Exchange("ranked"), "ranked", max_priority=9)
    for priority in (1, 9, 5):
        scene.send(f"{priority}", 0.5, queue=queue, priority=priority)
    wait_until(
        lambda: scene.channel.queue_declare("ranked", passive=True).message_count == 3,
        TIMEOUT,
        "all are due",
    )

    found = [scene.channel.basic_get("ranked", no_ack=True) for _ in range(3)]

    assert [each.properties["priority"] for each in found] == [9, 5, 1]


@pytest.mark.parametrize(
    "other", [{"unit": 0.1}, {"queue_type": "classic"}, {"max_length": 100}], ids=str
)
def test_other_settings_need_another_prefix_and_stand_side_by_side_then(
    new_rabbitmq: NewRabbitMQ, other: dict[str, Any]
) -> None:
    # Both pass the second queue of level 1.
    new_rabbitmq().send("one", 0.575)
    with pytest.raises(ConfigError, match=r"other values of unit, .* choose another prefix"):
        new_rabbitmq(**other).send("refused", 0.575)

    scene = new_rabbitmq(prefix="second", **other)
    scene.send("two", 0.3)

    assert scene.receive("orders", 2).keys() == {"one", "two"}


def test_dead_letters_are_stored_whatever_the_age_of_the_stream_is(
    new_rabbitmq: NewRabbitMQ,
) -> None:
    for age in (60.0, 3600.0):
        stream = new_rabbitmq(dead_letters_age=age).channel.dead_letters
        stream.add("orders", f"{age}", "failed", b"{}")

    assert [each.dead_lettered.id for each in stream.read()] == ["60.0", "3600.0"]


def test_a_hop_into_a_full_delay_queue_is_made_later(new_rabbitmq: NewRabbitMQ) -> None:
    scene = new_rabbitmq(max_length=1)
    # It hops from the queue of 1.6 s into that of 1.2 s, which is full at that time.
    due = scene.send("hops", 2.8)
    fills = 0
    while time.time() < due - 0.6:
        with suppress(QueueFull):
            scene.send(f"fills-{fills}", 1.2)
            fills += 1

    came = scene.receive("orders", 1 + fills)

    assert came["hops"] >= due


@pytest.mark.parametrize(
    "conf",
    [
        {"task_default_queue_type": "quorum"},
        {"broker_native_delayed_delivery_queue_type": "classic"},
        {"task_default_exchange_type": "topic", "task_default_queue_type": "quorum"},
    ],
    ids=str,
)
def test_celery_never_delays_by_itself(
    new_rabbitmq: NewRabbitMQ,
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
    delayq_rabbitmq: str,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
    conf: dict[str, Any],
) -> None:

    settings = {"task_default_queue": "orders", "worker_detect_quorum_queues": True, **conf}
    worker = delayq_worker(
        "tests.apps.header_tasks:app",
        broker_url=delayq_rabbitmq,
        env={"APP_SETTINGS": json.dumps(settings)},
        pool="solo",
    )
    scene = new_rabbitmq()
    scene.app.conf.update(settings)
    scene.app.send_task("header.ok", countdown=0.3)

    wait_until(lambda: delayq_redis.client.llen("ran") == 1, TIMEOUT, lambda: worker.log)

    vhost = scene.channel.connection.virtual_host
    for kind in ("queues", "exchanges"):
        names = [each["name"] for each in delayq_rabbitmq_server.ask("GET", f"{kind}/{vhost}")]
        assert not [name for name in names if name.startswith("celery_delayed")]
