"""Rows of Spark become scheduled tasks: one row, one task, however often a row is written.

The id of a task is ``<task>:<key>``, and what its row says is its version: the same row again is a
duplicate, another version of it is what ``onconflict`` decides about. So attempts that are made
again, in part or side by side, add nothing.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from celery_delayq.app import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.items import Item, ItemOutcome
from celery_delayq.spark import refusals
from celery_delayq.spark.columns import RowItem, Rows
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.refusals import Refusals

logger = logging.getLogger(__name__)

#: What is said of rows, by the outcome of their items.
_BECAME = {
    "scheduled": "new",
    "ready": "new",
    "replaced": "replaced",
    "duplicate": "kept",
    "kept": "kept",
    "superseded": "kept",
    "conflict": "refused",
    "full": "refused",
    "refused": "refused",
}

_SUMS = ("new", "kept", "replaced", "refused")


@dataclass
class Written(WriterCommitMessage):
    """What one task of Spark has written.

    Attributes
    ----------
    counts : dict[str, int]
        Rows that are new, kept, replaced, refused.
    refused : str | None
        The file with those that were refused.
    """

    counts: dict[str, int] = field(default_factory=dict)
    refused: str | None = None


class _Writing:
    """What the writers of batches and of streams have in common; goes to executors.

    Raises
    ------
    ConfigError
        A column is missing or of another type, or the app does not know the task.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                "mode 'overwrite' would remove what is scheduled: use mode 'append', with "
                "onconflict='replace' for rows that have changed"
            )
        self._options = options
        Rows(options, to_arrow_schema(schema, timezone="UTC"))
        if options.access.app is not None:
            _check_task(options)
        self._run = uuid.uuid4().hex

    def _pending(self, suffix: object = "") -> str | None:
        """Where refused rows are until the job is committed."""
        folder = self._options.refused
        return None if folder == "fail" else f"{folder}/_pending-{self._run}{suffix}"

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        attempt = (
            "0-0" if context is None else f"{context.partitionId():05}-{context.taskAttemptId()}"
        )
        name = f"part-{attempt}-{uuid.uuid4().hex[:8]}.parquet"
        with (
            closing(self._options.access.open()) as delayq,
            Refusals(self._pending(), name) as refused,
        ):
            counts = Sending(delayq, self._options, refused).send(batches)
        return Written(counts, refused.file)

    def _commit(self, messages: list[Any], **more: object) -> None:
        sums = _sums(messages)
        pending = self._pending()
        if pending is not None:
            files = [each.refused for each in messages if each is not None and each.refused]
            refusals.keep(self._options.refused, pending, files)
        logger.info("%s: %s", self._options.task, _said(sums))
        self._report({"state": "committed", **more, **sums})

    def _abort(self, messages: list[Any], **more: object) -> None:
        sums = _sums(messages)
        pending = self._pending()
        if pending is not None:
            refusals.drop(pending)
        logger.warning(
            "%s: the job failed. At least this stands: %s. Nothing is taken back; running it again "
            "adds only what is missing",
            self._options.task,
            _said(sums),
        )
        self._report({"state": "aborted", **more, **sums})

    def _report(self, said: Mapping[str, object]) -> None:
        if self._options.report is not None:
            path = Path(self._options.report)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"task": self._options.task, **said}) + "\n")


class Writer(_Writing, DataSourceArrowWriter):
    """Writes a data frame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Schedule the rows of one partition; runs on an executor."""
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell what became of all rows; runs on the driver."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell what stands of a job that failed."""
        self._abort(messages)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes each batch of a stream; one that is written again adds nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Schedule the rows of one partition; runs on an executor."""
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Tell what became of the rows of a batch."""
        self._commit(messages, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Tell what stands of a batch that failed."""
        self._abort(messages, batch=batchId)


class Sending:
    """Sends the rows of one partition.

    Where most rows are known already, Redis is asked which are before their messages are made:
    that is most of the work.
    """

    def __init__(self, delayq: DelayQ, options: WriteOptions, refused: Refusals) -> None:
        self._delayq = delayq
        self._options = options
        self._refused = refused
        self._queue = _queue_of(delayq, options)
        self._counts: Counter[str] = Counter()
        #: By their index, rows whose items have no outcome yet.
        self._open: dict[int, tuple[pa.RecordBatch, int]] = {}
        self._late: list[tuple[pa.RecordBatch, int, str]] = []
        self._asking = True

    def send(self, batches: Iterator[pa.RecordBatch]) -> dict[str, int]:
        """Send all rows; return how many became what.

        Raises
        ------
        RowsRefused
            Some were refused, and the job is to fail.
        ManyFailed
            Redis stayed away.
        """
        options = self._options
        for_all: dict[str, Any] = {"on_conflict": options.onconflict, "unique_scope": "done"}
        if options.queue is not None:
            for_all["queue"] = options.queue
        if options.priority is not None:
            for_all["priority"] = options.priority
        self._delayq.schedule_many(
            self._items(batches),
            task=options.task,
            on_outcome=self._on_outcome,
            batch=options.batchsize,
            **for_all,
        )
        self._refuse_late()
        self._counts["refused"] = self._refused.count
        return {name: self._counts[name] for name in _SUMS}

    def _items(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Item]:
        began, taken, index = time.monotonic(), 0, 0
        rows: Rows | None = None
        for whole in batches:
            rows = rows or Rows(self._options, whole.schema)
            for start in range(0, whole.num_rows, self._options.batchsize):
                batch = whole.slice(start, self._options.batchsize)
                read = [*rows.items(batch)]
                self._refused.add(batch, {each.row: each.error for each in read if each.error})
                for row, item in self._unknown([each for each in read if each.item is not None]):
                    self._open[index] = batch, row
                    index += 1
                    yield item
                self._refuse_late()
                taken += batch.num_rows
                if self._options.ratelimit is not None:
                    time.sleep(max(0.0, began + taken / self._options.ratelimit - time.monotonic()))

    def _unknown(self, read: list[RowItem]) -> Iterator[tuple[int, Item]]:
        """Yield what Redis does not have yet, as far as it is worth while to ask."""
        letters = "-" * len(read)
        before = self._counts["kept"]
        if self._asking and self._queue is not None and read:
            queue = self._queue
            asked = [(each.item.id or "", each.nonce) for each in read if each.item is not None]
            letters = self._delayq._ask(lambda store: store.control.known(queue, asked))
        known = "do" if self._options.onconflict == "keep" else "d"
        for each, letter in zip(read, letters, strict=True):
            if letter in known:
                self._counts["kept"] += 1
            elif each.item is not None:
                yield each.row, each.item
        self._asking = 2 * (self._counts["kept"] - before) >= len(read)

    def _on_outcome(self, outcome: ItemOutcome) -> None:
        became = _BECAME[outcome.state]
        batch, row = self._open.pop(outcome.index)
        if became == "refused":
            self._late.append((batch, row, str(outcome.error)))
        else:
            self._counts[became] += 1

    def _refuse_late(self) -> None:
        """Keep rows that Redis has refused; not in the midst of its answers."""
        late, self._late = self._late, []
        for batch, row, reason in late:
            self._refused.add(batch, {row: reason})


def _queue_of(delayq: DelayQ, options: WriteOptions) -> str | None:
    """Return the one queue to which all go; None where an exchange decides."""
    if options.queue is not None:
        return options.queue
    app = delayq.app
    if app is None:
        raise AssertionError("a client always has an app")
    queue = app.amqp.router.route({}, options.task).get("queue")
    return None if queue is None else str(queue.name)


def _check_task(options: WriteOptions) -> None:
    """Raise :class:`ConfigError` where the app knows no task of that name."""
    with closing(options.access.open()) as delayq:
        app = delayq.app
        if app is None:
            raise AssertionError("a client always has an app")
        app.loader.import_default_modules()
        if options.task not in app.tasks:
            known = sorted(name for name in app.tasks if not name.startswith("celery."))
            raise ConfigError(
                f"task={options.task!r} is no task of the app {options.access.app}; it knows: "
                f"{', '.join(known)}"
            )


def _sums(messages: list[Any]) -> dict[str, int]:
    there = [each.counts for each in messages if each is not None]
    return {name: sum(counts[name] for counts in there) for name in _SUMS}


def _said(sums: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sums.items())
