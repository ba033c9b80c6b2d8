"""How messages are read that come together, or with a confirm."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any

import pytest
from kombu import Consumer
from kombu.asynchronous.hub import Hub

from celery_delayq.integration.interrupts import postpone_in_blocks
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


#: When signals come in reads whose handler reads too, and how many come at least of ten messages.
MOMENTS = {"a whole message was parsed": 10, "a part of a frame was read": 5}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_handler_that_reads_too_takes_nothing_from_the_interrupted_read(
    delayq_rabbitmq: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    ids = [f"task-{number}" for number in range(10)]
    found: list[str] = []
    with RabbitMQScene(delayq_rabbitmq) as scene:
        for id in ids:
            scene.app.send_task("shop.work", task_id=id)
        connection, channel = scene.connection.connection, scene.connection.default_channel
        parse = connection._parse
        handled: list[bool] = []

        def handle(*_: Any) -> None:
            handled.append(False)
            channel.basic_qos(0, 1, False)  # its reply has no body, as that of a cancel
            handled[-1] = True

        def send_signal() -> None:
            if all(handled):
                signal.raise_signal(signal.SIGUSR2)

        def parse_and_signal(frame: Any) -> Any:
            is_whole, method = parse(frame)
            if is_whole:
                send_signal()
            return is_whole, method

        def signal_and_receive_part(_size: int) -> Any:
            send_signal()
            return connection.sock.recv(20)

        def take(message: Any) -> None:
            found.append(message.headers["id"])
            message.ack()

        def drained() -> bool:
            with suppress(TimeoutError):
                scene.connection.drain_events(timeout=0.1)
            return len(found) >= len(ids)

        channel.basic_qos(0, 1, False)
        with Consumer(channel, [scene.app.amqp.queues["orders"]], on_message=take):
            before = signal.signal(signal.SIGUSR2, postpone_in_blocks(handle))
            try:
                with monkeypatch.context() as patch:
                    if moment == "a whole message was parsed":
                        patch.setattr(connection, "_parse", parse_and_signal)
                    else:
                        patch.setattr(connection.transport, "_quick_recv", signal_and_receive_part)
                    wait_until(drained, TIMEOUT, lambda: f"messages: {len(found)}")
            finally:
                signal.signal(signal.SIGUSR2, before)

    assert found == ids
    assert len(handled) >= MOMENTS[moment]
    assert all(handled)


def test_a_wait_ends_when_a_handler_has_read_the_reply(
    delayq_rabbitmq: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RabbitMQScene(delayq_rabbitmq) as scene:
        connection, channel = scene.connection.connection, scene.connection.default_channel
        wait, handled = connection._wait_for_data, []

        def handle(*_: Any) -> None:
            channel.exchange_declare("amq.direct", "direct", passive=True)
            handled.append("handler")

        def wait_after_signal(*args: Any) -> None:
            if not handled:
                handled.append("signal")
                signal.raise_signal(signal.SIGUSR2)
            wait(*args)

        before = signal.signal(signal.SIGUSR2, postpone_in_blocks(handle))
        try:
            monkeypatch.setattr(connection, "_wait_for_data", wait_after_signal)
            channel.basic_qos(0, 1, False)
        finally:
            signal.signal(signal.SIGUSR2, before)

    assert handled == ["signal", "handler"]
