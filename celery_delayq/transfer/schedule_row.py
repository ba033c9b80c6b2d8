"""One entry as it stands outside Redis, in a file or a database. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from celery_delayq.errors import RecordError, TransferError
from celery_delayq.model.envelope import (
    MAX_DUE_MS,
    PROPERTY,
    Due,
    Entry,
    Record,
    check_envelope,
    due_of_eta,
    is_task,
)
from celery_delayq.model.lookup import PAUSED_OFFSET, Listed
from celery_delayq.model.names import NOT_OWN_KEY, is_own_key
from celery_delayq.model.scheduled import moment
from celery_delayq.store.keys import Layout

#: The version of the format, of files and of databases. Readers know all versions up to theirs.
VERSION = 1

#: As scripts read it, see ``include/label.lua``.
_LABEL = re.compile(r'{"properties": {"delayq": {"label": "(\S*) (\S+) \d+ (\S+)"', re.ASCII)
_MESSAGE_ID = re.compile(r"[!-~]{1,64}")

_MAX_STEP = 2**31 - 1


class Row(NamedTuple):
    """One entry: all that Redis keeps of it, without what follows from it.

    *due_ms* is the true due, also of what is paused, in ms since 1970; *step* is the priority step,
    and *message* the text of the message as a worker will get it.
    """

    queue: str
    id: str
    task: str
    due_ms: int
    step: int
    message_id: str
    message: str

    @classmethod
    def of_listed(cls, queue: str, listed: Listed) -> Row:
        """Make one of an entry of a page.

        Raises
        ------
        RecordError
            The entry cannot be read, or would not come back as it is.
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
            raise RecordError("the header of the record is spelled in another way than ours")
        return row

    @classmethod
    def of_fields(cls, fields: Any) -> Row:
        """Make one of what a file or a database holds.

        Raises
        ------
        RecordError, InvalidETA
            A field is missing or is not what it should be.
        """
        if not isinstance(fields, dict):
            raise RecordError(f"expected an object, got {type(fields).__name__}")
        for name, kind in _FIELDS:
            if type(fields.get(name)) is not kind:
                got = type(fields[name]).__name__ if name in fields else "nothing"
                wanted = "a text" if kind is str else "a whole number"
                raise RecordError(f"{name}: expected {wanted}, got {got}")
        row = cls(*(fields[name] for name in cls._fields)).checked()
        due = fields.get("due")
        if due is not None and due_of_eta(due).ms != row.due_ms:
            raise RecordError(
                f"due={due!r} is not due_ms={row.due_ms}: to move an entry manually, change "
                'due_ms and leave "due" out'
            )
        return row

    def fields(self) -> dict[str, Any]:
        """Return what a line of a file holds."""
        return {
            "queue": self.queue,
            "id": self.id,
            "task": self.task,
            "due": self.due,
            "due_ms": self.due_ms,
            "step": self.step,
            "message_id": self.message_id,
            "message": self.message,
        }

    def checked(self) -> Row:
        """Return this row, of which an entry can be made.

        Raises
        ------
        RecordError
            It cannot.
        """
        if not self.queue:
            raise RecordError("queue: expected the name of a queue")
        if is_own_key(self.queue):
            raise RecordError(f"queue: expected {NOT_OWN_KEY}")
        if "\0" in self.id:
            raise RecordError("id: a NUL has another meaning")
        if not 0 <= self.due_ms < PAUSED_OFFSET:
            raise RecordError(f"due_ms={self.due_ms}: expected ms since 1970")
        if not 0 <= self.step <= _MAX_STEP:
            raise RecordError(f"step={self.step}: expected a priority step")
        if not _MESSAGE_ID.fullmatch(self.message_id):
            raise RecordError(
                f"message id={self.message_id[:80]!r}: expected visible ASCII, no spaces"
            )
        try:
            "".join((self.queue, self.id, self.task, self.message)).encode()
        except UnicodeEncodeError as exc:
            raise RecordError("a text is no UTF-8") from exc
        self._check_message()
        return self

    def _check_message(self) -> None:
        try:
            message = json.loads(self.message)
        except (ValueError, RecursionError) as exc:
            raise RecordError(f"the message is {no_json(exc)}") from exc
        check_envelope(message)
        if not is_task(message) or not self.message.startswith("{"):
            raise RecordError("the message is none of a task")
        label = _LABEL.match(self.message)
        own = message["properties"].get(PROPERTY)
        if label is None and isinstance(own, dict) and "label" in own:
            raise RecordError("the message was written anew: scripts cannot read its label")
        if label is not None and (unquote(label[1]), label[2]) != (self.id, self.message_id):
            raise RecordError("the label of the message is that of another id or message id")

    @property
    def due(self) -> str | None:
        """When it is due, in ISO 8601; None after the year 9999."""
        if self.due_ms > MAX_DUE_MS:
            return None
        return moment(self.due_ms).isoformat(timespec="milliseconds")

    def record(self) -> Record:
        """Return what the hash of entries keeps."""
        return Record(self.step, self.message_id, self.task, self.message.encode())

    def entry(self, layout: Layout) -> Entry:
        """Return the entry to schedule, which never takes the place of another one.

        A priority step that *layout* has not becomes the one below. Where its unique key is taken
        the entry is not stored; a retry is, without the key, as when it is published.
        """
        step = layout.step(self.step)
        label = _LABEL.match(self.message)
        policy = ""
        if label is not None and label[3] != "-":
            policy = f"k 0 {int(bool(json.loads(self.message)['headers'].get('retries')))}"
        data = self.record()._replace(priority=step).pack()
        return Entry(self.id, Due(self.due_ms), step, data, policy)


_NUMBERS = ("due_ms", "step")
_FIELDS = tuple((name, int if name in _NUMBERS else str) for name in Row._fields)


class Header(NamedTuple):
    """What is told of a whole export: when and from which server it was made, and of what."""

    version: int
    made: str
    server: str
    filter: Mapping[str, Any]
    about: int | None


#: What a line or row tells: an entry or a dead letter, the header of those that follow, or why it
#: is neither.
Told = Any


class Kind(NamedTuple):
    """What a file has a line for each of.

    Attributes
    ----------
    format : str
        What its first line says.
    fields : Callable[[Any], Mapping[str, Any]]
        Makes the fields of a line.
    row : Callable[[Any], Any]
        Makes a row of them; raises ``ValueError`` where it cannot.
    """

    format: str
    fields: Callable[[Any], Mapping[str, Any]]
    row: Callable[[Any], Any]


SCHEDULE = Kind("celery_delayq.schedule", Row.fields, Row.of_fields)


class Target(Protocol):
    """Where entries, or dead letters, are written to."""

    #: Whether names of queues and tasks may hold a NUL.
    takes_nul: bool

    def begin(self, header: Header) -> None:
        """Write what is told of the whole."""

    def write(self, rows: Sequence[Any]) -> None:
        """Write entries."""

    def end(self, entries: int, left_out: int) -> int:
        """Write how many there were, and return how many others were removed."""


def check_version(version: Any) -> None:
    """Check that this version can read what another one wrote.

    Raises
    ------
    TransferError
        It was written by a later one.
    """
    if type(version) is not int or not 1 <= version <= VERSION:
        raise TransferError(
            f"version {version!r} of the format: this version of the package reads "
            f"{VERSION} and earlier"
        )


def no_json(exc: ValueError | RecursionError) -> str:
    """Return why something is no JSON; the error itself would tell of a line 1."""
    if isinstance(exc, json.JSONDecodeError):
        return f"no JSON: {exc.msg} at character {exc.pos + 1}"
    return f"no JSON: {exc}"
