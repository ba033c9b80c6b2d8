"""An app on RabbitMQ, and a consumer that is not a Celery worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery import Celery
from kombu import Consumer, Queue

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT


class RabbitMQScene:
    """An app, its connection, and a consumer that is not a worker."""

    def __init__(self, url: str, settings: Mapping[str, Any] | None = None, **conf: Any) -> None:
        self.app = Celery("shop", broker=url, set_as_current=False)
        self.app.conf.task_default_queue = "orders"
        self.app.conf.broker_transport_options = {"delayq": dict(settings or {})}
        self.app.conf.update(conf)
        DelayQ(self.app)
        self.connection = self.app.connection_for_read()

    def __enter__(self) -> RabbitMQScene:
        return self

    def __exit__(self, *_: object) -> None:
        DelayQ.of(self.app).close()
        self.connection.release()
        self.app.close()

    @property
    def channel(self) -> Any:
        return self.connection.default_channel

    def send(self, id: str, countdown: float = 0.3, **options: Any) -> float:
        """Send a task; return its due."""
        due = time.time() + countdown
        self.app.send_task("shop.work", (id,), task_id=id, countdown=countdown, **options)
        return due

    def receive(self, queue: str, number: int = 1) -> dict[str, float]:
        """Return by id when each of *number* tasks came."""
        found: dict[str, float] = {}

        def note(message: Any) -> None:
            found[message.headers["id"]] = time.time()
            message.ack()

        def drained() -> bool:
            with suppress(TimeoutError):
                self.connection.drain_events(timeout=0.1)
            return len(found) >= number

        declared = Queue(queue, no_declare=True)
        with Consumer(self.connection, [declared], on_message=note, auto_declare=False):
            wait_until(drained, TIMEOUT, "messages")
        return found
