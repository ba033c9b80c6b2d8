"""Finds queues that the next-due index or the registry lacks, lost permits and lanes. No leader.

Any account that publishes may write both keys, since its scripts do. So dispatchers do not rely on
them alone: if a queue was removed from the index, or moved far behind, its tasks start some seconds
late.

Processes of older versions end leases and leave the permits of their messages behind: such a permit
would take a place of its limit for ever. And they lease messages without permits: the log says so,
since a limit does not hold meanwhile. A lane whose note that it waits for a permit is lost would
wait for ever. The call that looks at the index answers whether there are limits at all. Without
any, an audit makes no other call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from urllib.parse import unquote

from celery_delayq.dispatch.ready_looks import Registry
from celery_delayq.store.keys import Layout
from celery_delayq.store.repair import Batch
from celery_delayq.store.scripting.replies import Look
from celery_delayq.store.store import Store
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: Seconds between two audits, and queues that an audit reads in one look.
AUDIT_SECONDS = 10.0
AUDITED_QUEUES = 50

#: Processes of a queue, drawn at random, whose leased messages an audit looks at.
AUDITED_PROCESSES = 3

#: Seconds after which a process registers its own queues again, also if the registry has not
#: shrunk.
REGISTER_SECONDS = 60.0


class Audit:
    """Repairs the next-due index, the registry and permits at some looks of a dispatcher.

    Parameters
    ----------
    registry : Registry
        The queues to look at.
    consumed : Callable[[], Iterable[str]]
        Returns the queues that this process consumes, which it registers again.
    limits : Mapping[str, str]
        The definitions of the limits of this process' code, which it stores again if they are gone.
    """

    def __init__(
        self,
        registry: Registry,
        consumed: Callable[[], Iterable[str]],
        limits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._registry, self._consumed, self._limits = registry, consumed, limits
        self._remaining: Iterator[tuple[str, Layout]] | None = None
        self._audited = time.monotonic()
        self._registered = time.monotonic()
        self._size = 0
        #: Whether the audit has not looked at permits yet.
        self._must_look_at_permits = False
        #: Where the next audit of permits continues, and that of the lanes of each queue.
        self._permits = 0
        self._lanes: dict[str, int] = {}

    def note_look(self, store: Store, look: Look, *, on_duty: bool) -> None:
        """Register own queues and limits if the registry has shrunk; on duty, audit index and
        permits.
        """
        now, size = time.monotonic(), look.queues or 0
        has_shrunk, self._size = size < self._size, size
        if has_shrunk or now - self._registered >= REGISTER_SECONDS:
            self._registered = now
            store.repair_types()
            store.register_again([*self._consumed()])
            store.task_limits.announce(self._limits, only_missing=True)
        if on_duty and (self._remaining or now - self._audited >= AUDIT_SECONDS):
            self._go_on(store, look)

    def _go_on(self, store: Store, look: Look) -> None:
        if self._remaining is None:
            self._must_look_at_permits = True
            self._audited = time.monotonic()
            self._remaining = self._registry.all(store, look.queues)
        some = [*islice(self._remaining, AUDITED_QUEUES)]
        if len(some) < AUDITED_QUEUES:
            self._remaining = None
        late, has_limits = store.announce_missing(some, look.now // 1000)
        for queue in late:
            logger.warning("the next-due index did not have queue %r, or too late", queue)
        if not has_limits:
            return
        if self._must_look_at_permits:  # in the first batch of which the account may read any queue
            self._must_look_at_permits = False
            self._give_back_permits(store)
        queues = [queue for queue, _ in some]
        self._wake_forgotten_lanes(store, queues)
        _warn_of_processes_without_limits(store, queues)

    def _give_back_permits(self, store: Store) -> None:
        """Give back those of a batch of all permits whose messages are not leased."""
        self._permits, found = store.repair_tracking.check_permits(self._permits, repair=True)
        for queue, batch in found:
            for each in batch.found:
                logger.warning(
                    "gave back %d permits of messages of queue %r that are not leased",
                    each.repaired,
                    queue,
                )

    def _wake_forgotten_lanes(self, store: Store, queues: Sequence[str]) -> None:
        """Check a batch of the lanes of each queue."""
        lanes = [store.keys.queue(queue).lanes for queue in queues]
        if not lanes or not store.client.exists(*lanes):
            return
        checks = store.repair_tracking
        replies = store.run_all(
            [
                checks.forgotten_lanes_call(queue, self._lanes.get(queue, 0), repair=True)
                for queue in queues
            ]
        )
        for queue, reply in zip(queues, replies, strict=True):
            if isinstance(reply, Exception):  # an account may not change each queue
                continue
            batch = Batch.read(reply)
            if batch.cursor:
                self._lanes[queue] = batch.cursor
            else:
                self._lanes.pop(queue, None)
            for each in batch.found:
                logger.warning(
                    "tried %d lanes of queue %r again: no permit would have woken them",
                    each.repaired,
                    queue,
                )


def _warn_of_processes_without_limits(store: Store, queues: Iterable[str]) -> None:
    """Log which processes have messages of limits that do not count, each process once."""
    limits = store.task_limits
    for found in store.run_each(
        limits.without_permits_steps(queue, AUDITED_PROCESSES) for queue in queues
    ):
        if not isinstance(found, Exception):  # an account may not read each queue
            for worker_id, name in found:
                warn_once(
                    logger,
                    f"limit {unquote(name)!r} does not hold: process {worker_id} has messages of "
                    "it that do not count: its version knows no limits, or the limit began later. "
                    "Update all workers",
                )
