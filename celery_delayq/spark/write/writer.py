"""Rows of Spark become scheduled tasks: one row, one task, however often a row is written.

The id of a task is ``<task>:<key>``, and what its row says is its version: the same row again is a
duplicate, another version of it is what ``onconflict`` decides about. So attempts that are made
again, in part or side by side, add nothing.
"""

from __future__ import annotations

import json
import logging
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from celery_delayq.errors import ConfigError
from celery_delayq.spark.access import opened
from celery_delayq.spark.arrow import arrow_schema
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.write import refused_rows as refusals
from celery_delayq.spark.write.refused_rows import Refusals
from celery_delayq.spark.write.rows import TaskRows
from celery_delayq.spark.write.sender import SUMS, Sending, app_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """What one task of Spark has written.

    Attributes
    ----------
    counts : dict[str, int]
        Rows that are new, kept, replaced, refused.
    refused : str | None
        The file with those that were refused.
    why : str
        Why the first of them was.
    """

    counts: dict[str, int] = field(default_factory=dict)
    refused: str | None = None
    why: str = ""


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
        TaskRows(options, arrow_schema(schema))
        if options.keeps_refused:
            refusals.check(options.refused)
        if options.access.app is not None:
            _check_task(options)
        self._run = uuid.uuid4().hex

    @property
    def _pending(self) -> str | None:
        """Where refused rows are until the job is committed."""
        options = self._options
        return f"{options.refused}/_pending-{self._run}" if options.keeps_refused else None

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        attempt = (
            "0-0" if context is None else f"{context.partitionId():05}-{context.taskAttemptId()}"
        )
        name = f"part-{attempt}-{uuid.uuid4().hex[:8]}.parquet"
        with (
            opened(self._options.access) as delayq,
            Refusals(self._pending, name, self._options.refused == "count") as refused,
        ):
            counts = Sending(delayq, self._options, refused).send(batches)
        return Written(counts, refused.file, refused.why)

    def _commit(self, messages: list[Any], **more: object) -> None:
        sums = _sums(messages)
        pending = self._pending
        if pending is not None:
            files = [each.refused for each in messages if each is not None and each.refused]
            refusals.keep(self._options.refused, pending, files)
        logger.info("%s: %s", self._options.task, _said(sums))
        why = [each.why for each in messages if each is not None and each.why]
        self._report({"state": "committed", **more, **sums, **({"why": why[0]} if why else {})})

    def _abort(self, messages: list[Any], **more: object) -> None:
        sums = _sums(messages)
        pending = self._pending
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


def write(rows: DataFrame, options: Mapping[str, str]) -> Mapping[str, Any]:
    """Write rows by the data source; return what its report says: the sums of what became of them.

    Parameters
    ----------
    options : Mapping[str, str]
        Those of the data source, but for ``report``.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        writer = rows.write.format("celery_delayq").mode("append")
        writer.options(**options, report=str(report)).save()
        said: Mapping[str, Any] = json.loads(report.read_text())
        return said


def _check_task(options: WriteOptions) -> None:
    """Raise :class:`ConfigError` where the app knows no task of that name."""
    with opened(options.access) as delayq:
        app = app_of(delayq)
        app.loader.import_default_modules()
        if options.task not in app.tasks:
            known = sorted(name for name in app.tasks if not name.startswith("celery."))
            raise ConfigError(
                f"task={options.task!r} is no task of the app {options.access.app}; it knows: "
                f"{', '.join(known)}"
            )


def _sums(messages: list[Any]) -> dict[str, int]:
    there = [each.counts for each in messages if each is not None]
    return {name: sum(counts[name] for counts in there) for name in SUMS}


def _said(sums: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sums.items())
