"""Send the rows of one partition to Redis; runs on executors."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from celery import Celery

from celery_delayq.app import DelayQ
from celery_delayq.integration.context import to_send
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


class _Taken(NamedTuple):
    """Rows of a batch that were sent, and the index of the first one."""

    first: int
    batch: pa.RecordBatch
    places: list[int]


class Sending:
    """Sends the rows of one partition.

    If most rows are known already, Redis is asked first which ones: making messages is most of
    the work.
    """

    def __init__(self, delayq: DelayQ, options: WriteOptions, refused: Refusals) -> None:
        self._delayq = delayq
        self._app = delayq.app
        self._options = options
        self._refused = refused
        self._queue = queue_of(self._app, options)
        self._kept = 0
        #: The last rows, some of which have no answer yet.
        self._taken: deque[_Taken] = deque()
        self._number = 0
        self._late: list[ItemOutcome] = []
        self._asking = True

    def send(self, batches: Iterator[pa.RecordBatch]) -> dict[str, int]:
        """Send all rows; return how many became what.

        Raises
        ------
        RowsRefused
            Rows were refused, and the job has to fail.
        ManyFailed
            Redis could not be reached.
        """
        options = self._options
        for_all = {
            "on_conflict": options.onconflict,
            "unique_scope": "done",
            "queue": options.queue,
            "priority": options.priority,
        }
        given = {name: value for name, value in for_all.items() if value is not None}
        reader = ItemReader(self._app, options.task, given)
        making = _MessageMaker(self._app, reader, MessageFactory(self._app, reader.common))
        run = ManyRun(self._delayq.session, self._late.append, options.batchsize, errors_only=True)
        try:
            report = run.send_items(self._unknown_rows(batches, making, run), making)
        except ManyFailed as failed:
            if isinstance(failed.__cause__, RowsRefused):
                raise failed.__cause__ from None
            raise
        self._refuse_late()
        counts = Counter({"kept": self._kept, "refused": self._refused.count})
        for state, count in report.counts.items():
            if state in _OUTCOMES:
                counts[_OUTCOMES[state]] += count
        return {name: counts[name] for name in OUTCOME_NAMES}

    def _unknown_rows(
        self, batches: Iterator[pa.RecordBatch], making: _MessageMaker, run: ManyRun
    ) -> Iterator[TaskRow]:
        size, rate = self._options.batchsize, self._options.ratelimit
        if rate is not None:  # small batches: no burst
            size = max(1, min(size, int(rate)))
        for whole in batches:
            rows = making.rows = making.rows or TaskRows(self._options, whole.schema)
            for start in range(0, whole.num_rows, size):
                began, batch = time.monotonic(), whole.slice(start, size)
                read = [*rows.read(batch)]
                self._refused.add(batch, {row.place: row.error for row in read if row.error})
                unknown = self._unknown([row for row in read if not row.error])
                self._note(batch, [row.place for row in unknown])
                yield from unknown
                self._refuse_late()
                self._forget(run.oldest_unanswered())
                # Lost time is not caught up: that would exceed the rate.
                if rate is not None:
                    time.sleep(max(0.0, began + batch.num_rows / rate - time.monotonic()))

    def _unknown(self, rows: list[TaskRow]) -> list[TaskRow]:
        """Return the rows that Redis does not have; all of them if asking does not pay."""
        if not self._asking or self._queue is None or not rows:
            return rows
        queue = self._queue
        codes = self._delayq.session.ask(
            lambda stores: stores.of(queue).control.exists(
                queue, [(row.id, row.message_id) for row in rows]
            )
        )
        unknown = [row for row, code in zip(rows, codes, strict=True) if code != "d"]
        self._kept += len(rows) - len(unknown)
        self._asking = 2 * len(unknown) <= len(rows)
        return unknown

    def _note(self, batch: pa.RecordBatch, places: list[int]) -> None:
        """Remember rows until they are answered."""
        if 2 * len(places) < batch.num_rows:  # a slice would keep the whole batch in memory
            batch, places = batch.take(pa.array(places, pa.int64())), [*range(len(places))]
        if places:
            self._taken.append(_Taken(self._number, batch, places))
        self._number += len(places)

    def _forget(self, oldest_unanswered: int) -> None:
        """Forget rows before the oldest one that is not answered."""
        while (
            self._taken and self._taken[0].first + len(self._taken[0].places) <= oldest_unanswered
        ):
            self._taken.popleft()

    def _refuse_late(self) -> None:
        """Keep rows that Redis has refused, after all answers of a request were read."""
        while self._late:
            outcome = self._late.pop(0)
            taken = next(each for each in reversed(self._taken) if each.first <= outcome.index)
            place = taken.places[outcome.index - taken.first]
            self._refused.add(taken.batch, {place: str(outcome.error)})


class _MessageMaker(EntryMaker):
    """Makes messages of rows: most by one template, the others as ``schedule_many`` does."""

    def __init__(self, app: Celery, reader: ItemReader, maker: MessageFactory) -> None:
        super().__init__(reader, maker)
        #: A template cannot be used where each message carries a context.
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
    """Return the one queue of all rows, None if an exchange decides."""
    if options.queue is not None:
        return options.queue
    queue = app.amqp.router.route({}, options.task).get("queue")
    return None if queue is None else str(queue.name)
