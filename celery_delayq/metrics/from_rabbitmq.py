"""Metrics of RabbitMQ: ready messages by queue, scheduled tasks of all queues, dead letters."""

from __future__ import annotations

from collections import Counter

from celery_delayq.admin.rabbitmq.broker import open_channel
from celery_delayq.app import DelayQ
from celery_delayq.metrics.sheet import Sheet
from celery_delayq.transport.amqp.dead_letters import DeadLetterStream
from celery_delayq.transport.amqp.sizes import ready_messages

#: The label "queue" of numbers for all queues together.
ALL_QUEUES = ""


class FromRabbitMQ:
    """Reads metrics from the app's RabbitMQ, each time on a new connection."""

    broker = "rabbitmq"

    def __init__(self, delayq: DelayQ) -> None:
        self._app = delayq.app
        self._dead_counts: Counter[str] | None = None
        self._dead_letters = _DeadLetterCount()

    def read(self) -> bytes:
        """Return the metrics of a scrape, in Prometheus' text format."""
        sheet = Sheet()
        with open_channel(self._app) as channel:
            topology, connection = channel.topology, channel.connection
            delays = ready_messages(connection, topology.delay_queues())
            unroutable = ready_messages(connection, [topology.unroutable])
            for queue, count in ready_messages(connection, self._app.amqp.queues).items():
                sheet.put("entries", count, queue, "ready")
        sheet.put("entries", sum(delays.values()), ALL_QUEUES, "scheduled")
        sheet.put("entries", sum(unroutable.values()), ALL_QUEUES, "unroutable")
        if self._dead_counts is not None:
            for queue in {*self._app.amqp.queues, *self._dead_counts}:
                sheet.put("entries", self._dead_counts[queue], queue, "dead")
        return sheet.text()

    def read_slow(self) -> bytes:
        """Count the dead letters for the next scrapes; after an error scrapes leave them out."""
        try:
            with open_channel(self._app) as channel:
                self._dead_counts = self._dead_letters.count(channel.dead_letters)
        except Exception:
            self._dead_counts = None
            raise
        return b""


class _DeadLetterCount:
    """Counts dead letters by queue. Each dead letter is read once."""

    def __init__(self) -> None:
        self._queues: dict[int, str] = {}
        self._last_offset = self._marked = -1

    def count(self, stream: DeadLetterStream) -> Counter[str]:
        view = stream.view(self._marked)
        if view.last_offset < self._last_offset or view.marked < self._marked:
            # The streams were deleted and declared again.
            self._queues.clear()
            self._last_offset = self._marked = -1
            view = stream.view()
        first = self._last_offset + 1
        while first <= view.last_offset:
            page, first = stream.page(view, first)
            self._queues.update((each.offset, each.queue) for each in page)
        for offset in view.settled:
            self._queues.pop(offset, None)
        if self._queues:
            oldest = stream.oldest()
            self._queues = {n: queue for n, queue in self._queues.items() if n >= oldest}
        self._last_offset, self._marked = view.last_offset, view.marked
        return Counter(self._queues.values())
