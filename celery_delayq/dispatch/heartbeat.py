"""The heartbeat of a process: it extends leases, and compares held messages with Redis."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable

from celery_delayq.dispatch.acks import Acks, Changes
from celery_delayq.dispatch.holdings import Holdings
from celery_delayq.errors import CommandRefused
from celery_delayq.store.leases import place_of
from celery_delayq.store.schedule import Store

logger = logging.getLogger(__name__)


class Heartbeat(Holdings):
    """Holds messages, and extends the leases on them.

    Parameters
    ----------
    store : Store
        Only for the thread that extends them.
    """

    acks: Acks
    changes: Changes

    def __init__(self, worker_id: str, lease: float, store: Store) -> None:
        super().__init__(worker_id, lease)
        self._store = store
        self._strangers: dict[str, set[str]] = {}
        self._renew_at = 0.0
        self._late_acks = 0

    def extend(self) -> None:
        """Extend the lease, and reconcile if Redis counts other messages than this process."""
        self.acks.send_stuck(self._store)
        if self.tally.late_acks > self._late_acks:
            logger.warning(
                "lease of %g s expired while tasks ran, others run them again: late_acks=%d",
                self.lease,
                self.tally.late_acks - self._late_acks,
            )
            self._late_acks = self.tally.late_acks
        now = time.monotonic()
        if now >= self._renew_at:
            self._store.leases.renew(self.worker_id, 3 * self.lease)
            self._renew_at = now + 0.9 * self.lease
        believed: dict[str, int] = defaultdict(int)
        for holding in self.held.copy().values():
            believed[holding.queue] += 1
        asked = {queue for queue, _ in self._asked.copy().values()}
        are_known = True
        for queue in {*believed, *self._strangers, *asked}:
            try:
                held = self._store.leases.extend(queue, self.worker_id, self.lease)
                if held == believed[queue]:
                    self._strangers.pop(queue, None)
                elif not self.changes:
                    self.reconcile(queue)
                else:  # Redis holds what these are about, and we do not
                    are_known = False
            except CommandRefused as exc:
                # One broken queue must not end the leases on the others.
                logger.error("The lease on queue %r could not be extended: %s", queue, exc)
        if are_known:
            self.heard = now

    def reconcile(self, queue: str) -> None:
        """Compare the held messages of *queue* in Redis with those known here.

        Messages that only we know were given to others. Messages that only Redis knows, twice in a
        row, came with a reply that was lost, or their acknowledgement was lost in a failover: they
        go back.
        """
        known = {tag for tag, one in self.held.copy().items() if one.queue == queue}
        there = self._store.leases.held(queue, self.worker_id)
        lost = [tag for tag in known if self.field(tag) not in there]
        taken = [tag for tag in lost if self._pop(tag) is not None]
        if taken:
            self.tally.lost += len(taken)
            logger.warning(
                "lease of %g s expired, others have the messages: queue=%s lost=%d",
                self.lease,
                queue,
                len(taken),
            )
        asked = set(self._asked.copy())
        waiting = self.acks.of(queue)
        now_held = {self.field(tag) for tag in self.held.copy()}
        strangers = {
            name
            for name in there - now_held - waiting - {self.field(tag) for tag in known}
            if name.partition(":")[0] not in asked
        }
        again = strangers & self._strangers.get(queue, set())
        self._strangers[queue] = strangers - again
        self._give_back(self._store, queue, again)

    def _give_back(
        self, store: Store, queue: str, fields: Iterable[str], *, counted: bool = False
    ) -> None:
        fields = sorted(fields, key=place_of)
        if fields:
            moved, _ = store.leases.requeue(
                queue, self.worker_id, fields, counted="requeued" if counted else "nothing"
            )
            self.tally.given_back += moved
            logger.info("orphaned messages went back: queue=%s moved=%d", queue, moved)
