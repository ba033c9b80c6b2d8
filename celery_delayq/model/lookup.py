"""Places and outcomes of entries, as the scripts return them. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from celery_delayq.errors import InvalidFilter, RecordError
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.envelope import task_field, task_name
from celery_delayq.model.names import UTF8_TEXT

#: Scores of paused and due entries are their due and this (``include/record.lua``).
PAUSED_OFFSET_MS = 10**15

State = Literal["scheduled", "paused", "ready", "running"]

#: The codes by which scripts return outcomes.
StatusCode = Literal["d", "w", "r", "c", "p", "k", "x", "u"]

#: What a call that cancels does with ready messages: cancel them too, free their unique keys, since
#: workers refuse them, or leave them.
ReadyAction = Literal["cancel", "free", "leave"]

#: Several messages with one id have one answer, the first in this order.
_RANK: Sequence[StatusCode] = ("r", "w", "c", "p", "k", "x", "d", "u")

#: When entries must be due to be changed (ms): all of them, or each; None for any time.
IfDue = int | Sequence[int | None] | None


class Name(str):
    """The name of one entry: ``id``, or ``id NUL message_id``.

    Where an id is expected, a name means this entry alone, and a plain text all entries with that
    id.
    """

    __slots__ = ()


_INDEXED = re.compile(rb"(!*)(\S+) (\d+) (\S+) (\S*) ?(.*)", re.DOTALL)


class IndexEntry(NamedTuple):
    """One message in the index of ready or leased messages (``include/tracking.lua``).

    *holder* is the worker id that holds a leased message.
    """

    cancelled: bool
    message_id: bytes
    due_ms: int
    unique: str
    task: str
    holder: str

    @classmethod
    def unpack(cls, value: bytes) -> IndexEntry | None:
        """Read what a script wrote, None for anything else."""
        match = _INDEXED.fullmatch(value)
        if match is None:
            return None
        mark, message_id, due, unique, task, holder = match.groups()
        name = task_name(to_text(task))
        return cls(mark != b"", message_id, int(due), to_text(unique), name, to_text(holder))


class Location(NamedTuple):
    """The place of an entry, with its :class:`Name`; *due_ms* is since 1970.

    *record* is there while it is scheduled, *holder*, a worker id, while it is running.
    """

    name: str
    state: State
    due_ms: int
    record: bytes | None
    task: str = ""
    unique: str = "-"
    holder: str = ""

    @classmethod
    def read(cls, found: bytes, code: bytes, score: bytes, value: bytes) -> Location:
        """Read what ``control/find.lua`` tells of one entry."""
        name = Name(to_text(found))
        if code == b"s":
            at = score_of(score or b"0")
            paused_due = at >= PAUSED_OFFSET_MS
            state: State = "paused" if paused_due else "scheduled"
            return cls(name, state, at - PAUSED_OFFSET_MS if paused_due else at, value)
        entry = IndexEntry.unpack(value)
        if entry is None:
            return cls(name, "ready", 0, None)
        state = "ready" if code == b"w" else "running"
        return cls(name, state, entry.due_ms, None, entry.task, entry.unique, entry.holder)


class Position(NamedTuple):
    """A position in the schedule, as Redis writes it: due and name of an entry, or ``b""`` and a
    member of the index by task.
    """

    score: bytes
    name: bytes

    @classmethod
    def of(cls, key: int, name: str, task: str | None) -> Position:
        """Return the position of a name by its due (ms), in the index of *task* if one is given."""
        if task is None:
            return cls(b"%d" % key, to_bytes(name))
        return cls(b"", to_bytes(f"{task_field(task)}\0{key:015d}\0{name}"))

    @property
    def order(self) -> tuple[float, bytes]:
        """The sort key of positions."""
        return float(self.score or 0), self.name

    @property
    def key_and_name(self) -> tuple[int, str]:
        """Undo :meth:`of`.

        Raises
        ------
        RecordError
            The member of the index was not written by a script.
        """
        if self.score:
            return score_of(self.score), to_text(self.name)
        _, due, name = (*self.name.split(b"\0", 2), b"", b"")[:3]
        if not due.isdigit():
            raise RecordError(
                f"the index by task has {self.name!r}, no entry: run `delayq fsck --repair`"
            )
        return int(due), to_text(name)


class ListedEntry(NamedTuple):
    """An entry of a page, by its :class:`Name`.

    *was_due* is when it was due as the reading began, where it was moved since (ms).
    """

    name: str
    score: int
    record: bytes
    was_due: int | None = None

    @property
    def id(self) -> str:
        """The task's id."""
        return self.name.partition("\0")[0]

    @property
    def due_ms(self) -> int:
        """When it is due, in ms since 1970."""
        return self.score - PAUSED_OFFSET_MS if self.score >= PAUSED_OFFSET_MS else self.score

    @property
    def place_ms(self) -> int:
        """The due by which it has its place among others (ms)."""
        return self.due_ms if self.was_due is None else self.was_due


class FoundPage(NamedTuple):
    """A page of the schedule of one queue; the next one begins behind *end*, None after the last.

    The next page may be empty. *last_due* is the highest due in the queue (ms), on the first page
    of a reading.
    """

    entries: list[ListedEntry]
    end: Position | None
    last_due: int | None = None


class EntryCondition(NamedTuple):
    """Which entries of a queue: of a task, due from and to (ms, inclusive), of a step."""

    task: str | None = None
    due_from: int | None = None
    due_to: int | None = None
    step: int | None = None

    def due_by(self, last: int | None) -> EntryCondition:
        """Return it for those that are due at a time (ms) at the latest; None: the same."""
        if last is None or (self.due_to is not None and self.due_to <= last):
            return self
        return self._replace(due_to=last)


class Revoked(NamedTuple):
    """Revoked ids, stamps and canvases, and the time of the last one in ms since 1970."""

    ids: list[str]
    stamps: list[dict[str, Any]]
    canvases: list[Canvas]
    last_ms: int


class PausedNames(NamedTuple):
    """The revision of pauses, and paused queues and tasks by name with their time (ms)."""

    revision: int
    queues: dict[str, int]
    tasks: dict[str, int]


def worst_code(codes: Iterable[StatusCode]) -> StatusCode:
    """Return the answer for several messages with one id."""
    return min(codes, key=_RANK.index, default="u")


def score_of(text: bytes | float) -> int:
    """Return a score as a whole number; a manually set one may be infinite."""
    value = float(text)
    return int(value) if math.isfinite(value) else int(math.copysign(PAUSED_OFFSET_MS - 1, value))


def to_bytes(name: str) -> bytes:
    """Return a name as Redis has it, with any bytes.

    Raises
    ------
    InvalidFilter
        Nothing in Redis can have that name.
    """
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidFilter(f"{name!r}: expected {UTF8_TEXT}") from None


def to_text(data: bytes) -> str:
    """Undo :func:`to_bytes`."""
    return data.decode("utf-8", "surrogateescape")
