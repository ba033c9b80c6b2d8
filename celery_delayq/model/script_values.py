"""Values that scripts take and return: names, places and outcomes of entries. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from celery_delayq.errors import InvalidFilter, RecordError
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.envelope import task_field, task_name
from celery_delayq.utils.text import UTF8_TEXT

#: The score of an entry that is due and paused is its due time plus this (``include/record.lua``).
PAUSED_OFFSET_MS = 10**15

State = Literal["scheduled", "paused", "held", "ready", "running"]

#: The codes by which scripts return outcomes. ``m``: a ready task was cancelled, which the worker
#: that gets its message reports.
StatusCode = Literal["d", "m", "w", "r", "c", "p", "k", "x", "u"]

#: What a cancel does with ready messages: ``"cancel"`` cancels them too, ``"free"`` frees only
#: their unique keys (workers refuse them), ``"leave"`` leaves them unchanged.
ReadyAction = Literal["cancel", "free", "leave"]

#: Several messages may have one id; the first of their codes in this order is returned.
_RANK: Sequence[StatusCode] = ("r", "w", "c", "p", "k", "x", "d", "m", "u")

#: Due time in ms that entries must have to be changed: one for all, or one for each; None for any.
IfDue = int | Sequence[int | None] | None


class Name(str):
    """The name of one entry: ``id``, or ``id NUL message_id``.

    In place of an id, a ``Name`` means this entry only. A plain text means all entries with the id.
    """

    __slots__ = ()


_INDEXED = re.compile(rb"(!*)(\S+) (\d+) (\S+) (\S*) ?(.*)", re.DOTALL)


class IndexEntry(NamedTuple):
    """One message in the index of ready or leased messages (``include/tracking.lua``).

    *holder* is the worker id under which a message is leased.
    """

    cancelled: bool
    message_id: bytes
    due_ms: int
    unique: str
    task: str
    holder: str

    @classmethod
    def unpack(cls, value: bytes) -> IndexEntry | None:
        """Read a value of the index; None if no script wrote the value."""
        match = _INDEXED.fullmatch(value)
        if match is None:
            return None
        mark, message_id, due, unique, task, holder = match.groups()
        name = task_name(to_text(task))
        return cls(mark != b"", message_id, int(due), to_text(unique), name, to_text(holder))


class Location(NamedTuple):
    """The :class:`Name` and the place of an entry; *due_ms* is in ms since 1970.

    *record* is set while the task is scheduled. *holder* is the worker id while the task runs.
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
        """Read one entry of the reply of ``control/find.lua``."""
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
    """A position in the schedule, in the text of Redis.

    The score is the due time of an entry and the name its name. In the index by task the score is
    ``b""`` and the name a member of the index.
    """

    score: bytes
    name: bytes

    @classmethod
    def of(cls, key: int, name: str, task: str | None) -> Position:
        """Return the position of a name by its due time (ms); with *task* in the task's index."""
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
            No script wrote this member of the index.
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
    """An entry of a page, with its :class:`Name`.

    *was_due* is its due time (ms) when the first page was read, if the entry was moved since then.
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
        """When the entry is due, in ms since 1970."""
        return self.score - PAUSED_OFFSET_MS if self.score >= PAUSED_OFFSET_MS else self.score

    @property
    def listed_due_ms(self) -> int:
        """The due time (ms) that decides the place of the entry on the pages."""
        return self.due_ms if self.was_due is None else self.was_due


class Swap(NamedTuple):
    """A change of one entry: its :class:`Name`, its record as it was read, and its new record; or
    of one dead letter: its id, and its bytes.

    *if_due* is the due time (ms) that an entry must have; None for any. *names* are all names of
    its task, if it has several: a message of one of them may have the same unique key.
    """

    name: str
    before: bytes
    after: bytes
    if_due: int | None = None
    names: Sequence[str] = ()


class FoundPage(NamedTuple):
    """A page of the schedule of one queue; the next page begins behind *end*.

    *end* is None on the last page. The page after *end* may be empty. *last_due* is the latest due
    time in the queue (ms); only a first page has one.
    """

    entries: list[ListedEntry]
    end: Position | None
    last_due: int | None = None


class EntryCondition(NamedTuple):
    """A condition on the entries of a queue: task, first and last due time (ms), priority step."""

    task: str | None = None
    due_from: int | None = None
    due_to: int | None = None
    step: int | None = None

    def covers(self, task: str, due_ms: int, step: int | None) -> bool:
        """Return whether an entry with these values meets the condition."""
        return (
            self.task in (None, task)
            and self.step in (None, step)
            and (self.due_from is None or self.due_from <= due_ms)
            and (self.due_to is None or due_ms <= self.due_to)
        )

    def due_by(self, latest_ms: int | None) -> EntryCondition:
        """Return the condition for entries due at *latest_ms* or earlier; None: no new limit."""
        if latest_ms is None or (self.due_to is not None and self.due_to <= latest_ms):
            return self
        return self._replace(due_to=latest_ms)


class Revoked(NamedTuple):
    """Revoked ids, stamps and canvases, and the time of the last revoke in ms since 1970."""

    ids: list[str]
    stamps: list[dict[str, Any]]
    canvases: list[Canvas]
    last_ms: int


class PausedNames(NamedTuple):
    """The revision of pauses; paused queues and tasks by name, each with its time (ms)."""

    revision: int
    queues: dict[str, int]
    tasks: dict[str, int]


def worst_code(codes: Iterable[StatusCode]) -> StatusCode:
    """Return the code for several messages with one id."""
    return min(codes, key=_RANK.index, default="u")


def score_of(text: bytes | float) -> int:
    """Return a score as a whole number; an infinite score, set by a user, becomes a large one."""
    value = float(text)
    return int(value) if math.isfinite(value) else int(math.copysign(PAUSED_OFFSET_MS - 1, value))


def to_bytes(name: str) -> bytes:
    """Return the bytes of a name in Redis; these need not be UTF-8.

    Raises
    ------
    InvalidFilter
        No bytes in Redis have that name.
    """
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidFilter(f"{name!r}: expected {UTF8_TEXT}") from None


def to_text(data: bytes) -> str:
    """Undo :func:`to_bytes`."""
    return data.decode("utf-8", "surrogateescape")
