"""How a worker's event loop reads messages."""

from __future__ import annotations

from kombu import Consumer
from kombu.asynchronous.hub import Hub

from celery_delayq.testing import wait_until
from tests.support.rabbitmq import TIMEOUT, RabbitMQScene


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
