"""Statistics of queues, read from Redis in a bounded number of calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from celery_delayq.admin.masters_away import MasterAway
from celery_delayq.errors import CommandRefused
from celery_delayq.model.envelope import due_of_eta, own_of
from celery_delayq.model.script_values import PausedNames
from celery_delayq.store.gauges import SAMPLED_QUEUES
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.scripting.refusals import is_denied
from celery_delayq.store.store import Store, layouts
from celery_delayq.store.stores import Stores
from celery_delayq.utils import foreign

T = TypeVar("T")

_SUMS = ("scheduled", "ready", "leased", "overdue", "paused", "held", "dead")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Statistics of one queue.

    Attributes
    ----------
    name : str
        The name of the queue.
    scheduled, ready, leased, dead : int
        Entries that are not due yet, messages that wait for a worker, messages that are leased to
        processes (running, or waiting in the process), and dead letters. A message that is leased
        during the reading may count as both ready and leased.
    overdue : int
        Scheduled entries whose due time has passed, without paused and held ones. More than a few
        mean that no process dispatches.
    paused : int
        Scheduled entries that became due while their task or their queue was paused, and wait until
        it is resumed. They do not count as overdue.
    held : int
        Scheduled entries that became due and wait in lanes for their limit. They do not count as
        overdue.
    is_paused : bool
        Whether the queue itself is paused.
    next_due : float | None
        Due time of the earliest entry, in seconds since 1970 by Redis' clock.
    oldest_age : float
        Seconds since the due time of the ready or scheduled task that has waited longest; 0 if no
        task waits. Held tasks and those of a paused name do not count.
    scheduled_tasks, ready_tasks : dict[str, int]
        Scheduled entries and ready messages by task name. If a priority has more than 1,000 ready
        messages, the numbers are estimated from a sample.
    memory : int | None
        Bytes of the schedule (``MEMORY USAGE``, from samples); None if Redis does not return the
        number.
    """

    name: str
    scheduled: int
    ready: int
    leased: int
    dead: int
    overdue: int
    paused: int
    held: int
    is_paused: bool
    next_due: float | None
    oldest_age: float
    scheduled_tasks: dict[str, int]
    ready_tasks: dict[str, int]
    memory: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of all queues.

    Attributes
    ----------
    scheduled, ready, leased, overdue, paused, held, dead : int
        Sums over the queues.
    oldest_age : float
        The longest wait of a due task in any queue, in seconds.
    queues : list[QueueStats]
        The numbers of each queue, by name.
    periodic : int
        Number of periodic entries, including paused and ended entries.
    used_memory, max_memory : int | None
        The server's memory and its limit, in bytes; None if unknown.
    away : list[MasterAway]
        Unreachable masters of a Redis Cluster. Their queues and periodic entries are not counted.
    broken : dict[str, str]
        Queues and keys that are not counted because a key has the wrong type. By name, with the
        error of Redis.
    """

    scheduled: int
    ready: int
    leased: int
    overdue: int
    paused: int
    held: int
    dead: int
    oldest_age: float
    queues: list[QueueStats]
    periodic: int
    used_memory: int | None
    max_memory: int | None
    away: list[MasterAway] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return asdict(self)


def gather(stores: Stores, consumed: Iterable[str]) -> Stats:
    """Read the numbers of all registered queues and all queues of *consumed*."""
    broken: dict[str, str] = {}

    def unless_broken(name: str, read: Callable[[], T], instead: T) -> T:
        try:
            return read()
        except CommandRefused as exc:
            if is_denied(exc):
                raise
            broken[name] = str(exc)
            return instead

    keys = stores.common.keys
    known = layouts(unless_broken(keys.queues, stores.registry, {}))
    names = sorted({*known, *filter(stores.has, consumed)})
    used, max_memory = stores.common.server_memory()
    controls = unless_broken(keys.control, stores.controls, PausedNames(0, {}, {}))

    def steps(store: Store, name: str) -> Steps[QueueStats]:
        return _queue(store, name, known.get(name, store.layout), name in controls.queues)

    refused: dict[str, Exception] = {}
    queues = [*stores.run_each(names, steps, SAMPLED_QUEUES, refused).values()]
    for name, exc in refused.items():
        if is_denied(exc) or not isinstance(exc, CommandRefused):
            raise exc
        broken[name] = str(exc)
    return Stats(
        **{name: sum(getattr(each, name) for each in queues) for name in _SUMS},
        oldest_age=max((each.oldest_age for each in queues), default=0.0),
        queues=queues,
        periodic=unless_broken(keys.periodic, lambda: _periodic(stores), 0),
        used_memory=used,
        max_memory=max_memory,
        broken=broken,
    )


def _periodic(stores: Stores) -> int:
    return sum(store.periodic.count() for store in stores)


def _queue(store: Store, name: str, layout: Layout, is_paused: bool) -> Steps[QueueStats]:
    gauges = store.gauges
    size = yield from gauges.sizes_steps(name, layout)
    if is_paused:
        size = size.in_paused_queue()
    tasks: defaultdict[str, float] = defaultdict(float)
    waits = [size.now - size.first_due] if size.overdue and size.first_due is not None else []
    samples = (yield from gauges.sample_steps(name, layout, _task_and_due)) if size.ready else []
    for weight, messages in samples:
        for task, due_ms in messages:
            tasks[task] += weight
            if due_ms is not None:
                waits.append(
                    max(0, size.now - due_ms)
                    # A task that runs early is not overdue.
                )
    leased = yield from gauges.leased_steps(name, size)
    scheduled_tasks = (yield from store.scheduled_tasks_steps(name)) if size.scheduled else {}
    is_empty = not (size.scheduled or size.ready or leased)
    memory = 0 if is_empty else (yield from gauges.memory_steps(name))
    return QueueStats(
        name=name,
        scheduled=size.scheduled,
        ready=size.ready,
        leased=leased,
        dead=size.dead,
        overdue=size.overdue,
        paused=size.paused,
        held=size.held,
        is_paused=is_paused,
        next_due=None if size.first_due is None else size.first_due / 1000,
        oldest_age=max(waits, default=0) / 1000,
        scheduled_tasks=scheduled_tasks,
        ready_tasks={task: round(number) for task, number in tasks.items()},
        memory=memory,
    )


def _task_and_due(data: bytes) -> tuple[str, int | None]:
    """Return the task's name, and its due time (ms) or None if the task was not scheduled."""
    try:
        message = foreign.loads(data)
        task = str(message["headers"]["task"])
        eta = own_of(message["properties"]).get("eta")
        return task, None if eta is None else due_of_eta(eta).ms
    except (ValueError, KeyError, TypeError, AttributeError):
        return "(unreadable)", None
