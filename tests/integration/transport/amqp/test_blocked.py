"""RabbitMQ blocks who publishes while it is low on memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import BrokerBlocked
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp

LIMIT = "set_vm_memory_high_watermark"


@contextmanager
def low_on_memory(server: EmbeddedRabbitMQ) -> Iterator[None]:
    server.control(LIMIT, "absolute", "1MB")
    try:
        wait_until(lambda: server.ask("GET", "nodes")[0].get("mem_alarm"), 30)
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
