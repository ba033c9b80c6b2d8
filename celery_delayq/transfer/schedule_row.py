"""One scheduled entry in a file or a database. No I/O."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from celery_delayq.errors import RecordError
from celery_delayq.model.envelope import (
    MAX_DUE_MS,
    PROPERTY,
    Due,
    Entry,
    Label,
    Record,
    check_envelope,
    due_of_eta,
    is_task,
    policy_of_existing,
)
from celery_delayq.model.names import NO_RENAMES, OWN_KEY_TEXT, Renames, is_own_key
from celery_delayq.model.scheduled import Filter, moment
from celery_delayq.model.script_values import PAUSED_OFFSET_MS, ListedEntry
from celery_delayq.store.keys import Layout
from celery_delayq.transfer.export_format import RowKind, check_fields, not_json
from celery_delayq.utils import message_json

_MESSAGE_ID = re.compile(r"[!-~]{1,64}")

_MAX_STEP = 2**31 - 1


class _Object(msgspec.Struct):
    """Any JSON object."""


class _Properties(msgspec.Struct):
    """The properties that :func:`check_envelope` looks for."""

    delivery_tag: msgspec.Raw
    delivery_info: _Object


class _Headers(msgspec.Struct):
    """The headers that :func:`is_task` looks for."""

    task: msgspec.Raw
    id: msgspec.Raw


class _TaskMessage(msgspec.Struct):
    """A message of a task. To read these parts only takes half the time of reading all."""

    properties: _Properties
    headers: _Headers


_TASK_MESSAGES = msgspec.json.Decoder(_TaskMessage)


def _is_task_message(data: bytes) -> bool:
    """Return whether the bytes are surely the JSON of a task message that kombu can read."""
    try:
        _TASK_MESSAGES.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


class ScheduleRow(NamedTuple):
    """All data that Redis stores of one entry.

    *due_ms* is the real due time in ms since 1970, even if the entry is paused. *step* is the
    priority step. *message* is the text of the message for the worker.
    """

    queue: str
    id: str
    task: str
    due_ms: int
    step: int
    message_id: str
    message: str

    @classmethod
    def of_listed(cls, queue: str, listed: ListedEntry) -> ScheduleRow:
        """Return the row of an entry in Redis.

        Raises
        ------
        RecordError
            The entry cannot be read, or an import would change its bytes.
        """
        record = Record.unpack(listed.record)
        try:
            text = record.message.decode()
        except UnicodeDecodeError as exc:
            raise RecordError("the message is no UTF-8") from exc
        row = cls(
            queue, listed.id, record.task, listed.due_ms, record.priority, record.message_id, text
        ).checked()
        if row.record().pack() != listed.record:
            raise RecordError("the header of the record is spelled in another way")
        return row

    @classmethod
    def of_fields(cls, fields: Any) -> ScheduleRow:
        """Return the row of fields in a file or a database.

        Raises
        ------
        RecordError, InvalidETA
            A field is missing or wrong.
        """
        check_fields(fields, **_FIELD_TYPES)
        row = cls._make(_values_of(fields)).checked()
        due = fields.get("due")
        if due is not None and due_of_eta(due).ms != row.due_ms:
            raise RecordError(
                f"due={due!r} is not due_ms={row.due_ms}: to move an entry manually, change "
                'due_ms and leave "due" out'
            )
        return row

    def fields(self) -> dict[str, Any]:
        """Return the fields of a line."""
        return {name: getattr(self, name) for name in _LINE_FIELDS}

    def is_meant(self, filter: Filter, renames: Renames) -> bool:
        """Return whether the entry matches a filter, maybe by a former name of its task."""
        return filter.queue in (None, self.queue) and any(
            where.covers(self.task, self.due_ms, self.step) for where in filter.conditions(renames)
        )

    def checked(self) -> ScheduleRow:
        """Check that this row can become an entry; return the row.

        Raises
        ------
        RecordError
            The row is invalid.
        """
        if not self.queue:
            raise RecordError("queue: expected the name of a queue")
        if is_own_key(self.queue):
            raise RecordError(f"queue: expected {OWN_KEY_TEXT}")
        if "\0" in self.id:
            raise RecordError("id: expected no NUL")
        if not 0 <= self.due_ms < PAUSED_OFFSET_MS:
            raise RecordError(f"due_ms={self.due_ms}: expected ms since 1970")
        if not 0 <= self.step <= _MAX_STEP:
            raise RecordError(f"step={self.step}: expected a priority step")
        if not _MESSAGE_ID.fullmatch(self.message_id):
            raise RecordError(
                f"message id={self.message_id[:80]!r}: expected visible ASCII, no spaces"
            )
        try:
            "".join((self.queue, self.id, self.task)).encode()
            data = self.message.encode()
        except UnicodeEncodeError as exc:
            raise RecordError("a text is no UTF-8") from exc
        self._check_message(data)
        return self

    def _check_message(self, data: bytes) -> None:
        label = Label.of(data)
        if label is None or not _is_task_message(data):
            self._check_envelope(data, has_label=label is not None)
        if label is not None and label.name != f"{self.id}\0{self.message_id}".encode():
            raise RecordError("the label of the message has another id or message id")

    def _check_envelope(self, data: bytes, *, has_label: bool) -> None:
        try:
            message = message_json.decode_plain(data)
        except (ValueError, RecursionError) as exc:
            raise RecordError(f"the message is {not_json(exc)}") from exc
        check_envelope(message)
        if not is_task(message) or not self.message.startswith("{"):
            raise RecordError("the message is not that of a task")
        own = message["properties"].get(PROPERTY)
        if not has_label and isinstance(own, dict) and "label" in own:
            raise RecordError(
                "the JSON was rewritten: scripts cannot read the label of the message"
            )

    @property
    def size(self) -> int:
        """Approximate size in a call, in bytes."""
        return len(self.message)

    @property
    def due(self) -> str | None:
        """The due time in ISO 8601; None after the year 9999."""
        if self.due_ms > MAX_DUE_MS:
            return None
        return moment(self.due_ms).isoformat(timespec="milliseconds")

    def record(self) -> Record:
        """Return the record for the hash of entries in Redis."""
        return Record(self.step, self.message_id, self.task, self.message.encode())

    def entry(self, layout: Layout, renames: Renames = NO_RENAMES) -> Entry:
        """Return the entry to schedule. It never replaces another entry.

        A priority step that *layout* does not have becomes the next lower step. If another task
        has the unique key, maybe under another name in *renames*, the entry is not stored. A retry
        is stored without the key, as in publish.
        """
        step, message = layout.step(self.step), self.message.encode()
        label = Label.of(message)
        policy = ""
        if label is not None and label.unique != b"-":
            headers = message_json.decode_plain(message)["headers"]
            names = renames.all_names(self.task)
            policy = policy_of_existing("keep", names, is_retry=bool(headers.get("retries")))
        data = Record(step, self.message_id, self.task, message).pack()
        return Entry(self.id, Due(self.due_ms), step, data, policy)


#: The fields of a line, in order.
_LINE_FIELDS = ("queue", "id", "task", "due", "due_ms", "step", "message_id", "message")

_values_of = itemgetter(*ScheduleRow._fields)

_FIELD_TYPES = {name: int if name in ("due_ms", "step") else str for name in ScheduleRow._fields}


SCHEDULE = RowKind("celery_delayq.schedule", "entries", ScheduleRow)
