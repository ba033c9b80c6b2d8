"""Dead letters: their form in Redis, the public class, and filters. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from celery.utils.saferepr import saferepr

from celery_delayq.errors import RecordError
from celery_delayq.model.canvas import group_of
from celery_delayq.model.envelope import dead_letter_text, due_of_eta
from celery_delayq.model.names import check_name
from celery_delayq.model.payload import MessageFields
from celery_delayq.model.scheduled import bound_ms, moment
from celery_delayq.utils import foreign
from celery_delayq.utils.text import name_of, text_of

#: Characters of a traceback that are kept: its end says most.
MAX_TRACEBACK_CHARACTERS = 8000

#: Characters of an exception's text that are kept.
MAX_TEXT_CHARACTERS = 1000


#: Beginnings of the reasons of messages that killed their workers or processes.
_CRASH_REASONS = ("its worker died ", "its process died ", "killed its process ")


class DeadLetterRecord(NamedTuple):
    """A dead letter as Redis keeps it: see ``include/dead_letter.lua``; *data* is all of it."""

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
        """Make one of its parts; Redis does the same in ``include/dead_letter.lua``."""
        header = b"2 %d 0 %d %s\n" % (died_ms, len(details), dead_letter_text(reason))
        return cls.unpack(id, header + details + message)

    @classmethod
    def unpack(cls, id: str, data: bytes) -> DeadLetterRecord:
        """Read the stored bytes; unreadable ones become the message."""
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
    """Return the details of a failure for a dead letter, bounded in size.

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
        text = "…\n" + (end.partition("\n")[2] or end)  # whole lines, if there is one
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
    """Return details as they are stored."""
    if not details:
        return b""
    try:
        return json.dumps(details).encode()
    except foreign.FOREIGN_ERRORS:  # they have values of the message
        return json.dumps(
            {name: saferepr(value, MAX_TEXT_CHARACTERS) for name, value in details.items()}
        ).encode()


@dataclass(frozen=True)
class DeadLetter(MessageFields):
    """A message that will not run any more, unless it is replayed, and why.

    Attributes
    ----------
    id : str
        The dead letter's own id: that of the task, with more behind it where several died.
    queue : str
        The queue to which it belonged.
    reason : str
        Why, in one line.
    """

    id: str
    queue: str
    reason: str
    dead_lettered: DeadLetterRecord = field(repr=False)

    @classmethod
    def of(cls, queue: str, dead_lettered: DeadLetterRecord) -> DeadLetter:
        """Make one of a stored dead letter."""
        return cls(dead_lettered.id, queue, dead_lettered.reason, dead_lettered)

    @property
    def died(self) -> datetime:
        """When it was dead-lettered, in UTC."""
        return moment(self.dead_lettered.died_ms)

    @cached_property
    def message(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The message, None if it cannot be read."""
        try:
            message = foreign.loads(self.dead_lettered.message)
        except RecordError:
            return None
        return message if isinstance(message, dict) else None

    @cached_property
    def details(self) -> dict[str, Any]:
        """Details of the failure; empty without any."""
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
        """The id of the group to which it, or the chain that it begins, belongs."""
        group = group_of(self.headers, self.own)
        return None if group is None else str(group)

    def _header(self, name: str) -> str | None:
        value = self.headers.get(name)
        return None if value is None else str(value)

    @property
    def was_unbound(self) -> bool:
        """Whether it never had a queue: there was no binding for it."""
        # To read the details costs as much as to read half of the message.
        return b'"unbound"' in self.dead_lettered.details and "unbound" in self.details

    @property
    def due(self) -> datetime | None:
        """When it was due, where that is known."""
        if self.dead_lettered.due_ms > 0:
            return moment(self.dead_lettered.due_ms)
        try:
            return moment(due_of_eta(self.own["eta"]).ms)
        except (KeyError, ValueError):
            return None

    @property
    def started(self) -> datetime | None:
        """When the last attempt began, where that is known."""
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
        """The traceback of the last attempt; of a long one the end."""
        return self._detail("traceback")

    @property
    def worker(self) -> str | None:
        """The node that ran it last."""
        return self._detail("worker")

    def _detail(self, name: str) -> str | None:
        value = self.details.get(name)
        return value if isinstance(value, str) else None

    @property
    def retries(self) -> int | None:
        """How often it was tried again."""
        retries = self.details.get("retries", self.headers.get("retries"))
        return retries if isinstance(retries, int) else None

    @property
    def deliveries(self) -> int | None:
        """How often its last attempt was delivered."""
        deliveries = self.details.get("deliveries")
        return deliveries if isinstance(deliveries, int) else None

    def as_dict(self) -> dict[str, Any]:
        """Return its attributes as JSON types."""
        shown = {name: getattr(self, name) for name in _DICT_FIELDS}
        times = {name: it.isoformat() for name, it in shown.items() if isinstance(it, datetime)}
        return {**shown, **times, **self.arguments()}


def has_crashed(dead_letter: DeadLetter) -> bool:
    """Return whether the workers of a task died, so that nobody has reported its end."""
    return dead_letter.reason.startswith(_CRASH_REASONS)


#: Attributes that :meth:`DeadLetter.as_dict` returns beside the arguments, in this order.
_DICT_FIELDS = (
    *("id", "task_id", "task", "queue", "died", "reason", "exception", "error", "traceback"),
    *("retries", "deliveries", "worker", "due", "started", "root_id", "group_id"),
)

#: The fields of a filter for which a dead letter has to be read.
_MESSAGE_FIELDS = ("task", "exception", "task_id", "root_id", "group_id")


@dataclass(frozen=True)
class DeadFilter:
    """Dead letters to which all given conditions apply.

    Parameters
    ----------
    queue, task, task_id : str | None
        Name of a queue, of a task, id of a task.
    reason : str | None
        A part of the reason, without regard to case.
    exception : str | None
        The name of an exception's class, without its module.
    died_from, died_to : datetime | str | None
        Died at this time or later, and at this time or earlier: both are included.
    root_id, group_id : str | None
        All of a chain, chord or tree of tasks; all of a group.

    Raises
    ------
    InvalidFilter
        A value is empty or no text, such as one from a variable that was not set.
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

    def __post_init__(self) -> None:
        for name in ("queue", "task", "reason", "exception", "task_id", "root_id", "group_id"):
            check_name(name, getattr(self, name), as_key=name == "queue")
        self.range_ms()

    @property
    def is_everything(self) -> bool:
        """Whether all dead letters match."""
        return self == DeadFilter()

    @property
    def is_by_place(self) -> bool:
        """Whether queue and time of death are enough to know that a dead letter matches."""
        return self == DeadFilter(self.queue, died_from=self.died_from, died_to=self.died_to)

    def range_ms(self) -> tuple[int | None, int | None]:
        """Return from and to, in ms since 1970."""
        return bound_ms("died_from", self.died_from), bound_ms("died_to", self.died_to)

    def matches(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter of the right queue and time matches."""
        if self.reason is not None and self.reason.lower() not in dead_letter.reason.lower():
            return False
        # A dead letter is read only where that is needed: it may be large.
        wanted = ((name, getattr(self, name)) for name in _MESSAGE_FIELDS)
        return all(value is None or getattr(dead_letter, name) == value for name, value in wanted)
