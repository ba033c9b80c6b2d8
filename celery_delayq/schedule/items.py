"""Items, outcomes and the report of ``schedule_many``. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from celery import Celery, Signature, Task
from kombu.utils.uuid import uuid

from celery_delayq.errors import DelayQError
from celery_delayq.model.names import renames_of
from celery_delayq.model.publish_outcome import Stored
from celery_delayq.schedule.message_template import Job, TargetTask, message_id_of_id
from celery_delayq.utils.text import UTF8_TEXT

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
        When the task is due: a point in time, or seconds from the publish by Redis' clock. As in
        Celery, a countdown goes before an ETA. Without either the task runs at once.
    id : str | None
        The id of the task; None for a new id. Items with the same id are stored once while the task
        waits or runs.
    task : Task | str | None
        The task or its name; None for the task of the whole call of ``schedule_many``.
    queue, priority, expires : str | None, int | None, float | datetime | None
        As for ``apply_async``.
    options : Mapping[str, Any]
        Other options of ``apply_async``, such as ``headers`` or ``link``.
    unique_key : Key | str | Callable | None
        As for ``apply_async``. A :class:`~.unique.Key` takes no extra time.
    version : str
        Items with the same id and another version are other items. Their unique key decides which
        of them stays.
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
        The place of the item among the items, from 0.
    id : str | None
        The id of the task; None if the item could not be read.
    state : str
        Stored: ``"scheduled"``, ``"ready"`` (due already) or ``"replaced"`` (it replaced another
        task with its unique key). Stored before: ``"duplicate"`` (a task with that id waits or
        runs, or the reply to a first attempt was lost). Not stored: ``"kept"`` (another task
        keeps the unique key), ``"conflict"`` (:class:`~celery_delayq.errors.UniqueConflict`),
        ``"full"`` (:class:`~celery_delayq.errors.QueueFull`), or ``"refused"`` (the item is no call
        of a task that can be scheduled).
    error : Exception | None
        The error that ``apply_async`` would raise; None if the item was not refused.
    other : str
        The id of the other task that has or had the unique key; ``""`` without one.
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
        Number of items by state.
    taken : int
        Number of items that were taken from the iterable.
    position : int
        All items before this index have an outcome. To continue after an error, start here:
        ``itertools.islice(items, position, None)``. Later items may be stored already; those with
        an id of their own are not stored twice.
    refusals : list[ItemOutcome]
        The first hundred items with an error.
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
        """Number of items that were not stored, with an error."""
        return sum(self.counts.get(state, 0) for state in ("full", "conflict", "refused"))

    @property
    def uncertain(self) -> int:
        """Number of items that may be stored or not; 0 unless an error ended the call."""
        return self.taken - sum(self.counts.values())

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        uncertain = f", {self.uncertain} uncertain" if self.uncertain else ""
        return f"{self.taken} items: {counts or 'none stored'}{uncertain}"


class InvalidItem(DelayQError, ValueError):
    """An item of ``schedule_many`` is no call of a task that can be scheduled.

    Cure: The message names the field; ``report.refusals`` has the positions of such items.
    """


class ManyFailed(DelayQError):
    """``schedule_many`` ended before all items were sent; ``__cause__`` is the error.

    Cure: Continue from ``report.position``; items with ids of their own may be sent again.

    Attributes
    ----------
    report : ManyReport
        The outcomes until the error, and the position from which to continue.
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
    """Raise InvalidItem if *items* is a single item or a text."""
    if isinstance(items, (Item, Mapping, str, bytes)):
        raise InvalidItem(f"items={items!r}: expected several of them, such as [Item(...)]")


class ItemReader:
    """Reads items as calls; *options* are the options for all items."""

    def __init__(self, app: Celery, task: Any, options: dict[str, Any]) -> None:
        self._app = app
        self._tasks = app.tasks
        self._renames = renames_of(app)
        self.common = dict(options)
        for name in ("retry", "retry_policy", "add_to_parent"):
            self.common.pop(name, None)
        for_all = {name: self.common.pop(name, None) for name in FIELD_OPTIONS}
        self._defaults = Item(task=task, **for_all)
        #: By identity of the given task: to resolve a proxy of a task takes longer than the rest.
        self._targets: dict[int, tuple[Any, TargetTask]] = {}

    def read(self, given: Any) -> Job:
        """Return the call of an item.

        Raises
        ------
        InvalidItem
            The item is no call of a task.
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
            id = uuid()
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
        """Return the task of an item; only its name if this app does not know the task."""
        known, target = self._targets.get(id(task), (None, None))
        if target is not None and known is task:
            return target
        if isinstance(task, str) and task:
            name = self._renames.of(task)
            found = self._tasks.get(name)
            target = TargetTask(name) if found is None else TargetTask.of(found)
        elif isinstance(task, Task):
            if task.app is not self._app:
                raise InvalidItem(f"task={task!r} belongs to another app, {task.app!r}")
            # The registered task, since decorators return a proxy.
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
    """Return the item of a mapping or a signature.

    Raises
    ------
    InvalidItem
        *given* is neither, or has unknown fields.
    """
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
