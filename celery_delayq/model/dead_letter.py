"""Dead letters: their form in Redis, the public class, and filters. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

from celery.utils.saferepr import saferepr

from celery_delayq.errors import InvalidFilter, RecordError
from celery_delayq.model.arguments.search import checked_arguments
from celery_delayq.model.canvas import group_of
from celery_delayq.model.envelope import dead_letter_text, due_of_eta
from celery_delayq.model.names import NO_RENAMES, Renames, check_name
from celery_delayq.model.payload import MessageFields
from celery_delayq.model.scheduled import bound_ms, moment, pack_cursor, unpack_page_cursor
from celery_delayq.model.script_values import to_bytes
from celery_delayq.utils import foreign
from celery_delayq.utils.text import name_of, text_of

#: Characters of a traceback that are kept: its end says most.
MAX_TRACEBACK_CHARACTERS = 8000

#: Characters of an exception's text that are kept.
MAX_TEXT_CHARACTERS = 1000

#: Field of the details: whether the chord of the task was notified of its failure.
CHORD_NOTIFIED_FIELD = "told"

#: Beginnings of the reasons of messages that killed their workers or processes, as written by
#: ``include/leases/death_counts.lua``, ``leases/requeue.lua`` and ``transport/amqp/channel.py``.
CRASH_REASONS = ("its worker died ", "its process died ", "killed its process ")


class DeadLetterRecord(NamedTuple):
    """A dead letter as stored; *data* are the stored bytes (``include/dead_letter.lua``)."""

    id: str
    died_ms: int
    due_ms: int
    reason: str
    message: bytes
    details: bytes
    data: bytes

    @classmethod
    def of(
        cls, id: str, died_ms: int, reason: str, message: bytes, details: bytes
    ) -> DeadLetterRecord:
        """Make a record of its parts, as ``include/dead_letter.lua`` does."""
        header = b"2 %d 0 %d %s\n" % (died_ms, len(details), dead_letter_text(reason))
        return cls.unpack(id, header + details + message)

    @classmethod
    def unpack(cls, id: str, data: bytes) -> DeadLetterRecord:
        """Read the stored bytes. Unreadable bytes become the message of the record."""
        header, newline, rest = data.partition(b"\n")
        parts = header.split(b" ", 4 if header[:2] == b"2 " else 3)
        try:
            if newline and parts[0] == b"1":
                _, died, due, reason = parts
                size = 0
            elif newline and parts[0] == b"2":
                _, died, due, length, reason = parts
                size = int(length)
            else:
                raise ValueError("no dead letter")
            text = reason.decode("utf-8", "replace")
            return cls(id, int(died), int(due), text, rest[size:], rest[:size], data)
        except ValueError:
            return cls(id, 0, 0, "unreadable dead letter", data, b"", data)


def details_of(
    exc: BaseException, traceback: str | None, *, worker: str, retries: int, started: float | None
) -> dict[str, Any]:
    """Return the details of a failure for a dead letter. Their size is limited.

    Parameters
    ----------
    worker : str
        The node's name.
    started : float | None
        When the last attempt began, in seconds since 1970.
    """
    text = str(traceback or "")
    if len(text) > MAX_TRACEBACK_CHARACTERS:
        end = text[-MAX_TRACEBACK_CHARACTERS:]
        text = "…\n" + (end.partition("\n")[2] or end)  # from the first complete line on
    details: dict[str, Any] = {
        "exception": name_of(exc),
        "message": text_of(exc)[:MAX_TEXT_CHARACTERS],
        "traceback": text,
        "retries": retries,
        "worker": worker,
    }
    if started is not None:
        details["started"] = int(started * 1000)
    return details


def pack_details(details: Mapping[str, Any] | None) -> bytes:
    """Return the bytes that Redis stores for details."""
    if not details:
        return b""
    try:
        return json.dumps(details).encode()
    except foreign.FOREIGN_ERRORS:  # details hold values of the message, which may have any type
        return json.dumps(
            {name: saferepr(value, MAX_TEXT_CHARACTERS) for name, value in details.items()}
        ).encode()


@dataclass(frozen=True)
class DeadLetter(MessageFields):
    """A message that does not run again unless it is replayed, with the reason.

    Attributes
    ----------
    id : str
        The id of the dead letter. It begins with the id of the task. If a task became a dead letter
        several times, a suffix tells them apart.
    queue : str
        The queue of the message.
    reason : str
        Why the message became a dead letter, in one line.
    """

    id: str
    queue: str
    reason: str
    dead_lettered: DeadLetterRecord = field(repr=False)

    @classmethod
    def of(cls, queue: str, dead_lettered: DeadLetterRecord) -> DeadLetter:
        """Return the dead letter of a stored record."""
        return cls(dead_lettered.id, queue, dead_lettered.reason, dead_lettered)

    @property
    def died(self) -> datetime:
        """When the message became a dead letter, in UTC."""
        return moment(self.dead_lettered.died_ms)

    @cached_property
    def message(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The message; None if the message cannot be read."""
        try:
            message = foreign.loads(self.dead_lettered.message)
        except RecordError:
            return None
        return message if isinstance(message, dict) else None

    @cached_property
    def details(self) -> dict[str, Any]:
        """Details of the failure; empty if none are stored."""
        try:
            details = foreign.loads(self.dead_lettered.details or b"{}")
        except RecordError:
            details = {}
        return details if isinstance(details, dict) else {}

    @property
    def task_id(self) -> str | None:
        """The id of the task."""
        return self._header("id")

    @property
    def task(self) -> str | None:
        """The name of the task."""
        return self._header("task")

    @property
    def root_id(self) -> str | None:
        """The id of the first task of its chain, chord or tree."""
        return self._header("root_id")

    @property
    def group_id(self) -> str | None:
        """The id of the group of the task, or of the group of the chain that the task begins."""
        group = group_of(self.headers, self.own)
        return None if group is None else str(group)

    def _header(self, name: str) -> str | None:
        value = self.headers.get(name)
        return None if value is None else str(value)

    @property
    def was_unbound(self) -> bool:
        """Whether no queue was bound to get the message."""
        # The search in the bytes is quick. To parse the details takes half as long as to parse the
        # message.
        return b'"unbound"' in self.dead_lettered.details and "unbound" in self.details

    @property
    def due(self) -> datetime | None:
        """When the task was due; None if unknown."""
        if self.dead_lettered.due_ms > 0:
            return moment(self.dead_lettered.due_ms)
        try:
            return moment(due_of_eta(self.own["eta"]).ms)
        except (KeyError, ValueError):
            return None

    @property
    def started(self) -> datetime | None:
        """When the last attempt began; None if unknown."""
        started = self.details.get("started")
        return moment(started) if isinstance(started, int) else None

    @property
    def exception(self) -> str | None:
        """The name of the exception's class, without its module."""
        return self._detail("exception")

    @property
    def error(self) -> str | None:
        """The exception's text."""
        return self._detail("message")

    @property
    def traceback(self) -> str | None:
        """The traceback of the last attempt; only the end of a long traceback."""
        return self._detail("traceback")

    @property
    def worker(self) -> str | None:
        """The name of the worker node that ran the last attempt."""
        return self._detail("worker")

    def _detail(self, name: str) -> str | None:
        value = self.details.get(name)
        return value if isinstance(value, str) else None

    @property
    def retries(self) -> int | None:
        """Number of retries before the last attempt."""
        retries = self.details.get("retries", self.headers.get("retries"))
        return retries if isinstance(retries, int) else None

    @property
    def deliveries(self) -> int | None:
        """How often the message of the last attempt was delivered."""
        deliveries = self.details.get("deliveries")
        return deliveries if isinstance(deliveries, int) else None

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON types."""
        shown = {name: getattr(self, name) for name in _DICT_FIELDS}
        times = {name: it.isoformat() for name, it in shown.items() if isinstance(it, datetime)}
        return {**shown, **times, "state": "dead", **self.arguments()}


def has_crashed(dead_letter: DeadLetter) -> bool:
    """Return whether the workers of a task died; then no worker has reported the task's end."""
    return dead_letter.reason.startswith(CRASH_REASONS)


#: Attributes that :meth:`DeadLetter.as_dict` returns beside the arguments, in this order.
_DICT_FIELDS = (
    *("id", "task_id", "task", "queue", "died", "reason", "exception", "error", "traceback"),
    *("retries", "deliveries", "worker", "due", "started", "root_id", "group_id"),
)

#: Fields of a filter that are compared with the message or the details of a dead letter.
_MESSAGE_FIELDS = ("task", "exception", "task_id", "root_id", "group_id")


class DeadConditionFields(TypedDict, total=False):
    """The conditions of a :class:`DeadFilter`, as calls take them by name."""

    queue: str | None
    task: str | None
    reason: str | None
    exception: str | None
    died_from: datetime | str | None
    died_to: datetime | str | None
    task_id: str | None
    root_id: str | None
    group_id: str | None
    arg: Mapping[str, Any] | None


class DeadFilterFields(DeadConditionFields, total=False):
    """The fields of a :class:`DeadFilter`, as calls take them by name."""

    unpickle: bool


@dataclass(frozen=True)
class DeadFilter:
    """Dead letters to which all given conditions apply.

    Parameters
    ----------
    queue, task, task_id : str | None
        The name of the queue, the name of the task, and the id of the task.
    reason : str | None
        A part of the reason, in upper or lower case.
    exception : str | None
        The name of an exception's class, without its module.
    died_from, died_to : datetime | str | None
        The first and the last time of death that match.
    root_id, group_id : str | None
        The id of the first task of a chain, chord or tree; the id of a group.
    arg, unpickle
        Arguments with which the task was sent, as in a :class:`~celery_delayq.Filter`.

    Raises
    ------
    InvalidFilter
        A value is empty or no text, an argument has no form in JSON, or *unpickle* is given without
        *arg*.
    InvalidETA
        A time is invalid.
    """

    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    exception: str | None = None
    died_from: datetime | str | None = None
    died_to: datetime | str | None = None
    task_id: str | None = None
    root_id: str | None = None
    group_id: str | None = None
    arg: Mapping[str, Any] | None = None
    unpickle: bool = False

    def __post_init__(self) -> None:
        for name in ("queue", "task", "reason", "exception", "task_id", "root_id", "group_id"):
            check_name(name, getattr(self, name), as_key=name == "queue")
        self.range_ms()
        if self.arg is not None:
            object.__setattr__(self, "arg", checked_arguments(self.arg))
        elif self.unpickle:
            raise InvalidFilter("unpickle=True without arg: give the arguments to search for")

    @property
    def is_everything(self) -> bool:
        """Whether all dead letters match."""
        return self == DeadFilter()

    @property
    def is_by_place(self) -> bool:
        """Whether the filter has no other fields than the queue and the time of death."""
        return self == self.by_place

    @property
    def by_place(self) -> DeadFilter:
        """The filter with the queue and the time of death only."""
        return DeadFilter(self.queue, died_from=self.died_from, died_to=self.died_to)

    @property
    def without_arg(self) -> DeadFilter:
        """The filter without the search by argument."""
        return self if self.arg is None else replace(self, arg=None, unpickle=False)

    def range_ms(self) -> tuple[int | None, int | None]:
        """Return the first and the last time of death that match, in ms since 1970."""
        return bound_ms("died_from", self.died_from), bound_ms("died_to", self.died_to)

    def matches(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter matches; its queue and time must match already.

        A filter alone knows no former names of a task.

        Raises
        ------
        InvalidFilter
            The filter has an *arg*: only an app knows the arguments of its tasks.
        """
        if self.arg is not None:
            raise InvalidFilter(f"arg={dict(self.arg)!r}: this call cannot search by argument")
        return self.matches_names(dead_letter, NO_RENAMES)

    def matches_names(self, dead_letter: DeadLetter, renames: Renames) -> bool:
        """Return whether a dead letter matches, maybe by a former name of the filter's task.

        Its arguments are not compared.
        """
        if self.reason is not None and self.reason.lower() not in dead_letter.reason.lower():
            return False
        # A message may be large, so it is parsed only for a field that needs it.
        wanted = {name: getattr(self, name) for name in _MESSAGE_FIELDS}
        task = wanted.pop("task")
        if task is not None and dead_letter.task not in renames.names(task):
            return False
        return all(
            value is None or getattr(dead_letter, name) == value for name, value in wanted.items()
        )


def is_in_place(dead_letter: DeadLetter, filter: DeadFilter) -> bool:
    """Return whether the queue and the time of death of a dead letter match a filter."""
    low, high = filter.range_ms()
    died_ms = dead_letter.dead_lettered.died_ms
    return (
        filter.queue in (None, dead_letter.queue)
        and (low is None or low <= died_ms)
        and (high is None or died_ms <= high)
    )


class DeadLetterCursor(NamedTuple):
    """A place between two pages of dead letters.

    It is behind the dead letter *id* of *queue* with the score *score* in the index by time of
    death; on RabbitMQ, behind the one at *offset*. *until* is the latest time of death (ms) when
    the first page was read; None for no limit.
    """

    score: float = -math.inf
    queue: str = ""
    id: str = ""
    offset: int = -1
    until: int | None = None

    def begin_of(self, queue: str) -> tuple[float, bytes] | None:
        """Return the score at which to continue in a queue, and the id of that score behind which.

        None if the queue has no further dead letters.
        """
        if queue == self.queue:
            return self.score, to_bytes(self.id)
        if queue > self.queue:
            return self.score, b""
        return None if self.score == math.inf else (math.nextafter(self.score, math.inf), b"")

    def pack(self, filter: DeadFilter) -> str:
        """Return the cursor as a text that is valid with the same *filter* only."""
        return pack_cursor([repr(filter), repr(self.score), *self[1:]])

    @classmethod
    def unpack(cls, text: str, filter: DeadFilter) -> DeadLetterCursor:
        """Read what :meth:`pack` wrote; raises InvalidCursor."""

        def make(score: Any, queue: Any, id: Any, offset: Any, until: Any) -> DeadLetterCursor:
            until = None if until is None else int(until)
            found = cls(float(score), str(queue), str(id), int(offset), until)
            if math.isnan(found.score) or found.offset < -1:
                raise ValueError(text)
            return found

        return unpack_page_cursor(text, filter, make)
