"""What RabbitMQ tells: ready messages by queue, scheduled tasks of all queues, dead letters."""

from __future__ import annotations

from collections import Counter

from celery_delayq.admin.rabbitmq.broker import open_channel
from celery_delayq.app import DelayQ
from celery_delayq.metrics.sheet import Sheet
from celery_delayq.transport.amqp.sizes import ready_messages

#: The queue of numbers that are of all queues.
ALL = ""


class FromRabbitMQ:
    """Reads numbers from the app's RabbitMQ, on a new connection each time."""

    broker = "rabbitmq"

    def __init__(self, delayq: DelayQ) -> None:
        self._app = delayq.app
        self._dead: Counter[str] | None = None

    def read(self) -> bytes:
        """Return what a scrape reads, in Prometheus' text format."""
        sheet = Sheet()
        with open_channel(self._app) as channel:
            topology, connection = channel.topology, channel.connection
            delays = ready_messages(connection, topology.delay_queues())
            lost = ready_messages(connection, [topology.unroutable])
            for queue, count in ready_messages(connection, self._app.amqp.queues).items():
                sheet.put("entries", count, queue, "ready")
        sheet.put("entries", sum(delays.values()), ALL, "scheduled")
        sheet.put("entries", sum(lost.values()), ALL, "unroutable")
        if self._dead is not None:
            for queue in {*self._app.amqp.queues, *self._dead}:
                sheet.put("entries", self._dead[queue], queue, "dead")
        return sheet.text()

    def read_slowly(self) -> bytes:
        """Count the dead letters for the next scrapes: that reads all of them."""
        with open_channel(self._app) as channel:
            self._dead = Counter(each.queue for each in channel.dead_letters.read())
        return b""
