"""The page "Fleet": dispatchers, processes with leases and their tasks, versions of the code, and
clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from celery_delayq.errors import RecordError
from celery_delayq.model.delivery import split_leased
from celery_delayq.model.payload import TaskMessage
from celery_delayq.model.scheduled import moment
from celery_delayq.store.paging import queues_of
from celery_delayq.store.stores import Stores
from celery_delayq.utils import foreign
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site, Texts

#: Most processes that the page shows.
MAX_PROCESSES = 200

#: Most tasks of processes that the page shows, and bytes of messages from which it reads no more.
MAX_TASKS, MAX_MESSAGE_BYTES = 50, 1_000_000


@dataclass(frozen=True, slots=True)
class Shard:
    """What one Redis, or one hash tag of a cluster, knows of its dispatchers.

    Attributes
    ----------
    tag : str
        The hash tag; ``""`` for a single Redis.
    dispatchers : int | None
        Number of dispatchers that listen; None if unknown.
    on_duty : str
        The dispatcher on duty; ``""`` if none is.
    last_call, up_to_date : datetime | None
        When the dispatcher on duty last called, and when one last had nothing due.
    skew : float
        Seconds by which the clock of this machine is ahead of Redis'.
    """

    tag: str
    dispatchers: int | None
    on_duty: str
    last_call: datetime | None
    up_to_date: datetime | None
    skew: float


@dataclass(frozen=True, slots=True)
class Process:
    """A process with leases: the number of its messages by queue, and until when it has them."""

    worker_id: str
    queues: dict[str, int]
    ends: float

    @property
    def messages(self) -> int:
        """Number of leased messages."""
        return sum(self.queues.values())


class Leased(NamedTuple):
    """A task that a process runs, or is about to run."""

    worker_id: str
    queue: str
    id: str
    task: str
    texts: Texts


@dataclass(frozen=True, slots=True)
class Fleet:
    """The view.

    Attributes
    ----------
    queue : str | None
        The queue whose messages are counted; None for all.
    tasks : list[Leased]
        Some tasks of each process, the processes in their order.
    more_tasks, no_tasks : int
        Number of messages that are not shown, and of messages without a task that were read.
    versions : dict[str, datetime]
        The announced versions of the code, with their last time.
    """

    now: datetime
    queue: str | None
    shards: list[Shard]
    processes: list[Process]
    more_processes: int
    tasks: list[Leased]
    more_tasks: int
    no_tasks: int
    versions: dict[str, datetime]


def read(site: Site, query: Query) -> Fleet:
    """Return the view. Field: ``queue``, whose messages are counted."""
    session, queue = site.delayq.session, query.name("queue")
    shards = session.ask(_shards)
    processes = session.ask(lambda stores: _processes(stores, queue))
    tasks, no_tasks = session.ask(lambda stores: _tasks(site, stores, processes))
    versions = session.ask(lambda stores: stores.common.gauges.code_versions())
    return Fleet(
        site.now(),
        queue,
        shards,
        processes[:MAX_PROCESSES],
        max(0, len(processes) - MAX_PROCESSES),
        tasks,
        max(0, sum(each.messages for each in processes) - len(tasks) - no_tasks),
        no_tasks,
        {name: moment(ms) for name, ms in versions.items()},
    )


def _shards(stores: Stores) -> list[Shard]:
    found: list[Shard] = []
    for tag, store in stores.by_tag():
        fleet, skew = store.gauges.fleet(), store.gauges.server().skew
        called, up_to_date = map(_moment, (fleet.called_ms, fleet.dispatched_ms))
        found.append(Shard(tag, fleet.dispatchers, fleet.on_duty, called, up_to_date, skew))
    return found


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def _processes(stores: Stores, queue: str | None) -> list[Process]:
    """Return processes with leases of a queue, or of all; those with most messages first."""
    queues: dict[str, dict[str, int]] = {}
    ends: dict[str, float] = {}
    found = stores.run_each(queues_of(stores, queue), lambda s, name: s.leases.leases_steps(name))
    lease_times = {tag: store.gauges.fleet().lease_now_ms for tag, store in stores.by_tag()}
    for name, leases in found.items():
        lease_now = lease_times[stores.of(name).keys.tag]
        for worker_id, ends_ms, number in leases:
            queues.setdefault(worker_id, {})[name] = number
            left = (ends_ms - lease_now) / 1000
            ends[worker_id] = max(left, ends.get(worker_id, left))
    each = [Process(worker_id, its, ends[worker_id]) for worker_id, its in queues.items()]
    return sorted(each, key=lambda process: (-process.messages, process.worker_id))


def _tasks(site: Site, stores: Stores, processes: Sequence[Process]) -> tuple[list[Leased], int]:
    """Return some tasks of each process, and how many messages are none.

    The processes take turns, so that one with many messages hides no other.
    """
    found, no_tasks, size = list[Leased](), 0, 0
    turns = deque(_messages(stores, each) for each in processes)
    while turns and len(found) < MAX_TASKS and size <= MAX_MESSAGE_BYTES:
        messages = turns.popleft()
        if (each := next(messages, None)) is None:
            continue
        turns.append(messages)
        worker_id, queue, value = each
        size += len(value)
        task = _task_of(value)
        if task is None:
            no_tasks += 1
            continue
        id, name = str(task.headers["id"]), str(task.headers.get("task") or "")
        texts = site.texts_of(task, uuid=id, name=name)
        found.append(Leased(worker_id, queue, id, name, texts))
    places = {each.worker_id: place for place, each in enumerate(processes)}
    return sorted(found, key=lambda each: places[each.worker_id]), no_tasks


def _messages(stores: Stores, process: Process) -> Iterator[tuple[str, str, bytes]]:
    """Yield worker id, queue and bytes of each message of a process."""
    for queue in process.queues:
        for _, value in stores.of(queue).scan.leased(queue, process.worker_id):
            yield process.worker_id, queue, split_leased(value)[1]


def _task_of(data: bytes) -> TaskMessage | None:
    """Return the task of a message; None if it is none."""
    try:
        message = foreign.loads(data)
    except RecordError:
        return None
    task = TaskMessage(message if isinstance(message, dict) else {})
    return task if task.headers.get("id") else None
