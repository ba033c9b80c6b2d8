"""The page "Fleet": dispatchers, processes with leases, versions of the code, and clocks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_delayq.model.scheduled import moment
from celery_delayq.store.paging import queues_of
from celery_delayq.store.stores import Stores
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site

#: Most processes that the page shows.
MAX_PROCESSES = 200


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


@dataclass(frozen=True, slots=True)
class Fleet:
    """The view; *versions* are the announced versions of the code, with their last time."""

    now: datetime
    shards: list[Shard]
    processes: list[Process]
    more_processes: int
    versions: dict[str, datetime]


def read(site: Site, _: Query) -> Fleet:
    """Return the view."""
    session = site.delayq.session
    shards = session.ask(_shards)
    processes = session.ask(_processes)
    versions = session.ask(lambda stores: stores.common.gauges.code_versions())
    return Fleet(
        site.now(),
        shards,
        processes[:MAX_PROCESSES],
        max(0, len(processes) - MAX_PROCESSES),
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


def _processes(stores: Stores) -> list[Process]:
    """Return processes with leases, those with most messages first."""
    queues: dict[str, dict[str, int]] = {}
    ends: dict[str, float] = {}
    found = stores.run_each(queues_of(stores, None), lambda s, queue: s.leases.leases_steps(queue))
    lease_times = {tag: store.gauges.fleet().lease_now_ms for tag, store in stores.by_tag()}
    for queue, leases in found.items():
        lease_now = lease_times[stores.of(queue).keys.tag]
        for worker_id, ends_ms, number in leases:
            queues.setdefault(worker_id, {})[queue] = number
            left = (ends_ms - lease_now) / 1000
            ends[worker_id] = max(left, ends.get(worker_id, left))
    each = [Process(worker_id, its, ends[worker_id]) for worker_id, its in queues.items()]
    return sorted(each, key=lambda process: (-process.messages, process.worker_id))
