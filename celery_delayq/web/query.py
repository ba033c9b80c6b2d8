"""What a request asks for, and errors that are pages. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone, tzinfo
from urllib.parse import quote, unquote_to_bytes

from celery_delayq.errors import InvalidETA, InvalidFilter
from celery_delayq.model.typed_times import (
    DISTANCE_HELP,
    TIME_HELP,
    Direction,
    read_typed_time,
)
from celery_delayq.utils.text import spelled


class NotFound(Exception):
    """There is no such page, task or dead letter. The text says what was not found."""


class Forbidden(Exception):
    """The user may not do that. The text says why."""


@dataclass(frozen=True)
class Query:
    """The rest of the path, and the values of the fields of a form or a URL.

    Parameters
    ----------
    rest : str
        The part of the path behind the name of the page, such as the id of a task.
    values : Mapping[str, Sequence[str]]
        All values of each field. Bytes that are no UTF-8 are lone surrogates.
    zone : tzinfo
        The zone of times without an offset.
    """

    rest: str
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    zone: tzinfo | None = None

    def check_fields(self, known: Sequence[str]) -> None:
        """Refuse a field that has no meaning: a filter without it would select more.

        Raises
        ------
        InvalidFilter
            There is no such field.
        """
        for name in self.values:
            if name not in known:
                fields = ", ".join(known) or "none"
                raise InvalidFilter(f"no field {spelled(name)} here; known: {fields}")

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a field without space around it, or *default*."""
        found = self.values.get(name)
        return found[-1].strip() or default if found else default

    def without(self, names: Collection[str]) -> Query:
        """Return the query without some fields."""
        kept = {name: each for name, each in self.values.items() if name not in names}
        return replace(self, values=kept)

    def optional(self, name: str) -> str | None:
        """Return the last value of a field without space around it; None if nothing is left."""
        return self.text(name) or None

    def name(self, name: str) -> str | None:
        """Return the last value of a field as it is; None if it is empty or missing."""
        found = self.values.get(name)
        return found[-1] or None if found else None

    def all(self, name: str) -> Sequence[str]:
        """Return all values of a field."""
        return self.values.get(name, ())

    def number(self, name: str, default: int = 0) -> int:
        """Return the value of a field as a number from 0; *default* for any other text."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return the value of a field if it is one of *choices*, else the first choice."""
        text = self.text(name)
        return text if text in choices else choices[0]

    def moment(self, name: str, now: datetime, unsigned: Direction = "from now") -> datetime | None:
        """Return the time in a field, as :func:`~celery_delayq.model.typed_times.read_typed_time`
        reads it; None for an empty field.

        Raises
        ------
        InvalidETA
            The text is no time.
        """
        text = self.text(name)
        if not text:
            return None
        try:
            return read_typed_time(text, now, self.zone, unsigned)
        except (ValueError, OverflowError) as exc:
            raise InvalidETA(f"{name}={text!r}: expected {TIME_HELP}, or {DISTANCE_HELP}") from exc


def bytes_of(text: str) -> bytes:
    """Return a text as the bytes of an address.

    JSON may have lone surrogates. One that stands for a byte becomes that byte. Others are encoded
    as they are: no bytes of an address are decoded to them.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b"".join(map(_bytes_of_one, text))


def _bytes_of_one(one: str) -> bytes:
    is_byte = "\udc80" <= one <= "\udcff"
    return one.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")


def quoted(text: str) -> str:
    """Return an id or a name as one part of a path, or as a value that no browser changes."""
    return quote(bytes_of(text), safe="")


def unquoted(text: str) -> str:
    """Undo :func:`quoted`."""
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def mark_of(ms: int, id: str) -> str:
    """Return the value of a field that names a task as it is shown: with its time in ms."""
    return f"{ms}:{quoted(id)}"


def local_text(time: datetime, zone: tzinfo) -> str:
    """Return a time in a zone, to the second and without the zone, as fields of forms have it."""
    try:
        there = time.astimezone(zone)
    except (OverflowError, ValueError, OSError):  # at the limits of datetime
        there = time.astimezone(timezone.utc)
    return there.replace(tzinfo=None, microsecond=0).isoformat()
