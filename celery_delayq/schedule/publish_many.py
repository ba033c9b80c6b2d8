"""``schedule_many`` on RabbitMQ: the messages of a batch share one wait for their confirms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery_delayq.errors import BrokerUnavailable
from celery_delayq.schedule.items import ItemOutcome, ItemReader, ManyReport, State
from celery_delayq.schedule.many_call import ManyCall, each_item
from celery_delayq.schedule.message_factory import send_call
from celery_delayq.schedule.message_template import Job
from celery_delayq.store.session import Session
from celery_delayq.transport.amqp.messages import Routed


class PublishRun(ManyCall):
    """One call of ``schedule_many`` on RabbitMQ.

    Celery makes each message. A lost connection ends the call. RabbitMQ does not know ids, so a
    call that continues at the position may send a batch twice.
    """

    def __init__(
        self, session: Session, on_outcome: Callable[[ItemOutcome], None] | None, batch: int
    ) -> None:
        super().__init__(session.app, on_outcome)
        self._batch = batch
        self._made: list[tuple[str, Routed]] = []

    def oldest_unanswered(self) -> int:
        return self._report.taken - len(self._made)

    def send_items(self, items: Iterator[Any], reader: ItemReader) -> ManyReport:
        """Send the messages of items; raises the errors of schedule_many."""
        with (
            self._app.connection_for_write() as connection,
            self.sending((*connection.connection_errors, BrokerUnavailable)),
        ):
            self._send(items, reader, connection.default_channel)
        return self._report

    def _send(self, items: Iterator[Any], reader: ItemReader, channel: Any) -> None:
        kept: list[Routed] = []

        def keep(message: Any, exchange: str = "", routing_key: str = "", **_: Any) -> None:
            kept.append(channel.routed(message, exchange, routing_key))

        connection_errors = (*channel.connection.client.connection_errors, BrokerUnavailable)
        channel.basic_publish = keep
        producer = self._app.amqp.Producer(channel, auto_declare=False)
        for given in each_item(items, lambda: self._flush(channel)):
            job: Job | None = None
            kept.clear()
            try:
                job = reader.read(given)
                send_call(self._app, job, reader.common, producer)
            except connection_errors:
                raise
            except Exception as exc:
                self._flush(channel)
                self.refuse(None if job is None else job.id, exc)
                continue
            self._report.taken += 1
            self._made.append((job.id, kept[-1]))
            if len(self._made) >= self._batch:
                self._flush(channel)
        self._flush(channel)

    def _flush(self, channel: Any) -> None:
        """Send the messages made so far, and report their outcomes."""
        first = self.oldest_unanswered()
        refused = channel.send([sent for _, sent in self._made])
        made, self._made = self._made, []
        for n, (id, sent) in enumerate(made):
            state: State = "ready" if sent.due_ms is None else "scheduled"
            error = refused.get(n)
            self.report_outcome(ItemOutcome(first + n, id, "full" if error else state, error))
