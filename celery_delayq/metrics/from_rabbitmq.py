"""What RabbitMQ tells: ready messages by queue, scheduled tasks of all queues, dead letters."""

from __future__ import annotations

from collections import Counter

from celery_delayq.admin.rabbitmq.broker import open_channel
from celery_delayq.app import DelayQ
from celery_delayq.metrics.sheet import Sheet
from celery_delayq.transport.amqp.dead_letters import DeadLetterStream
from celery_delayq.transport.amqp.sizes import ready_messages

#: The queue of numbers that are of all queues.
ALL_QUEUES = ""


class FromRabbitMQ:
    """Reads numbers from the app's RabbitMQ, on a new connection each time."""

    broker = "rabbitmq"

    def __init__(self, delayq: DelayQ) -> None:
        self._app = delayq.app
        self._dead: Counter[str] | None = None
        self._dead_letters = _DeadLetterCount()

    def read(self) -> bytes:
        """Return what a scrape reads, in Prometheus' text format."""
        sheet = Sheet()
        with open_channel(self._app) as channel:
            topology, connection = channel.topology, channel.connection
            delays = ready_messages(connection, topology.delay_queues())
            lost = ready_messages(connection, [topology.unroutable])
            for queue, count in ready_messages(connection, self._app.amqp.queues).items():
                sheet.put("entries", count, queue, "ready")
        sheet.put("entries", sum(delays.values()), ALL_QUEUES, "scheduled")
        sheet.put("entries", sum(lost.values()), ALL_QUEUES, "unroutable")
        if self._dead is not None:
            for queue in {*self._app.amqp.queues, *self._dead}:
                sheet.put("entries", self._dead[queue], queue, "dead")
        return sheet.text()

    def read_slowly(self) -> bytes:
        """Count the dead letters for the next scrapes; none are known after an error."""
        try:
            with open_channel(self._app) as channel:
                self._dead = self._dead_letters.count(channel.dead_letters)
        except Exception:
            self._dead = None
            raise
        return b""


class _DeadLetterCount:
    """Counts dead letters by queue: each is read once."""

    def __init__(self) -> None:
        self._queues: dict[int, str] = {}
        self._last = self._marked = -1

    def count(self, stream: DeadLetterStream) -> Counter[str]:
        view = stream.view(self._marked)
        if view.last < self._last or view.marked < self._marked:
            # These are others, declared again.
            self._queues.clear()
            self._last = self._marked = -1
            view = stream.view()
        first = self._last + 1
        while first <= view.last:
            page, first = stream.page(view, first)
            self._queues.update((each.offset, each.queue) for each in page)
        for offset in view.settled:
            self._queues.pop(offset, None)
        if self._queues:
            oldest = stream.oldest()
            self._queues = {n: queue for n, queue in self._queues.items() if n >= oldest}
        self._last, self._marked = view.last, view.marked
        return Counter(self._queues.values())
