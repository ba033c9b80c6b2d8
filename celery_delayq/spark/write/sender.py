"""Sends the rows of one partition to Redis; runs on executors."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from celery import Celery

from celery_delayq.app import DelayQ
from celery_delayq.integration.context import to_send
from celery_delayq.model.names import renames_of
from celery_delayq.schedule.items import ItemOutcome, ItemReader, ManyFailed
from celery_delayq.schedule.message_factory import MessageFactory
from celery_delayq.schedule.message_template import Routed, Template
from celery_delayq.schedule.schedule_many import EntryMaker, ManyRun
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.write.refused_rows import Refusals, RowsRefused
from celery_delayq.spark.write.rows import TaskRow, TaskRows

#: Outcomes of rows, by the state of their items.
_OUTCOMES = {
    "scheduled": "new",
    "ready": "new",
    "replaced": "replaced",
    "duplicate": "kept",
    "kept": "kept",
    "superseded": "kept",
}

#: The outcomes of rows.
OUTCOME_NAMES = ("new", "kept", "replaced", "refused")


class _SentRows(NamedTuple):
    """Sent rows of a batch, and the index of the first row."""

    first: int
    batch: pa.RecordBatch
    places: list[int]


class RowSender:
    """Sends the rows of one partition.

    If Redis already has most rows, the sender first asks Redis which rows it has. Making messages
    is most of the work, and known rows need no message.
    """

    def __init__(self, delayq: DelayQ, options: WriteOptions, refused: Refusals) -> None:
        self._delayq = delayq
        self._app = delayq.app
        self._options = options
        self._refused = refused
        self._queue = queue_of(self._app, options)
        self._kept = 0
        #: The last sent rows; Redis has not answered for some of them.
        self._sent: deque[_SentRows] = deque()
        self._number = 0
        self._refused_outcomes: list[ItemOutcome] = []
        self._asks_first = True

    def send(self, batches: Iterator[pa.RecordBatch]) -> dict[str, int]:
        """Send all rows; return the number of rows by outcome.

        Raises
        ------
        RowsRefused
            Rows were refused, and the job has to fail.
        ManyFailed
            Redis could not be reached.
        """
        options = self._options
        common = {
            "on_conflict": options.onconflict,
            "unique_scope": "done",
            "queue": options.queue,
            "priority": options.priority,
        }
        given = {name: value for name, value in common.items() if value is not None}
        reader = ItemReader(self._app, options.task, given)
        maker = _MessageMaker(self._app, reader, MessageFactory(self._app, reader.common))
        note = self._refused_outcomes.append
        run = ManyRun(self._delayq.session, note, options.batchsize, errors_only=True)
        try:
            report = run.send_items(self._unknown_rows(batches, maker, run), maker)
        except ManyFailed as failed:
            if isinstance(failed.__cause__, RowsRefused):
                raise failed.__cause__ from None
            raise
        self._add_refused_rows()
        counts = Counter({"kept": self._kept, "refused": self._refused.count})
        for state, count in report.counts.items():
            if state in _OUTCOMES:
                counts[_OUTCOMES[state]] += count
        return {name: counts[name] for name in OUTCOME_NAMES}

    def _unknown_rows(
        self, batches: Iterator[pa.RecordBatch], maker: _MessageMaker, run: ManyRun
    ) -> Iterator[TaskRow]:
        size, rate = self._options.batchsize, self._options.ratelimit
        if rate is not None:  # small batches: no burst
            size = max(1, min(size, int(rate)))
        for full_batch in batches:
            rows = maker.rows = maker.rows or TaskRows(self._options, full_batch.schema)
            for start in range(0, full_batch.num_rows, size):
                began, batch = time.monotonic(), full_batch.slice(start, size)
                read = [*rows.read(batch)]
                self._refused.add(batch, {row.place: row.error for row in read if row.error})
                unknown = self._unknown([row for row in read if not row.error])
                self._note(batch, [row.place for row in unknown])
                yield from unknown
                self._add_refused_rows()
                self._forget_answered(run.oldest_unanswered())
                # The sender does not catch up after a delay: that would exceed the rate.
                if rate is not None:
                    time.sleep(max(0.0, began + batch.num_rows / rate - time.monotonic()))

    def _unknown(self, rows: list[TaskRow]) -> list[TaskRow]:
        """Return the rows that Redis does not have; all rows if asking Redis costs more time."""
        if not self._asks_first or self._queue is None or not rows:
            return rows
        queue = self._queue
        codes = self._delayq.session.ask(
            lambda stores: stores.of(queue).control.exists(
                queue, [(row.id, row.message_id) for row in rows]
            )
        )
        unknown = [row for row, code in zip(rows, codes, strict=True) if code != "d"]
        self._kept += len(rows) - len(unknown)
        self._asks_first = 2 * len(unknown) <= len(rows)
        return unknown

    def _note(self, batch: pa.RecordBatch, places: list[int]) -> None:
        """Keep rows until Redis has answered for them."""
        if 2 * len(places) < batch.num_rows:  # a slice would keep the full batch in memory
            batch, places = batch.take(pa.array(places, pa.int64())), [*range(len(places))]
        if places:
            self._sent.append(_SentRows(self._number, batch, places))
        self._number += len(places)

    def _forget_answered(self, oldest_unanswered: int) -> None:
        """Forget rows before the index *oldest_unanswered*."""
        while self._sent and self._sent[0].first + len(self._sent[0].places) <= oldest_unanswered:
            self._sent.popleft()

    def _add_refused_rows(self) -> None:
        """Add the rows that Redis has refused, after all answers of a request were read."""
        while self._refused_outcomes:
            outcome = self._refused_outcomes.pop(0)
            sent = next(each for each in reversed(self._sent) if each.first <= outcome.index)
            place = sent.places[outcome.index - sent.first]
            self._refused.add(sent.batch, {place: str(outcome.error)})


class _MessageMaker(EntryMaker):
    """Makes messages from rows: most by one template, the others as ``schedule_many`` does."""

    def __init__(self, app: Celery, reader: ItemReader, maker: MessageFactory) -> None:
        super().__init__(reader, maker)
        #: A template cannot be used if each message carries a context.
        self._may_fill = to_send(app) is None
        self._template: Template | None = None
        self.rows: TaskRows | None = None

    def __call__(self, given: TaskRow) -> Routed:
        rows, self.id = self.rows, given.id
        if rows is None:
            raise AssertionError("rows are read before they are made")
        if self._template is not None:
            return self._template.fill_encoded(rows.encoded(given))
        job = self.reader.read(rows.item(given))
        routed = self.maker.make(job)
        if self._may_fill and job.eta is not None:
            self._template = self.maker.template(job)
        return routed


def queue_of(app: Celery, options: WriteOptions) -> str | None:
    """Return the queue of all rows, None if an exchange chooses the queue."""
    if options.queue is not None:
        return options.queue
    queue = app.amqp.router.route({}, renames_of(app).of(options.task)).get("queue")
    return None if queue is None else str(queue.name)
