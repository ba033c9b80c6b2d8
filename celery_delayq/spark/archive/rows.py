"""Rows of an archive: the columns of the data source, and the bytes for a restore.

A digest identifies each row. This module runs on executors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_delayq.errors import RecordError
from celery_delayq.model.dead_letter import DeadLetter, DeadLetterRecord
from celery_delayq.model.envelope import MAX_DUE_MS
from celery_delayq.model.history import place_of
from celery_delayq.model.scheduled import moment
from celery_delayq.model.script_values import ListedEntry, to_bytes, to_text
from celery_delayq.spark.archive.commits import source_of
from celery_delayq.spark.read.messages import name_of, text_of
from celery_delayq.spark.read.table_rows import Row, TableRows
from celery_delayq.spark.read.tables import TABLE_COLUMNS, with_types
from celery_delayq.store.dead_letters import digest_of
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.schedule_row import ScheduleRow

#: The partition column of each table.
PARTITION_COLUMNS = {"history": "day", "dead_letters": "day", "scheduled": "snapshot"}

#: The columns of each table with their SQL types. `data` is a full dead letter; an entry has the
#: fields of :class:`~celery_delayq.transfer.schedule_row.ScheduleRow`.
ARCHIVE_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "history": with_types("source", *TABLE_COLUMNS["history"], "day"),
    "dead_letters": with_types("digest", "source", *TABLE_COLUMNS["dead_letters"], "data", "day"),
    "scheduled": with_types(
        *("digest", "source", "queue", "id", "duplicate", "task", "due", "due_ms", "step"),
        *("message_id", "message", "problem", "raw", "snapshot"),
    ),
}

#: Columns that identify a dead letter in Redis; the time of death is in ms.
PLACE_COLUMNS = with_types("digest", "queue", "id", "died_ms", "data_digest")

#: The day of dead letters without a time of death.
UNKNOWN_DAY = date(1970, 1, 1)


class ArchiveRows(TableRows):
    """Makes rows of an archive.

    Parameters
    ----------
    columns : Mapping[str, str]
        Those of a table in :data:`ARCHIVE_COLUMNS`, or :data:`PLACE_COLUMNS`.
    constant : Mapping[str, str]
        Columns with the same value in all rows. A column that *columns* lacks is ignored.
    """

    def __init__(self, columns: Mapping[str, str], constant: Mapping[str, str]) -> None:
        super().__init__(columns)
        self._constant = constant

    def batch(self, page: Sequence[Row]) -> pa.RecordBatch:
        """Return rows as a batch."""
        return super().batch([{**row, **self._constant} for row in page])

    def scheduled(self, queue: str, entries: Sequence[tuple[bytes, bytes, bytes]]) -> list[Row]:
        """Return rows of entries: name, record and score of each."""
        return [_entry(queue, *each) for each in entries]

    def dead_letters(self, queue: str, found: Sequence[DeadLetterRecord]) -> list[Row]:
        """Return rows of dead letters; for removal only those whose id can be stored exactly."""
        if "died_ms" in self.needed:
            found = [each for each in found if text_of(each.id) == each.id]
        rows = super().dead_letters(queue, found)
        for row, each in zip(rows, found, strict=True):
            dead_letter = DeadLetter.of(queue, each)
            row |= {
                "digest": DeadLetterRow.of(dead_letter).digest,
                "died_ms": each.died_ms,
                "data": each.data,
                "data_digest": digest_of(each.data),
                "day": dead_letter.died.date(),
            }
        return rows

    def history(self, entries: Sequence[tuple[str, bytes]]) -> list[Row]:
        """Return rows of the history, from pairs of offset and record."""
        rows = super().history(entries)
        for row, (offset, _) in zip(rows, entries, strict=True):
            row["day"] = (row.get("ended") or moment(place_of(offset)[0])).date()
        return rows


def _entry(queue: str, name: bytes, record: bytes, score: bytes) -> Row:
    """Return a row of an entry of the schedule; for an unreadable one its bytes and the reason."""
    duplicate = b"\0" in name
    try:
        row = ScheduleRow.of_listed(queue, ListedEntry(to_text(name), int(float(score)), record))
    except (RecordError, ValueError, OverflowError) as exc:
        digest = _digest(queue, name, record)
        id = name_of(name.partition(b"\0")[0])
        problem = {"problem": text_of(str(exc)), "raw": record}
        return {"digest": digest, "queue": queue, "id": id, "duplicate": duplicate, **problem}
    due = moment(row.due_ms) if row.due_ms <= MAX_DUE_MS else None
    digest = _digest(queue, to_bytes(row.id), row.message_id.encode())
    return {**row._asdict(), "digest": digest, "duplicate": duplicate, "due": due}


def died_since(day: date) -> Column:
    """Return the condition for dead letters that died on a day or later, or at an unknown time."""
    return (F.col("day") >= F.lit(day)) | (F.col("day") == F.lit(UNKNOWN_DAY))


def of_source(rows: DataFrame, wanted: str | None, own: str | None = None) -> DataFrame:
    """Return the rows of one broker in an archive; raises the errors of :func:`source_of`."""
    found = [source for (source,) in rows.select("source").distinct().collect()]
    if not found:
        return rows
    return rows.where(F.col("source") == F.lit(source_of(found, wanted, own)))


def _digest(queue: str, *parts: bytes) -> str:
    """Return a digest of several byte strings, which depends on where each string ends."""
    found = hashlib.sha256()
    for part in (to_bytes(queue), *parts):
        found.update(b"%d " % len(part) + part)
    return found.hexdigest()
