"""Makes rows of a table from data of Redis. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from celery_delayq.errors import RecordError
from celery_delayq.model.dead_letter import DeadLetter, DeadLetterRecord
from celery_delayq.model.envelope import MAX_DUE_MS, Record, limit_of
from celery_delayq.model.history import RunRecord
from celery_delayq.model.scheduled import moment
from celery_delayq.model.script_values import PAUSED_OFFSET_MS, IndexEntry, to_bytes
from celery_delayq.periodic.entries import Periodic, UnreadableEntry
from celery_delayq.spark.read.messages import name_of, read, text_of, time_of
from celery_delayq.spark.read.tables import ARROW_TYPES, TABLE_COLUMNS

#: The values of columns by name. A missing column is null.
Row = dict[str, Any]

#: Columns that are read from the dead letter. The other columns are read from its message.
_DEAD_LETTER_COLUMNS = frozenset(
    {
        *("id", "died", "reason", "exception", "error", "traceback", "worker"),
        *("started", "deliveries", "retries", "due"),
    }
)

_INTEGER_LIMITS = {"INT": 2**31, "BIGINT": 2**63}


class TableRows:
    """Makes rows of one table.

    Parameters
    ----------
    columns : Mapping[str, str]
        The columns to make, with their SQL types.
    where : Mapping[str, Callable[[Any], bool]]
        Conditions on columns that rows must meet. All other filters were applied before.
    """

    def __init__(
        self, columns: Mapping[str, str], where: Mapping[str, Callable[[Any], bool]] = {}
    ) -> None:
        self._where = where
        self._schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in columns.items()])
        #: The columns to make.
        self.needed = {*columns, *where}
        self._with_arguments = not self.needed.isdisjoint({"args", "kwargs"})

    def batch(self, page: Sequence[Row]) -> pa.RecordBatch:
        """Return rows as a batch."""
        for name, matches in self._where.items():
            page = [row for row in page if matches(row.get(name))]
        return pa.RecordBatch.from_pylist(page, self._schema)

    # -- from data of Redis

    def scheduled(self, queue: str, entries: Sequence[tuple[bytes, bytes, bytes]]) -> list[Row]:
        """Return rows of entries: name, record and score of each."""
        return [self._scheduled(queue, *entry) for entry in entries]

    def _scheduled(self, queue: str, name: bytes, data: bytes, score: bytes) -> Row:
        # Other programs may have set an infinite score.
        ms = int(float(score)) if score[-1:] != b"f" else MAX_DUE_MS
        is_paused = ms >= PAUSED_OFFSET_MS
        row = {
            "id": name_of(name.partition(b"\0")[0]),
            "queue": queue,
            "state": "paused" if is_paused else "scheduled",
            "due": moment(ms - PAUSED_OFFSET_MS if is_paused else ms),
        }
        try:
            record = Record.unpack(data)
        except RecordError:
            return {**row, "raw": data}
        if is_paused and limit_of(record.message) is not None:
            row["state"] = "held"
        task = text_of(record.task)
        return row | self._message_columns(
            record.message, data, task=task, priority=record.priority
        )

    def tracked(
        self,
        queue: str,
        state: str,
        found: Sequence[tuple[int | None, bytes]],
        index: Sequence[IndexEntry | None],
        worker: str | None,
    ) -> list[Row]:
        """Return rows of ready or leased messages.

        Parameters
        ----------
        found : Sequence[tuple[int | None, bytes]]
            Priority step and bytes of each message.
        index : Sequence[IndexEntry | None]
            The index entry of each message.
        worker : str | None
            The id of the process that has leased them.
        """
        return [
            {
                "queue": queue,
                "state": state,
                "worker": text_of(worker),
                "due": moment(entry.due_ms) if entry and entry.due_ms else None,
                "cancelled": entry is not None and entry.cancelled,
                **self._message_columns(message, message, priority=step),
            }
            for (step, message), entry in zip(found, index, strict=True)
        ]

    def dead_letters(self, queue: str, found: Sequence[DeadLetterRecord]) -> list[Row]:
        """Return rows of dead letters."""
        return [self._dead_letter(queue, each) for each in found]

    def _dead_letter(self, queue: str, found: DeadLetterRecord) -> Row:
        row = self._message_columns(found.message, found.data)
        dead_letter, kinds = DeadLetter.of(queue, found), TABLE_COLUMNS["dead_letters"]
        own = {
            name: _cell(kinds[name], getattr(dead_letter, name))
            for name in _DEAD_LETTER_COLUMNS & self.needed
        }
        return {**row, "task_id": row.get("id"), "queue": queue, **own}

    def history(self, entries: Sequence[tuple[str, bytes]]) -> list[Row]:
        """Return rows of the history, from pairs of offset and record."""
        return [_run(offset, data) for offset, data in entries]

    def periodic(self, records: Sequence[tuple[str, str]]) -> list[Row]:
        """Return rows of periodic entries, from pairs of name and record."""
        return [_periodic(name, record) for name, record in records]

    def _message_columns(self, message: bytes, data: bytes, **more: Any) -> Row:
        """Return the columns of a message and *more*; for an unreadable message only its data."""
        row = read(message, self._with_arguments)
        return {"raw": data} if row is None else row | more


def _cell(kind: str, value: Any) -> Any:
    """Return the value for a column of a type, None if the column cannot store the value."""
    if kind == "STRING":
        return text_of(value)
    if kind in _INTEGER_LIMITS:
        return value if type(value) is int and abs(value) < _INTEGER_LIMITS[kind] else None
    if kind == "TIMESTAMP_LTZ":
        return value if isinstance(value, datetime) else time_of(value)
    if kind.startswith("MAP"):
        pairs = value.items() if isinstance(value, Mapping) else ()
        return [(str(text_of(key)), text_of(each)) for key, each in pairs]
    return value


def _run(offset: str, data: bytes) -> Row:
    """Return a run as a row."""
    try:
        record = RunRecord.unpack(data)
    except RecordError:
        return {"offset": offset, "raw": data}
    row = {**record._asdict(), "offset": offset}
    for name in ("due", "promoted", "started", "ended"):
        row[name] = None if row[name] is None else moment(row[name])
    return {name: _cell(kind, row.get(name)) for name, kind in TABLE_COLUMNS["history"].items()}


def _periodic(name: str, record: str) -> Row:
    """Return a periodic entry as a row."""
    raw = None
    try:
        given = Periodic.unpack(name, record).as_dict()
    except Exception as exc:  # a schedule of another class may raise any error
        given = UnreadableEntry(name, record, exc).as_dict()
        raw = to_bytes(record)
    row = {
        column: _cell(kind, given.get(column)) for column, kind in TABLE_COLUMNS["periodic"].items()
    }
    for column, empty in (("args", "[]"), ("kwargs", "{}")):
        row[column] = row[column] or (None if raw else empty)
    return {**row, "raw": raw}
