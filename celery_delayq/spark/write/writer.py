"""The writers of the data source: a row is one task, even if Spark writes the row several times.

The id of a task is ``<task>:<key>``, and the content of its row is its version. The same version
again is a duplicate; ``onconflict`` decides about another version. So repeated and parallel
attempts of Spark add nothing.
"""

from __future__ import annotations

import json
import logging
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from celery_delayq.errors import ConfigError
from celery_delayq.spark.access import open_client
from celery_delayq.spark.arrow import arrow_schema
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.write import refused_rows as refusals
from celery_delayq.spark.write.refused_rows import Refusals
from celery_delayq.spark.write.rows import TaskRows
from celery_delayq.spark.write.sender import OUTCOME_NAMES, RowSender

logger = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """The result of one Spark task.

    Attributes
    ----------
    counts : dict[str, int]
        Numbers of new, kept, replaced and refused rows.
    refused : str | None
        The file with refused rows.
    why : str
        The reason of the first refused row.
    """

    counts: dict[str, int] = field(default_factory=dict)
    refused: str | None = None
    why: str = ""


class _RowWriter:
    """The shared part of the writers of batches and streams. Executors get a copy.

    Raises
    ------
    ConfigError
        A column is missing or of another type, or the app does not know the task.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                "mode 'overwrite' would remove scheduled tasks: use mode 'append', with "
                "onconflict='replace' for changed rows"
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
        """The folder of refused rows until the job is committed."""
        options = self._options
        return f"{options.refused}/_pending-{self._run}" if options.keeps_refused else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Schedule the rows of one partition; runs on an executor."""
        context = TaskContext.get()
        attempt = (
            "0-0" if context is None else f"{context.partitionId():05}-{context.taskAttemptId()}"
        )
        name = f"part-{attempt}-{uuid.uuid4().hex[:8]}.parquet"
        with (
            open_client(self._options.access) as delayq,
            Refusals(self._pending, name, self._options.refused == "count") as refused,
        ):
            counts = RowSender(delayq, self._options, refused).send(iterator)
        return Written(counts, refused.file, refused.why)

    def commit(self, messages: list[Any], batchId: int | None = None) -> None:  # noqa: N803
        """Keep refused rows, and report the sums; of a stream the sums of a batch."""
        pending, written = self._pending, [each for each in messages if each is not None]
        if pending is not None:
            files = [each.refused for each in written if each.refused]
            refusals.keep(self._options.refused, pending, files)
        sums = _sums(written)
        logger.info("write committed: task=%s %s", self._options.task, _format_sums(sums))
        why = next((each.why for each in written if each.why), None)
        self._report("committed", batchId, {**sums, **({"why": why} if why else {})})

    def abort(self, messages: list[Any], batchId: int | None = None) -> None:  # noqa: N803
        """Report the sums of a failed job; of a stream the sums of a failed batch."""
        pending = self._pending
        if pending is not None:
            refusals.drop(pending)
        sums = _sums([each for each in messages if each is not None])
        logger.warning(
            "write failed, written tasks stay and running it again adds the rest: task=%s %s",
            self._options.task,
            _format_sums(sums),
        )
        self._report("aborted", batchId, sums)

    def _report(self, state: str, batch: int | None, sums: Mapping[str, object]) -> None:
        if self._options.report is not None:
            path = Path(self._options.report)
            path.parent.mkdir(parents=True, exist_ok=True)
            more = {} if batch is None else {"batch": batch}
            report = {"task": self._options.task, "state": state, **more, **sums}
            path.write_text(json.dumps(report) + "\n")


class Writer(_RowWriter, DataSourceArrowWriter):
    """Writes a data frame."""


class StreamWriter(_RowWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a stream. A batch that is written again adds nothing."""


def write(rows: DataFrame, options: Mapping[str, str]) -> Mapping[str, Any]:
    """Write rows by the data source, and return its report: the sums by outcome.

    Parameters
    ----------
    options : Mapping[str, str]
        Options of the data source, except ``report``.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        writer = rows.write.format("celery_delayq").mode("append")
        writer.options(**options, report=str(report)).save()
        sums: Mapping[str, Any] = json.loads(report.read_text())
        return sums


def _check_task(options: WriteOptions) -> None:
    """Raise :class:`ConfigError` if the app has no task of that name or former name."""
    with open_client(options.access) as delayq:
        app = delayq.app
        app.loader.import_default_modules()
        if delayq.session.renames.of(options.task) not in app.tasks:
            known = sorted(name for name in app.tasks if not name.startswith("celery."))
            raise ConfigError(
                f"task={options.task!r} is no task of the app {options.access.app}; it knows: "
                f"{', '.join(known)}"
            )


def _sums(written: list[Written]) -> dict[str, int]:
    return {name: sum(each.counts[name] for each in written) for name in OUTCOME_NAMES}


def _format_sums(sums: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in sums.items())
