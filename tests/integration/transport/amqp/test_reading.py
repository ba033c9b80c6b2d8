"""How messages are read that come together, or with a confirm."""

from __future__ import annotations

from contextlib import suppress

from kombu import Consumer
from kombu.asynchronous.hub import Hub

from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.rabbitmq import RabbitMQScene


def test_messages_that_were_read_together_are_all_handed_out(delayq_rabbitmq: str) -> None:
    ids = [f"task-{number}" for number in range(100)]
    found: list[str] = []
    with RabbitMQScene(delayq_rabbitmq) as scene:
        for id in ids:
            scene.app.send_task("shop.work", task_id=id)
        hub = Hub()
        scene.connection.register_with_event_loop(hub)
        queue = scene.app.amqp.queues["orders"]

        # None is acknowledged, so RabbitMQ sends nothing that would wake the loop.
        with Consumer(
            scene.connection,
            [queue],
            on_message=lambda message: found.append(message.headers["id"]),
        ):
            wait_until(lambda: hub.run_once() or len(found) == len(ids), TIMEOUT, "messages")
        hub.close()

    assert found == ids


def test_messages_that_come_with_a_confirm_are_handed_out(delayq_rabbitmq: str) -> None:
    ids = [f"task-{number}" for number in range(50)]
    found: list[str] = []

    with RabbitMQScene(delayq_rabbitmq) as scene:
        producer = scene.app.amqp.Producer(scene.connection)

        def drained() -> bool:
            with suppress(TimeoutError):
                scene.connection.drain_events(timeout=0.1)
            return len(found) >= len(ids)

        with Consumer(
            scene.connection,
            [scene.app.amqp.queues["orders"]],
            on_message=lambda message: found.append(message.headers["id"]),
        ):
            for id in ids:
                scene.app.send_task("shop.work", task_id=id, producer=producer)
            wait_until(drained, TIMEOUT, "messages")

    assert found == ids
