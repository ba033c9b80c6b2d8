"""Scheduled tasks, filters, outcomes and pages of the public API. No I/O."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from urllib.parse import unquote

from celery_delayq.errors import InvalidCursor, InvalidETA, InvalidFilter, RecordError
from celery_delayq.model.arguments.search import checked_arguments
from celery_delayq.model.envelope import (
    EPOCH,
    MAX_DUE_MS,
    Record,
    due_of_eta,
    limit_of,
    own_of,
    parse_iso,
    unique_key,
)
from celery_delayq.model.names import Renames, check_name
from celery_delayq.model.payload import MessageFields
from celery_delayq.model.script_values import (
    EntryCondition,
    Location,
    PausedNames,
    State,
    StatusCode,
    worst_code,
)
from celery_delayq.utils import foreign, message_json
from celery_delayq.utils.numbers import is_integer

C = TypeVar("C")
E = TypeVar("E")

#: The first millisecond that a datetime can name, year 1.
_MIN_MS = -62_135_596_800_000


class Outcome(str, Enum):
    """Result of a cancel, move, run, update or replay; true only for ``DONE``.

    Attributes
    ----------
    DONE
        The change was made.
    READY
        The task is in the ready list, not in the schedule; nothing was changed.
    RUNNING
        A worker has the task, which runs or is about to run.
    CHANGED
        The task is due at another time than ``if_eta``, or others keep changing it; nothing was
        changed.
    PAST
        The new time has passed; nothing was changed. Only ``reschedule_all`` counts this outcome.
    CONFLICT
        Another task has the unique key, or the new one; nothing was changed.
    UNREADABLE
        The dead letter is no message of a task, or its arguments cannot be changed; nothing was
        changed.
    REFUSED
        RabbitMQ refused the message, for example because its queue was deleted; nothing was
        changed.
    UNKNOWN
        The task has finished, or never existed.
    """

    DONE = "done"
    READY = "ready"
    RUNNING = "running"
    CHANGED = "changed"
    PAST = "past"
    CONFLICT = "conflict"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    __str__ = str.__str__

    def __bool__(self) -> bool:
        return self is Outcome.DONE


OUTCOMES: dict[StatusCode, Outcome] = {
    "d": Outcome.DONE,
    "m": Outcome.DONE,
    "w": Outcome.READY,
    "r": Outcome.RUNNING,
    "c": Outcome.CHANGED,
    "p": Outcome.PAST,
    "k": Outcome.CONFLICT,
    "x": Outcome.UNREADABLE,
    "u": Outcome.UNKNOWN,
}


def outcome_of(codes: Sequence[StatusCode]) -> Outcome:
    """Return the outcome for an id that several messages may have."""
    return OUTCOMES[worst_code(codes)]


def moment(ms: int) -> datetime:
    """Return ms since 1970 as an aware point in time, in UTC, within the years 1 to 9999."""
    return EPOCH + timedelta(milliseconds=max(_MIN_MS, min(ms, MAX_DUE_MS)))


class Paused(NamedTuple):
    """Paused queues and tasks.

    Attributes
    ----------
    queues, tasks : dict[str, datetime]
        Names, each with the time of its pause, in UTC.
    """

    queues: dict[str, datetime]
    tasks: dict[str, datetime]

    @classmethod
    def of(cls, controls: PausedNames) -> Paused:
        """Return the pauses of the stored names."""
        both = (controls.queues, controls.tasks)
        return cls(*({name: moment(ms) for name, ms in sorted(names.items())} for names in both))


@dataclass(frozen=True, slots=True, repr=False)
class ScheduledTask(MessageFields):
    """A task that is scheduled, held, ready or running.

    Attributes
    ----------
    id, task, queue : str
        The task's id and name, and its queue.
    state : str
        ``"scheduled"``; ``"paused"`` if it is due and ``pause(task=…)`` holds it; ``"held"`` if it
        is due and its limit holds it; ``"ready"`` or ``"running"``. A pause of its queue changes
        no state.
    due : datetime
        When the task is due, in UTC.
    priority : int | None
        The priority step of the ready list; None if unknown.
    unique_key : str
        The key as Redis stores it; ``""`` without a unique key.
    worker : str
        The worker id of the process that has the task; ``""`` if no process has it.
    message : dict | None
        The task message while the task is scheduled; None afterwards.
    """

    id: str
    task: str
    queue: str
    state: State
    due: datetime
    priority: int | None = None
    unique_key: str = ""
    worker: str = ""
    message: dict[str, Any] | None = None
    _name: str = ""

    def __repr__(self) -> str:
        # No arguments and unique keys, which may be secrets.
        return (
            f"<ScheduledTask {self.id!r} {self.task!r} in {self.queue!r}: "
            f"{self.state}, due {self.due.isoformat()}>"
        )

    @classmethod
    def of_record(cls, queue: str, name: str, state: State, due_ms: int, data: bytes) -> Any:
        """Return the task of a record.

        The task of an unreadable record has the name ``"?"`` and no message.
        """
        try:
            record = Record.unpack(data)
            message = message_json.decode(record.message)
            unique = unique_key(own_of(message["properties"]))[1:]
            id, task, step = str(message["headers"]["id"]), record.task, record.priority
            if state == "paused" and limit_of(record.message) is not None:
                state = "held"
            return cls(id, task, queue, state, moment(due_ms), step, unique, "", message, name)
        except (RecordError, ValueError, LookupError, TypeError, AttributeError):
            id = name.partition("\0")[0]
            return cls(id, "?", queue, state, moment(due_ms), _name=name)

    @classmethod
    def of_place(cls, queue: str, place: Location) -> Any:
        """Return the task of a location."""
        if place.record is not None:
            return cls.of_record(queue, place.name, place.state, place.due_ms, place.record)
        name, state, due_ms, _, task, unique, holder = place
        unique_key = "" if unique == "-" else unique[1:]
        id, due = name.partition("\0")[0], moment(due_ms)
        return cls(id, task, queue, state, due, None, unique_key, holder, None, name)

    @property
    def lane(self) -> str:
        """The lane of a task with a limit, while it is scheduled: ``<limit>:<key>``, both
        percent-encoded; ``""`` without a limit.
        """
        return str(self.own.get("limit", "")).partition(" ")[0]

    @property
    def limit(self) -> str:
        """The name of the task's limit while it is scheduled; ``""`` without a limit."""
        return unquote(self.lane.partition(":")[0])

    @property
    def limit_key(self) -> str:
        """The key of the task's limit while it is scheduled; ``""`` without a key."""
        return unquote(self.lane.partition(":")[2])

    def during_pauses(self, names: Container[str]) -> ScheduledTask:
        """Return the task with its state while the task names *names* are paused: a task with a
        limit and a paused name does not wait for the limit.
        """
        is_paused = self.state == "held" and self.task in names
        return replace(self, state="paused") if is_paused else self

    @property
    def eta(self) -> str | None:
        """The ETA with which the task was published, in ISO 8601; None if unknown."""
        eta: str | None = self.own.get("eta")
        return eta

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON types."""
        return {
            "id": self.id,
            "task_id": self.id,
            "task": self.task,
            "queue": self.queue,
            "state": self.state,
            "due": self.due.isoformat(),
            "eta": _with_offset(self.eta),
            "priority": self.priority,
            "retries": self.headers.get("retries"),
            **self.arguments(),
            "unique_key": self.unique_key or None,
            "limit": self.limit or None,
            "limit_key": self.limit_key or None,
            "worker": self.worker or None,
        }


def _with_offset(eta: str | None) -> str | None:
    """Return an ETA with its UTC offset; without an offset it is in UTC, as in Celery's workers."""
    try:
        moment = parse_iso(eta or "")
    except ValueError:
        return eta
    return eta if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc).isoformat()


def bound_ms(field: str, time: Any) -> int | None:
    """Return the value of a time field of a filter in ms since 1970; None for None.

    Raises
    ------
    InvalidETA
        *time* is no point in time.
    """
    try:
        return None if time is None else due_of_eta(time).ms
    except InvalidETA as exc:
        raise InvalidETA(
            f"{field}={time!r}: expected a datetime of the years 1 to 9999 or its ISO 8601 form, "
            "such as '2030-01-31T09:00:00+00:00'"
        ) from exc


class PlaceFields(TypedDict, total=False):
    """The fields of a :class:`Filter` without a search by argument."""

    queue: str | None
    task: str | None
    due_from: datetime | str | None
    due_to: datetime | str | None
    priority: int | None


class FilterFields(PlaceFields, total=False):
    """The fields of a :class:`Filter`, as calls take them by name."""

    arg: Mapping[str, Any] | None
    unpickle: bool


@dataclass(frozen=True, slots=True)
class Filter:
    """Scheduled entries to which all given conditions apply.

    Parameters
    ----------
    queue, task : str | None
        The name of the queue and of the task.
    due_from, due_to : datetime | str | None
        The first and the last due time that match, as a point in time or in ISO 8601.
    priority : int | None
        The priority step of the ready list.
    arg : Mapping[str, Any] | None
        Arguments with which the task was sent, by name: ``{"order_id": 42}``. All entries that meet
        the other conditions are read. A positional argument gets its name from the signature of the
        task, or is named by its number, ``"0"`` for the first one.
    unpickle : bool
        With *arg*, also decode messages in pickle and in other serializers of the app. That may run
        code of whoever wrote the message.

    Raises
    ------
    InvalidFilter
        A name is empty or no text, the priority is no whole number, an argument has no form in
        JSON, or *unpickle* is given without *arg*.
    """

    queue: str | None = None
    task: str | None = None
    due_from: datetime | str | None = None
    due_to: datetime | str | None = None
    priority: int | None = None
    arg: Mapping[str, Any] | None = None
    unpickle: bool = False

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        check_name("task", self.task)
        step = self.priority
        if step is not None and not is_integer(step):
            raise InvalidFilter(f"priority={step!r}: expected a priority step, such as 0 or 3")
        if self.arg is not None:
            object.__setattr__(self, "arg", checked_arguments(self.arg))
        elif self.unpickle:
            raise InvalidFilter("unpickle=True without arg: give the arguments to search for")

    @property
    def is_everything(self) -> bool:
        """Whether all entries match."""
        return self == Filter()

    @property
    def without_arg(self) -> Filter:
        """The filter without the search by argument, for the store."""
        return self if self.arg is None else replace(self, arg=None, unpickle=False)

    def conditions(self, renames: Renames) -> list[EntryCondition]:
        """Return the conditions for the store: one for each name of the task, without the queue.

        Raises the errors of :meth:`where`.
        """
        where = self.where()
        names = (None,) if self.task is None else renames.names(self.task)
        return [where._replace(task=name) for name in names]

    def where(self) -> EntryCondition:
        """Return the condition for the store, without the queue. The task has its own name only.

        Raises
        ------
        InvalidETA
            A time is invalid.
        InvalidFilter
            The filter has an *arg*, which the store does not know.
        """
        if self.arg is not None:
            raise InvalidFilter(f"arg={dict(self.arg)!r}: this call cannot search by argument")
        low, high = bound_ms("due_from", self.due_from), bound_ms("due_to", self.due_to)
        return EntryCondition(self.task, low, high, self.priority)

    def matches(self, task: ScheduledTask) -> bool:
        """Return whether an entry matches. A filter alone knows no former names of a task."""
        due_ms = due_of_eta(task.due).ms
        return self.queue in (None, task.queue) and self.where().covers(
            task.task, due_ms, task.priority
        )


def pack_cursor(values: Sequence[Any]) -> str:
    """Return the values of a cursor as a text for URLs and command lines."""
    data = json.dumps([*values]).encode("utf-8", "surrogateescape")
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unpack_cursor(text: Any) -> list[Any]:
    """Undo :func:`pack_cursor`; raises one of ``FOREIGN_ERRORS`` for other texts."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
    return [*foreign.loads(data)]


def unpack_page_cursor(text: Any, filter: Any, make: Callable[..., C]) -> C:
    """Return the cursor that *make* makes of the values of a text, behind those of the filter.

    Raises
    ------
    InvalidCursor
        *text* is no cursor, or belongs to another filter.
    """
    try:
        packed_filter, *values = unpack_cursor(text)
        cursor = make(*values)
    except foreign.FOREIGN_ERRORS as exc:
        raise InvalidCursor(
            f"cursor={text!r} is no cursor: give the cursor of the page before, or None for "
            "the first page"
        ) from exc
    if packed_filter != repr(filter):
        raise InvalidCursor(
            f"this cursor goes with {packed_filter}, and not with {filter!r}: a filter stays "
            "the same from page to page"
        )
    return cursor


class Cursor(NamedTuple):
    """A place between two pages.

    *key* is the due time (ms) of the last entry before it, *began* the time at which the first page
    was read (µs), and *last_due* the latest due time at that moment (ms).
    """

    key: int
    queue: str
    name: str
    began: int
    last_due: int | None

    @classmethod
    def first(cls, began: int) -> Cursor:
        """Return the cursor before the first page."""
        return cls(0, "", "", began, None)

    @property
    def is_first(self) -> bool:
        """Whether this is the cursor before the first page."""
        return not self.queue

    def pack(self, filter: Filter) -> str:
        """Return the cursor as a text that is valid with the same *filter* only."""
        return pack_cursor([repr(filter), *self])

    @classmethod
    def unpack(cls, text: str, filter: Filter) -> Cursor:
        """Read what :meth:`pack` wrote.

        Raises
        ------
        InvalidCursor
            *text* is no cursor, or belongs to another filter.
        """

        def make(key: Any, queue: Any, name: Any, began: Any, last_due: Any) -> Cursor:
            last_due = None if last_due is None else int(last_due)
            return cls(int(key), str(queue), str(name), int(began), last_due)

        return unpack_page_cursor(text, filter, make)


@dataclass(frozen=True, slots=True)
class Page(Generic[E]):
    """One page of the schedule or of dead letters; an iterable of its entries with a length.

    Attributes
    ----------
    entries : list[ScheduledTask] | list[DeadLetter]
        The tasks, or the dead letters, in the order of ``list``.
    cursor : str | None
        The argument ``cursor`` for the next page; None on the last page.
    looked : int
        Number of entries that were read for this page.
    unknown : int
        Number of them whose arguments are not known, in a search by argument: their content is not
        decoded, or this app does not know the signature of their task.
    """

    entries: list[E]
    cursor: str | None
    looked: int = 0
    unknown: int = 0

    def __iter__(self) -> Iterator[E]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def check_page_limit(limit: int) -> None:
    """Check the most entries of a page; raises ``ValueError``."""
    if not 1 <= limit <= 10_000:
        raise ValueError(f"limit={limit!r}: expected a number from 1 to 10,000")


@dataclass(slots=True)
class Bulk:
    """Result of a change of all entries that match a filter, and its progress while it runs.

    Attributes
    ----------
    dry_run : bool
        Whether nothing is changed; *outcomes* then counts the entries that match.
    total : int
        Approximate number of entries to read.
    outcomes : Counter[Outcome]
        Number of entries by outcome.
    found : int
        Number of matching entries that were found; the first change follows when all are found.
    unknown : int
        Number of entries whose arguments are not known, in a change by argument. They stay: their
        content is not decoded, or this app does not know the signature of their task.
    """

    dry_run: bool
    total: int = field(default=0, repr=False)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    found: int = field(default=0, compare=False, repr=False)
    unknown: int = 0

    @property
    def done(self) -> int:
        """Number of changed entries; in a dry run, of entries that match."""
        return self.outcomes[Outcome.DONE]

    @property
    def looked(self) -> int:
        """Number of entries that were read."""
        return sum(self.outcomes.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "dry_run": self.dry_run,
            "total": self.total,
            "outcomes": {str(outcome): number for outcome, number in self.outcomes.items()},
            "unknown": self.unknown,
        }
