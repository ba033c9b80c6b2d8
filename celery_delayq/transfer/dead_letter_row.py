"""One dead letter in a file or a database. No I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from celery_delayq.errors import InvalidFilter, RecordError
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter, DeadLetterRecord, is_in_place
from celery_delayq.model.names import Renames
from celery_delayq.model.script_values import to_bytes
from celery_delayq.transfer.export_format import RowKind, check_fields


@dataclass(frozen=True)
class DeadLetterRow:
    """All data that Redis stores of one dead letter.

    *id* is the first id of the dead letter. Redis uses another id if the dead letter was restored
    while its id was taken.
    """

    id: str
    dead_letter: DeadLetter

    @classmethod
    def of(cls, dead_letter: DeadLetter) -> DeadLetterRow:
        """Return the row of a dead letter in Redis."""
        id = dead_letter.id
        return cls(
            id.removesuffix(_duplicate(dead_letter.dead_lettered.data)) if "\0" in id else id,
            dead_letter,
        )

    @classmethod
    def of_data(cls, queue: str, id: str, data: bytes) -> DeadLetterRow:
        """Return the row of stored bytes."""
        return cls(id, DeadLetter.of(queue, DeadLetterRecord.unpack(id, data)))

    @classmethod
    def of_fields(cls, fields: Any) -> DeadLetterRow:
        """Return the row of the fields of a line.

        Raises
        ------
        RecordError
            A field is missing or wrong.
        """
        check_fields(fields, queue=str, id=str)
        if not fields["queue"]:
            raise RecordError("queue: expected a text, got ''")
        for name in ("queue", "id"):
            try:
                to_bytes(fields[name])
            except InvalidFilter as exc:
                raise RecordError(f"{name}: no UTF-8") from exc
        return cls.of_data(fields["queue"], fields["id"], _data(fields))

    def is_meant(self, filter: DeadFilter, renames: Renames) -> bool:
        """Return whether the dead letter matches a filter, maybe by a former name of its task.

        Its arguments are not compared.
        """
        dead_letter = self.dead_letter
        return is_in_place(dead_letter, filter) and filter.matches_names(dead_letter, renames)

    @property
    def queue(self) -> str:
        """The queue of the task."""
        return self.dead_letter.queue

    @property
    def data(self) -> bytes:
        """The stored bytes."""
        return self.dead_letter.dead_lettered.data

    @property
    def size(self) -> int:
        """Approximate size in a call, in bytes."""
        return len(self.data)

    @property
    def duplicate(self) -> str:
        """The id in Redis if the dead letter was restored while its own id was taken."""
        return self.id + _duplicate(self.data)

    @cached_property
    def digest(self) -> str:
        """Digest of queue, id and data."""
        queue, id = to_bytes(self.queue), to_bytes(self.id)
        head = b"%d %d " % (len(queue), len(id))
        return hashlib.sha256(b"".join((head, queue, id, self.data))).hexdigest()

    def fields(self) -> dict[str, Any]:
        """Return the fields of a line: first fields for people, then the dead letter itself."""
        dead_letter = self.dead_letter
        fields: dict[str, Any] = {
            "queue": self.queue,
            "id": self.id,
            "died": dead_letter.died.isoformat(timespec="milliseconds"),
        }
        for name in ("task", "task_id", "reason", "exception", "retries"):
            fields[name] = getattr(dead_letter, name)
        try:
            fields["dead_letter"] = self.data.decode()
        except UnicodeDecodeError:
            fields["dead_letter_base64"] = base64.b64encode(self.data).decode()
        return fields


def _duplicate(data: bytes) -> str:
    """Return the suffix that ``deadletters/restore.lua`` appends to an id that is taken."""
    return "\0" + hashlib.sha1(data).hexdigest()


def _data(fields: dict[str, Any]) -> bytes:
    """Return the dead letter of a line, from ``dead_letter_base64`` if it is not UTF-8."""
    name = "dead_letter_base64" if "dead_letter_base64" in fields else "dead_letter"
    check_fields(fields, **{name: str})
    value = fields[name]
    try:
        return base64.b64decode(value, validate=True) if name != "dead_letter" else value.encode()
    except (binascii.Error, ValueError) as exc:
        raise RecordError(f"{name}: it cannot be read: {exc}") from exc


DEAD_LETTERS = RowKind("celery_delayq.dead_letters", "dead letters", DeadLetterRow)
