"""Items, outcomes and the report of ``schedule_many``. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from celery import Celery, Signature, Task

from celery_delayq.errors import DelayQError
from celery_delayq.integration.send_task import new_id
from celery_delayq.model.names import UTF8_TEXT
from celery_delayq.model.publish_outcome import Stored
from celery_delayq.schedule.message_template import Job, TargetTask, message_id_of_id

#: Most tasks whose targets are remembered.
MAX_CACHED_TARGETS = 1024

State = Literal[Stored, "refused"]


class Item(NamedTuple):
    """One call of a task.

    Parameters
    ----------
    args, kwargs : tuple | list, dict | None
        Arguments of the task.
    eta, countdown : datetime | str | None, float | None
        When it is to run: a point in time, or seconds from when it is sent by Redis' clock. As in
        Celery a countdown goes before an ETA; without either it runs at once.
    id : str | None
        Its id. The same id again is the same item: it is stored once, as long as it waits or runs.
    task : Task | str | None
        The task or its name, where ``schedule_many`` is not given one for all.
    queue, priority, expires : str | None, int | None, float | datetime | None
        As for ``apply_async``.
    options : Mapping[str, Any]
        More of its options, such as ``headers`` or ``link``.
    unique_key : Key | str | Callable | None
        As for ``apply_async``; items whose keys are each a :class:`~.unique.Key` are
        made as fast as those without.
    version : str
        The same id with another version is another item; its unique key decides which one stays.
    """

    args: Any = ()
    kwargs: Any = None
    eta: Any = None
    countdown: Any = None
    id: str | None = None
    task: Any = None
    queue: Any = None
    priority: Any = None
    expires: Any = None
    options: Mapping[str, Any] = {}
    unique_key: Any = None
    version: str = ""


@dataclass(slots=True)
class ItemOutcome:
    """The outcome of one item.

    Attributes
    ----------
    index : int
        Its place among the items, from 0.
    id : str | None
        The id of its task; None for an item that could not be read.
    state : str
        ``"scheduled"``; ``"ready"``, due already; ``"duplicate"``, an item with that id waits or
        runs already, which is also said when the answer to a first attempt was lost;
        ``"replaced"``, it took the place of another with its unique key; ``"kept"``, another keeps
        it; and, not stored: ``"conflict"`` and ``"full"``, for the same reasons as
        :class:`~celery_delayq.errors.UniqueConflict` and
        :class:`~celery_delayq.errors.QueueFull`, or ``"refused"``: it is no call of a task that
        can be scheduled.
    error : Exception | None
        What ``apply_async`` would have raised.
    other : str
        The id of the other task that has or had its unique key.
    """

    index: int
    id: str | None
    state: State
    error: Exception | None = None
    other: str = ""


@dataclass(slots=True)
class ManyReport:
    """The outcomes of all items.

    Attributes
    ----------
    counts : dict[str, int]
        Items by state.
    taken : int
        Items that were taken from the iterable.
    position : int
        All items before this one have their outcome: go on with this one, as by
        ``itertools.islice(items, position, None)``. Items after it may be stored already; those
        with an id of their own are not stored twice.
    refusals : list[ItemOutcome]
        The first hundred that were not stored.
    """

    counts: dict[State, int] = field(default_factory=dict)
    taken: int = 0
    position: int = 0
    refusals: list[ItemOutcome] = field(default_factory=list)

    @property
    def stored(self) -> int:
        """Number of items that are new in Redis."""
        return sum(self.counts.get(state, 0) for state in ("scheduled", "ready", "replaced"))

    @property
    def refused(self) -> int:
        """Number of items that were not stored because of an error."""
        return sum(self.counts.get(state, 0) for state in ("full", "conflict", "refused"))

    @property
    def uncertain(self) -> int:
        """Number of items that may or may not be in Redis; 0 unless an error ended the call."""
        return self.taken - sum(self.counts.values())

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        uncertain = f", {self.uncertain} uncertain" if self.uncertain else ""
        return f"{self.taken} items: {counts or 'none stored'}{uncertain}"


class InvalidItem(DelayQError, ValueError):
    """An item of ``schedule_many`` is no call of a task that can be scheduled."""


class ManyFailed(DelayQError):
    """Scheduling many tasks ended before all were sent; ``__cause__`` says why.

    Attributes
    ----------
    report : ManyReport
        The items taken and stored until then, and the position to continue from.
    """

    def __init__(self, message: str, report: ManyReport) -> None:
        super().__init__(message, report)
        self.report = report

    def __str__(self) -> str:
        return str(self.args[0])


#: Options of ``apply_async`` that are fields of an item.
FIELD_OPTIONS = ("eta", "countdown", "queue", "priority", "expires", "unique_key")

#: Options that an item cannot have: it has a field for them, or they concern the whole call.
REFUSED_OPTIONS = frozenset({*Item._fields, "task_id", "producer", "publisher", "connection"}) - {
    "unique_key"
}


def check_several(items: Any) -> None:
    """Raise InvalidItem if *items* is one item, or a text."""
    if isinstance(items, (Item, Mapping, str, bytes)):
        raise InvalidItem(f"items={items!r}: expected several of them, such as [Item(...)]")


class ItemReader:
    """Reads items."""

    def __init__(self, app: Celery, task: Any, options: dict[str, Any]) -> None:
        self._app = app
        self._tasks = app.tasks
        self.common = dict(options)
        for name in ("retry", "retry_policy", "add_to_parent"):
            self.common.pop(name, None)
        for_all = {name: self.common.pop(name, None) for name in FIELD_OPTIONS}
        self._defaults = Item(task=task, **for_all)
        #: By identity: looking at a proxy of a task costs more than all the rest.
        self._targets: dict[int, tuple[Any, TargetTask]] = {}

    def read(self, given: Any) -> Job:
        """Return the call of an item.

        Raises
        ------
        InvalidItem
            It is no call of a task.
        """
        if type(given) is not Item:
            given = _item_of(given)
        args, kwargs, eta, countdown, id, task, queue, priority, expires, options, key, version = (
            given
        )
        defaults = self._defaults
        if eta is None and countdown is None:
            eta, countdown = defaults.eta, defaults.countdown
        if options and (misplaced := sorted(REFUSED_OPTIONS & options.keys())):
            raise InvalidItem(f"{', '.join(misplaced)}: not among the options of an item")
        if id is None:
            id = new_id()
            message_id = id[-12:] + id[:4]
        elif type(id) is str and id:
            try:
                message_id = message_id_of_id(id, version)
            except UnicodeEncodeError:
                given = f"id={id!r}, version={version!r}"
                raise InvalidItem(f"{given}: expected {UTF8_TEXT}") from None
        else:
            raise InvalidItem(f"id={id!r}: expected a text, such as 'reminder-17', or None")
        return Job(
            self._target(defaults.task if task is None else task),
            id,
            message_id,
            args or (),
            kwargs or {},
            eta,
            countdown,
            defaults.expires if expires is None else expires,
            defaults.queue if queue is None else queue,
            defaults.priority if priority is None else priority,
            options,
            defaults.unique_key if key is None else key,
        )

    def _target(self, task: Any) -> TargetTask:
        """Return the task of an item, by its name only if this app does not know it."""
        known, target = self._targets.get(id(task), (None, None))
        if target is not None and known is task:
            return target
        if isinstance(task, str) and task:
            found = self._tasks.get(task)
            target = TargetTask(task) if found is None else TargetTask.of(found)
        elif isinstance(task, Task):
            if task.app is not self._app:
                raise InvalidItem(f"task={task!r} belongs to another app, {task.app!r}")
            # Not a proxy, as decorators return.
            target = TargetTask.of(self._tasks.get(task.name, task))
        else:
            raise InvalidItem(
                f"task={task!r}: expected a task or its name, in the item or for all: "
                "schedule_many(items, task=...)"
            )
        if len(self._targets) >= MAX_CACHED_TARGETS:
            self._targets.clear()
        self._targets[id(task)] = task, target
        return target


def _item_of(given: Any) -> Item:
    """Return a mapping or a signature as an item."""
    if isinstance(given, Signature):
        if given.subtask_type is not None:
            raise InvalidItem(
                f"{given!r}: a {given.subtask_type} is not one task; expected the signature of a "
                "task, or send it by apply_async"
            )
        more = {k: v for k, v in given.options.items() if v is not None}
        fields = {name: more.pop(name, None) for name in FIELD_OPTIONS}
        id = more.pop("task_id", None)
        return Item(given.args, given.kwargs, id=id, task=given.task, options=more, **fields)
    if isinstance(given, Mapping):
        unknown = sorted(str(name) for name in given if name not in Item._fields)
        if unknown:
            raise InvalidItem(
                f"unknown field(s) of an item: {', '.join(unknown)}; valid are: "
                f"{', '.join(Item._fields)}; other options of apply_async go into options"
            )
        return Item(**given)
    if isinstance(given, Item):
        return given
    raise InvalidItem(
        f"{given!r}: expected an Item, a mapping with some of {', '.join(Item._fields)}, or the "
        "signature of a task"
    )
