"""What this process holds: under which name, for how long, and what of it is done.

A lease belongs to the process, not to a channel: Celery closes channels when a connection is
lost, while tasks run on. A native thread extends it every third of its length, however long a
task runs, and sends acknowledgements that did not find a ride with a request.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from celery_delayq.dispatch.acks import LOST, Acks, Changes
from celery_delayq.dispatch.early_history import EarlyRuns
from celery_delayq.dispatch.heartbeat import Holdings
from celery_delayq.errors import CommandRefused
from celery_delayq.settings import Settings
from celery_delayq.store.schedule import Store
from celery_delayq.utils import native_threads

logger = native_threads.Logger(__name__)

#: Seconds between two looks at acknowledgements while there are any. One that is still there at
#: the second look, after at most twice as long, has found no request to ride on.
ACK_LOOK = 0.005

#: Seconds without any after which the thread sleeps until it is woken: that costs the waking thread
#: more than a look.
ACK_QUIET = 0.1

#: Seconds between two looks at what a lost connection has left behind.
ORPHAN_LOOK = 0.5


def new_worker_id() -> str:
    """Return a name for this process that no other has or had."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname())
    return f"{host}.{os.getpid()}.{secrets.token_hex(6)}"


class LeaseKeeper(Holdings):
    """Holds messages for one process in one Redis database.

    Parameters
    ----------
    store : Store
        For the thread of this object alone, with connections of its own: where gevent has patched
        sockets, a connection belongs to the thread that made it.
    claim : Callable[[str, float], bool]
        Claims a worker id for so many seconds; False when it is in use.
    settings : Settings
        ``lease`` and ``max_deliveries`` are read.
    name : Callable[[], str]
        Makes the names to try as worker id.
    start : Callable[[Callable[[], None]], None]
        Starts the thread.
    """

    def __init__(
        self,
        store: Store,
        claim: Callable[[str, float], bool],
        settings: Settings,
        name: Callable[[], str] = new_worker_id,
        start: Callable[[Callable[[], None]], None] = native_threads.start,
    ) -> None:
        worker_id = name()
        while not claim(worker_id, 3 * settings.lease):
            logger.warning("Worker id %s is in use, taking another one", worker_id)
            worker_id = name()
        super().__init__(worker_id, settings.lease)
        self.max_deliveries = settings.max_deliveries
        self._orphans: deque[str] = deque()
        self._abandoned: set[tuple[str, str]] = set()
        self._strangers: dict[str, set[str]] = {}
        self._signal = native_threads.Signal()
        self._users = 0
        self._lock = native_threads.lock()
        self._thread_lock = native_threads.lock()
        self._running = False
        self._next_beat = 0.0
        self._renew_at = 0.0
        self._next_look = 0.0
        self._quiet_at = 0.0
        self._late_acks = 0
        self._first_ack: object | None = None
        self._store = store
        self._start = start
        self.acks = Acks(self.worker_id, self.tally, self._wake)
        #: What could not be changed in Redis at once.
        self.changes = Changes(self._wake)
        self.runs = EarlyRuns(self.worker_id, settings.history, self._begin)

    # -- what consuming channels call

    def join(self) -> None:
        """Keep leases while a channel uses this object."""
        with self._lock:
            self._users += 1
        self._begin()

    def _begin(self) -> None:
        """Have the thread look what there is to do, and run if it does not."""
        with self._lock:
            if not self._running:
                self._running = True
                self._next_beat = time.monotonic() + self.lease / 3
                self._start(self._run)
        self._signal.give()

    def _wake(self) -> None:
        """Have the thread look; it may have ended, with the last channel and nothing held."""
        if self._running:
            self._signal.give()
        else:
            self._begin()

    def leave(self) -> None:
        """A channel has gone; what it has handed out stays held."""
        with self._lock:
            self._users -= 1
        self._signal.give()

    def finish(self, patience: float = 1.0) -> None:
        """Let the thread do what is left to do, for *patience* seconds at most: the end is near."""
        self.runs.hurry()
        self._wait_while(lambda: self.changes or self.runs, time.monotonic() + patience)

    def end(self, until: float) -> None:
        """Let the thread do all that is left to do: the process ends, and nobody works any more.

        Parameters
        ----------
        until : float
            By the monotonic clock, when to give up.
        """
        for holding in self.held.copy().values():
            holding.message = None
        self._next_look = 0.0
        self.runs.hurry()
        self._wait_while(
            lambda: (
                self.changes
                or self.runs
                or self.acks.unanswered
                or self._abandoned
                or self._orphans
            ),
            until,
        )
        self.changes.give_up()

    def _wait_while(self, is_left: Callable[[], object], until: float) -> None:
        while is_left() and time.monotonic() < until:
            self._signal.give()
            native_threads.sleep(0.005)
        native_threads.say()

    def ack(self, tag: str) -> None:
        """Acknowledge a message; soon sent, and again until Redis has answered."""
        holding = self.drop(tag)
        if holding is not None:
            self.acks.add(holding.queue, self.field(tag), holding.run)

    def handed_out(self, tag: str, message: object) -> bool:
        """Note the object of a message; False if it is not held, or its lease may have ended.

        Then others may run it by now; if not, it is given back.
        """
        holding = self.held.get(tag)
        if holding and time.monotonic() > max(self.heard, holding.since) + self.lease:
            self.orphan([tag])
            return False
        return super().handed_out(tag, message)

    def orphan(self, tags: Iterable[str]) -> None:
        """The channel of these messages has gone: give them back once nobody works on them."""
        self._orphans.extend(tags)
        self._signal.give()

    def abandon(self, queue: str, request_number: str) -> None:
        """The reply to a request was lost for good: give back what it may have got."""
        self._asked.pop(request_number, None)
        self._abandoned.add((queue, request_number))
        self._signal.give()

    # -- the thread

    def _run(self) -> None:
        # The thread before this one may still close its connections, or wait for a silent server.
        alone = self._thread_lock.acquire(True, self.lease / 3)
        try:
            self._keep()
        finally:
            if alone:
                self._thread_lock.release()

    def _keep(self) -> None:
        down = False
        while self._needed():
            try:
                self._turn()
                if down:
                    logger.info("Leases are kept again, Redis is back")
                    down = False
                    self._next_beat = self._renew_at = 0.0
            except LOST as exc:
                if not down:
                    logger.warning("Redis is away, leases cannot be kept: %s", exc)
                    down = True
                native_threads.sleep(min(1.0, self.lease / 6))
            except Exception:
                logger.exception("Keeping leases failed and is tried again")
                native_threads.sleep(min(1.0, self.lease / 6))
        try:
            with suppress(*LOST):  # it expires
                self._store.leases.disclaim(self.worker_id)
        finally:
            self._renew_at = 0.0
            self._store.client.connection_pool.disconnect()

    def _needed(self) -> bool:
        with self._lock:
            # First: whoever adds something from now on finds that the thread may be ending.
            self._running = False
            work = (self.held, self.acks, self.changes, self._abandoned, self._orphans, self.runs)
            self._running = bool(self._users or any(work))
            return self._running

    def _turn(self) -> None:
        """Wait for something to do, and do it."""
        now = time.monotonic()
        if now < self._quiet_at:
            native_threads.sleep(ACK_LOOK)
        else:
            wait = min(self._next_beat, self.runs.due) - now
            if self._orphans or self._abandoned:
                wait = min(wait, self._next_look - now)
            self._signal.take_back()
            if not (self.acks or self.changes):
                self._signal.wait(wait)
        try:
            self.changes.flush(self._store, self._next_beat)
            self._look_after_acks()
            if time.monotonic() >= self.runs.due:
                self.runs.flush(self._store)
        finally:  # what fails is tried again, and no lease is to end meanwhile
            now = time.monotonic()
            if now >= self._next_beat:
                self.beat()
                self._next_beat = now + self.lease / 3
        if now >= self._next_look and (self._orphans or self._abandoned):
            self._next_look = now + ORPHAN_LOOK
            self._look_after_orphans()

    def _look_after_acks(self) -> None:
        """Send the acknowledgements that have waited since the last look."""
        first = self.acks.first
        waited = first is not None and first is self._first_ack
        self._first_ack = None if waited else first
        if first is not None:
            self._quiet_at = time.monotonic() + ACK_QUIET
        if waited:
            self.acks.flush(self._store)

    def beat(self) -> None:
        """Extend the lease, and reconcile where Redis counts otherwise than we do."""
        self.acks.send_stuck(self._store)
        if self.tally.late_acks > self._late_acks:
            logger.warning(
                "%d tasks were done after their messages had been given to others, which run them "
                "again: this process was not heard for longer than its lease of %g s",
                self.tally.late_acks - self._late_acks,
                self.lease,
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
        """Compare what Redis says that we hold of *queue* with what we know.

        What we know and Redis does not, was given to others. What Redis knows and we do not, twice
        in a row, came with a reply that was lost, or its acknowledgement was lost in a failover:
        it goes back.
        """
        known = {tag for tag, one in self.held.copy().items() if one.queue == queue}
        there = self._store.leases.held(queue, self.worker_id)
        lost = [tag for tag in known if self.field(tag) not in there]
        taken = [tag for tag in lost if self._pop(tag) is not None]
        if taken:
            self.tally.lost += len(taken)
            logger.warning(
                "%d messages of queue %r were given to others: this process was not heard "
                "for longer than its lease of %g s",
                len(taken),
                queue,
                self.lease,
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
        self._give_back(queue, again)

    def _look_after_orphans(self) -> None:
        """Give back what nobody works on any more."""
        for queue, request_number in tuple(self._abandoned):
            there = self._store.leases.held(queue, self.worker_id)
            self._give_back(
                queue, {name for name in there if name.partition(":")[0] == request_number}
            )
            self._abandoned.discard((queue, request_number))
        seen, owned = self._orphans.copy(), []
        unowned: dict[str, list[str]] = defaultdict(list)
        for tag in seen:
            holding = self.held.get(tag)
            if holding is None:
                continue
            if holding.message is not None and holding.message() is not None:
                owned.append(tag)
            else:
                unowned[holding.queue].append(tag)
        try:
            for queue, tags in unowned.items():
                self._give_back(queue, map(self.field, tags), counted=True)
                for tag in tags:
                    self._pop(tag)
        finally:
            # Add before removing: `end` waits until there are none.
            failed = (tag for tags in unowned.values() for tag in tags if tag in self.held)
            self._orphans.extend([*owned, *failed])
            for _ in seen:
                self._orphans.popleft()

    def _give_back(self, queue: str, fields: Iterable[str], *, counted: bool = False) -> None:
        fields = sorted(fields, key=lambda name: [int(part) for part in name.split(":")])
        if fields:
            moved, _ = self._store.leases.requeue(
                queue, self.worker_id, fields, counted="requeued" if counted else "nothing"
            )
            self.tally.given_back += moved
            logger.info("%d messages of queue %r go back, nobody works on them", moved, queue)
