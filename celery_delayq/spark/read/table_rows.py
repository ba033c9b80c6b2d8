"""How data of Redis become rows of a table. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from celery_delayq.errors import RecordError
from celery_delayq.model.dead_letter import DeadLetter, DeadLettered
from celery_delayq.model.envelope import MAX_DUE_MS, Record
from celery_delayq.model.history import RunRecord
from celery_delayq.model.lookup import PAUSED_OFFSET, IndexEntry, to_bytes
from celery_delayq.model.scheduled import moment
from celery_delayq.periodic.state import Periodic
from celery_delayq.periodic.unreadable import UnreadableEntry
from celery_delayq.spark.read.messages import TIME, Messages, name_of, text_of, time_of
from celery_delayq.spark.read.tables import ARROW, TABLES

#: Columns of a page, as lists or Arrow arrays, by name.
Page = dict[str, Any]

#: The columns that a dead letter itself tells; its message tells the others.
_OF_DEAD_LETTERS = frozenset(
    {
        *("id", "died", "reason", "exception", "error", "traceback", "worker"),
        *("started", "deliveries", "retries", "due"),
    }
)

_LARGEST = {"INT": 2**31, "BIGINT": 2**63}

#: The last millisecond that a row can have; a score that was set manually may be infinite.
_END = MAX_DUE_MS


class TableRows:
    """Makes rows of one table.

    Parameters
    ----------
    names : Sequence[str]
        The columns to make.
    where : Mapping[str, Callable[[Any], bool]]
        Conditions on columns that rows must meet; all other filters are applied before.
    """

    def __init__(
        self, table: str, names: Sequence[str], where: Mapping[str, Callable[[Any], bool]] = {}
    ) -> None:
        self._kinds = TABLES[table]
        self._names = names
        self._where = where
        self._schema = pa.schema([(name, ARROW[self._kinds[name]]) for name in names])
        #: The columns that have to be made.
        self.needed = {*names, *where}
        says = {"id"} if "task_id" in self.needed else set()
        self._messages = Messages(self.needed | says)

    def batch(self, page: Page) -> pa.RecordBatch:
        """Return the rows of a page as a batch."""
        for name, is_meant in self._where.items():
            column = page[name]
            values = column.to_pylist() if isinstance(column, pa.Array) else column
            found = [place for place, value in enumerate(values) if is_meant(value)]
            if len(found) < len(values):
                rows = pa.array(found, pa.int64())  # Arrow cannot infer the type of an empty list
                kept = {*self._names, *self._where}
                page = {each: self._array(each, page[each]).take(rows) for each in kept}
        arrays = [self._array(name, page[name]) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, column: Any) -> pa.Array:
        if isinstance(column, pa.Array):
            return column
        return pa.array(column, ARROW[self._kinds[name]])

    # -- from data of Redis

    def scheduled(self, queue: str, entries: Sequence[tuple[bytes, bytes, bytes]]) -> Page:
        """Return rows of entries: name, record and score of each."""
        records = [_record(data) for _, data, _ in entries]
        page, good = self._messages.columns([each.message if each else b"" for each in records])
        there = [each if is_good else None for each, is_good in zip(records, good, strict=True)]
        scores = [int(float(score)) if score[-1:] != b"f" else _END for _, _, score in entries]
        page["queue"] = [queue] * len(entries)
        page["state"] = ["paused" if score >= PAUSED_OFFSET else "scheduled" for score in scores]
        page["due"] = _moments(
            [score - PAUSED_OFFSET if score >= PAUSED_OFFSET else score for score in scores]
        )
        page["priority"] = [each and each.priority for each in there]
        page["task"] = [each and text_of(each.task) for each in there]
        names = [name.partition(b"\0")[0] for name, _, _ in entries]
        return _with_raw(page, good, [data for _, data, _ in entries], names)

    def tracked(
        self,
        queue: str,
        state: str,
        found: Sequence[tuple[int | None, bytes]],
        index: Sequence[IndexEntry | None],
        worker: str | None,
    ) -> Page:
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
        messages = [message for _, message in found]
        page, readable = self._messages.columns(messages)
        page["queue"], page["state"] = [queue] * len(found), [state] * len(found)
        page["worker"] = [text_of(worker)] * len(found)
        page["due"] = [moment(each.due_ms) if each and each.due_ms else None for each in index]
        page["cancelled"] = [each is not None and each.cancelled for each in index]
        page["priority"] = [
            step if is_good else None for (step, _), is_good in zip(found, readable, strict=True)
        ]
        return _with_raw(page, readable, messages)

    def dead_letters(self, queue: str, found: Sequence[DeadLettered]) -> Page:
        """Return rows of dead letters."""
        page, readable = self._messages.columns([each.message for each in found])
        dead_letters = [DeadLetter.of(queue, each) for each in found]
        page["task_id"] = page.pop("id", None)
        page["queue"] = [queue] * len(found)
        for name in _OF_DEAD_LETTERS & self.needed:
            kind = self._kinds[name]
            page[name] = [_cell(kind, getattr(each, name)) for each in dead_letters]
        return _with_raw(page, readable, [each.data for each in found])

    def history(self, entries: Sequence[tuple[str, bytes]]) -> Page:
        """Return rows of the history, from pairs of offset and record."""
        return _columns([_run(offset, data) for offset, data in entries], self._kinds)

    def periodic(self, records: Sequence[tuple[str, str]]) -> Page:
        """Return rows of periodic entries, from pairs of name and record."""
        return _columns([_periodic(name, record) for name, record in records], self._kinds)


def _record(data: bytes) -> Record | None:
    try:
        return Record.unpack(data)
    except RecordError:
        return None


def _with_raw(
    page: Page,
    readable: Sequence[bool],
    data: Sequence[bytes],
    names: Sequence[bytes] | None = None,
) -> Page:
    """Add the bytes of unreadable data, and its name as the id."""
    if all(readable):
        page["raw"] = pa.nulls(len(data), pa.binary())
        return page
    pairs = zip(readable, data, strict=True)
    page["raw"] = [None if is_good else each for is_good, each in pairs]
    if names is not None and "id" in page:
        ids = zip(page["id"].to_pylist(), names, strict=True)
        page["id"] = [name_of(name) if id is None else id for id, name in ids]
    return page


def _moments(times: Sequence[int]) -> pa.Array:
    """Return ms since 1970 as times, at most the latest that Python can represent."""
    there = [min(each, _END) for each in times] if max(times, default=0) > _END else times
    return pa.array(there, pa.timestamp("ms", "UTC")).cast(TIME)


def _cell(kind: str, value: Any) -> Any:
    """Return a value as a column of a type can store it, None if it cannot."""
    if kind == "STRING":
        return text_of(value)
    if kind in _LARGEST:
        return value if type(value) is int and abs(value) < _LARGEST[kind] else None
    if kind == "TIMESTAMP_LTZ":
        return value if isinstance(value, datetime) else time_of(value)
    if kind.startswith("MAP"):
        pairs = value.items() if isinstance(value, Mapping) else ()
        return [(str(text_of(key)), text_of(each)) for key, each in pairs]
    return value


def _columns(rows: Sequence[Mapping[str, Any]], names: Collection[str]) -> Page:
    return {name: [row.get(name) for row in rows] for name in names}


def _run(offset: str, data: bytes) -> Mapping[str, Any]:
    """Return a run as a row."""
    try:
        record = RunRecord.unpack(data)
    except RecordError:
        return {"offset": offset, "raw": data}
    row = {**record._asdict(), "offset": offset}
    for name in ("due", "promoted", "started", "ended"):
        row[name] = None if row[name] is None else moment(row[name])
    return {name: _cell(kind, row.get(name)) for name, kind in TABLES["history"].items()}


def _periodic(name: str, record: str) -> Mapping[str, Any]:
    """Return a periodic entry as a row."""
    raw = None
    try:
        given = Periodic.unpack(name, record).as_dict()
    except Exception as exc:  # a schedule may be of any class
        given = UnreadableEntry.of(name, record, exc).as_dict()
        raw = to_bytes(record)
    row = {column: _cell(kind, given.get(column)) for column, kind in TABLES["periodic"].items()}
    for column, empty in (("args", "[]"), ("kwargs", "{}")):
        row[column] = row[column] or (None if raw else empty)
    return {**row, "raw": raw}
