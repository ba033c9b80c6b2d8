"""Keeps the leases of this process: worker id, heartbeat thread, acknowledgements.

A lease belongs to the process, not to a channel: Celery closes channels when a connection is
lost, while tasks run on. A native thread extends it every third of its length, however long a
task runs, and sends acknowledgements that no request took along.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

from celery_delayq.dispatch.acks import Acks
from celery_delayq.dispatch.lease_tally import LeaseTally
from celery_delayq.dispatch.pending_changes import PendingChanges
from celery_delayq.dispatch.quarantine_room import QuarantineRoom, RoomState
from celery_delayq.errors import CommandRefused
from celery_delayq.settings import Settings
from celery_delayq.store.leases import place_of
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS
from celery_delayq.utils import native_threads
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

#: Seconds between two looks at acknowledgements while there are any. One that is still there at
#: the second look, after at most twice as long, has found no request to ride on.
ACK_LOOK_SECONDS = 0.005

#: Seconds between two looks at messages that are to be given back.
REQUEUE_LOOK_SECONDS = 0.5

#: Seconds for which a process that ends waits for Redis, where it has something to send.
SHUTDOWN_SECONDS = 5.0

#: Seconds for which it waits then for the end of the thread.
JOIN_SECONDS = 1.0


def new_worker_id() -> str:
    """Return a name for this process, or a part of it, that no other has or had."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname())
    return f"{host}.{os.getpid()}.{secrets.token_hex(6)}"


@dataclass(slots=True)
class Holding:
    """One message that this process holds.

    *since* is the monotonic time at which it was asked for. *message* is the object that was handed
    out; while it lives, someone may still work on it.
    *crashed* says that it killed its process; *reason* and *details* say why it was rejected;
    *run* is its history line.
    """

    queue: str
    since: float
    message: ReferenceType[Any] | None = None
    crashed: bool = False
    reason: str | None = None
    details: bytes = b""
    run: bytes = b""


class ThreadState(Enum):
    """What the thread of a :class:`LeaseKeeper` does.

    From state to state:

    ======== ================================= ========
    from     by                                to
    ======== ================================= ========
    STOPPED  `join`, or there is work          RUNNING
    RUNNING  the end of a turn                 DECIDING
    DECIDING a channel is open, or there is    RUNNING
             work
    DECIDING there is no work                  STOPPED
    any      `end`                             ENDED
    ======== ================================= ========
    """

    #: No thread runs, or the last one closes its connections. New work starts a thread.
    STOPPED = auto()
    #: The thread finds all work that is added.
    RUNNING = auto()
    #: The thread decides whether to go on. Whoever adds work waits for the decision.
    DECIDING = auto()
    #: The process ends, and no thread starts any more.
    ENDED = auto()


class LeaseKeeper:
    """Holds messages for one process in one Redis database.

    A consumer calls :meth:`hold` for what it leases. Each message is released by :meth:`ack` or
    :meth:`release`, or :meth:`give_back_later` leaves it to the thread.

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
    ack_interval : float
        Seconds between two looks at acknowledgements while there are any.

    Attributes
    ----------
    acks : Acks
        Acknowledgements that Redis has not answered.
    changes : PendingChanges
        What could not be changed in Redis at once.
    held : dict[str, Holding]
        The held messages by their delivery tags.
    tally : LeaseTally
        Numbers of what went wrong.
    """

    def __init__(
        self,
        store: Store,
        claim: Callable[[str, float], bool],
        settings: Settings,
        name: Callable[[], str] = new_worker_id,
        start: Callable[[Callable[[], None]], None] = native_threads.start,
        ack_interval: float = ACK_LOOK_SECONDS,
    ) -> None:
        self._ack_interval = ack_interval
        worker_id = name()
        while not claim(worker_id, 3 * settings.lease):
            logger.warning("Worker id %s is in use, taking another one", worker_id)
            worker_id = name()
        self.worker_id = worker_id
        self.lease = settings.lease
        self.max_deliveries = settings.max_deliveries
        self.tally = LeaseTally()
        self.acks = Acks(worker_id, settings.history, self.tally, self._wake)
        self.changes = PendingChanges(self._wake)
        self.held: dict[str, Holding] = {}
        self._store = store
        self._tag_prefix_length = len(worker_id) + 1
        self._request_numbers = count(1)
        #: By request number: the queue that was asked, and when by the monotonic clock.
        self._asked: dict[str, tuple[str, float]] = {}
        #: Tags of held messages beside which nothing else is to run.
        self._alone: set[str] = set()
        self._room = QuarantineRoom()
        #: By queue: fields that Redis keeps for this process, and that it does not know of.
        self._unknown_fields: dict[str, set[str]] = {}
        self._tags_to_give_back: deque[str] = deque()
        #: Queue and request number of each.
        self._abandoned_requests: set[tuple[str, str]] = set()
        #: Open channels.
        self._users = 0
        self._warned_late_acks = 0
        self._thread_state = ThreadState.STOPPED
        self._start = start
        self._signal = native_threads.Signal()
        #: For the state and the open channels.
        self._lock = native_threads.lock()
        #: Held by the thread.
        self._thread_lock = native_threads.lock()
        # Monotonic times: when all leases were extended last, and when to do what next.
        self._extended_at = time.monotonic()
        self._extend_at = 0.0
        self._renew_at = 0.0
        self._give_back_at = 0.0

    # -- what consumers ask for, and what this process holds

    def new_request_number(self, queue: str) -> str:
        """Return the request number of a request that is about to be sent."""
        request_number = str(next(self._request_numbers))
        self._asked[request_number] = queue, time.monotonic()
        return request_number

    def hold(
        self, queue: str, request_number: str, fields: Iterable[str], *, alone: bool = False
    ) -> list[str]:
        """Note the messages that came for *request_number* as held; return their delivery tags."""
        tags = [f"{self.worker_id}:{field}" for field in fields]
        _, since = self._asked.pop(request_number, (queue, time.monotonic()))
        for tag in tags:
            self.held[tag] = Holding(queue, since)
        if alone:
            self._alone.update(tags)
        return tags

    def note_handed_out(self, tag: str, message: Any) -> bool:
        """Note the object of a message; False if it is not held, or its lease may have ended.

        Then others may run it by now; if not, it is given back.
        """
        holding = self.held.get(tag)
        if holding is None:
            return False
        if time.monotonic() > max(self._extended_at, holding.since) + self.lease:
            self.give_back_later([tag])
            return False
        holding.message = ref(message)
        return True

    def message_of(self, tag: str) -> Any:
        """Return the object of a held message, or None after its garbage collection."""
        holding = self.held.get(tag)
        return None if holding is None or holding.message is None else holding.message()

    def owns(self, tag: str) -> bool:
        """Return whether a delivery tag was made here."""
        return tag.startswith(self.worker_id)

    def field(self, tag: str) -> str:
        """Return the field under which Redis keeps the message *tag*."""
        return tag[self._tag_prefix_length :]

    def ack(self, tag: str) -> None:
        """Acknowledge a message; it is sent soon, and again until Redis has answered."""
        holding = self.release(tag)
        if holding is not None:
            self.acks.add(holding.queue, self.field(tag), holding.run)

    def release(self, tag: str) -> Holding | None:
        """Hold a message no more, and return it; None if it was not held."""
        holding = self._pop(tag)
        if holding is None:
            self.tally.foreign_acks += 1
        return holding

    def _pop(self, tag: str) -> Holding | None:
        self._alone.discard(tag)
        return self.held.pop(tag, None)

    def give_back_later(self, tags: Iterable[str]) -> None:
        """Give messages back once no task works on them."""
        before = len(self._tags_to_give_back)
        self._tags_to_give_back.extend(tags)
        if len(self._tags_to_give_back) > before:
            self._wake()

    def abandon_request(self, queue: str, request_number: str) -> None:
        """Give back what a request may have got whose reply is lost for good."""
        self._asked.pop(request_number, None)
        self._abandoned_requests.add((queue, request_number))
        self._wake()

    def give_back_abandoned(self, store: Store) -> Iterable[tuple[str, str]]:
        """Give back what abandoned requests have got by now, and return the requests.

        Whoever gives older messages back calls this before: each call puts its messages at the
        head. What Redis executes later comes back when the lease ends.
        """
        requests = tuple(self._abandoned_requests)
        for queue, request_number in requests:
            there = store.leases.held(queue, self.worker_id)
            fields = {name for name in there if name.partition(":")[0] == request_number}
            self._give_back(store, queue, fields)
        return requests

    # -- whether consumers ask for more

    @property
    def busy(self) -> int:
        """The number of held messages and of requests that may bring more."""
        return len(self.held) + len(self._asked)

    @property
    def others(self) -> int:
        """:attr:`busy` without the current request; -1 to leave quarantined messages to others."""
        busy, room = self.busy - 1, self._room
        leaves = room.state is RoomState.LEAVES_TO_OTHERS and time.monotonic() < room.until
        return -1 if busy and leaves else busy

    def make_room(self) -> None:
        """Take nothing until nothing is held: a quarantined message waits."""
        self._room = QuarantineRoom(RoomState.MAKES_ROOM, time.monotonic() + self.lease)

    def may_take(self) -> bool:
        """Return whether to take messages: not to make room, or beside one that runs alone."""
        before = self._room
        room = before.at(time.monotonic(), self.lease, is_empty=not self.held)
        if room is not before:  # else one that another thread has begun to make might be lost
            self._room = room
        return room.state is not RoomState.MAKES_ROOM and not self._alone

    # -- what channels begin and end

    def join(self) -> None:
        """Keep leases while a channel uses this object."""
        with self._lock:
            self._users += 1
        self._wake()

    def leave(self) -> None:
        """Note that a channel has closed; messages that it handed out stay held."""
        with self._lock:
            self._users -= 1
        self._signal.give()

    def finish(self, timeout: float = 1.0) -> None:
        """Let the thread finish its work, for *timeout* seconds at most."""
        runs = self.acks.early_runs
        runs.send_soon()
        self._wait_while(lambda: self.changes or runs, time.monotonic() + timeout)

    def end(self, until: float) -> None:
        """Let the thread finish all work: the process ends, and no task runs any more.

        Parameters
        ----------
        until : float
            Monotonic time at which to give up.
        """
        for holding in self.held.copy().values():
            holding.message = None
        self._give_back_at = 0.0
        self.acks.early_runs.send_soon()
        self._wait_while(
            lambda: (
                self.changes
                or self.acks.early_runs
                or self.acks.unanswered
                or self._abandoned_requests
                or self._tags_to_give_back
            ),
            until,
        )
        self.changes.give_up()
        self._end_thread()

    def _end_thread(self) -> None:
        """Wait for the end of the thread; the interpreter would end it in the middle of its work.

        With gevent and eventlet that thread may be in a greenlet, and the process would crash.
        """
        with self._lock:
            self._thread_state = ThreadState.ENDED
        self._signal.give()
        if self._thread_lock.acquire(True, JOIN_SECONDS):
            self._thread_lock.release()

    def _wait_while(self, is_left: Callable[[], object], until: float) -> None:
        while is_left() and time.monotonic() < until:
            self._signal.give()
            native_threads.sleep(0.005)
        native_threads.write_log_lines()

    # -- the thread

    def _wake(self) -> None:
        """Wake the thread, or start one where none runs."""
        if self._thread_state is not ThreadState.RUNNING:
            with self._lock:
                if self._thread_state is ThreadState.STOPPED:
                    self._extend_at = time.monotonic() + self.lease / 3
                    self._start(self._run)
                    self._thread_state = ThreadState.RUNNING
        self._signal.give()

    def _run(self) -> None:
        # The thread before this one may still close its connections, or wait for a silent server.
        is_only_one = self._thread_lock.acquire(True, self.lease / 3)
        try:
            self._keep()
        finally:
            if is_only_one:
                self._thread_lock.release()

    def _keep(self) -> None:
        seconds = min(1.0, self.lease / 6)
        loop = ReconnectingLoop(
            self._store.keys.named("lease keeper"),
            logger,
            go_on=self._is_needed,
            wait=native_threads.sleep,
            retry=seconds,
            outages={"Redis is away": OUTAGE_ERRORS},
            on_failure=self._extend_next,
        )

        def turn() -> None:
            self._turn()
            loop.recovered()

        loop.run(turn)
        try:
            with suppress(*OUTAGE_ERRORS):  # it expires
                self._store.leases.disclaim(self.worker_id)
        finally:
            self._renew_at = 0.0
            self._store.client.connection_pool.disconnect()

    def _extend_next(self, is_outage: bool) -> None:
        """Extend the leases and the claim of the worker id, at once when Redis is back."""
        if is_outage:
            self._extend_at = self._renew_at = 0.0

    def _is_needed(self) -> bool:
        """Decide whether the thread makes another turn."""
        with self._lock:
            if self._thread_state is ThreadState.ENDED:
                return False
            # First: whoever adds something from now on finds that the thread may be ending.
            self._thread_state = ThreadState.DECIDING
            work = (
                *(self.held, self.changes, self.acks, self.acks.early_runs),
                *(self._abandoned_requests, self._tags_to_give_back),
            )
            goes_on = bool(self._users or any(work))
            self._thread_state = ThreadState.RUNNING if goes_on else ThreadState.STOPPED
            return goes_on

    def _turn(self) -> None:
        """Wait for something to do, and do it."""
        self._wait_for_work()
        try:
            self.changes.flush(self._store, self._extend_at)
            self.acks.send_due(self._store)
        finally:  # what fails is tried again, and no lease is to end meanwhile
            now = time.monotonic()
            if now >= self._extend_at:
                self.extend()
                self._extend_at = now + self.lease / 3
        if now >= self._give_back_at and (self._tags_to_give_back or self._abandoned_requests):
            self._give_back_at = now + REQUEUE_LOOK_SECONDS
            self._abandoned_requests.difference_update(self.give_back_abandoned(self._store))
            self._give_back_idle()

    def _wait_for_work(self) -> None:
        """Wait until something is to do; while acknowledgements come, until the next look."""
        if time.monotonic() < self.acks.look_until:
            native_threads.sleep(self._ack_interval)
            return
        self._signal.take_back()  # first: what is added from now on gives it anew
        if self.acks or self.changes:
            return
        until = min(self._extend_at, self.acks.early_runs.due)
        if self._tags_to_give_back or self._abandoned_requests:
            until = min(until, self._give_back_at)
        self._signal.wait(until - time.monotonic())

    def _give_back_idle(self) -> None:
        """Give back those of the messages to give back on which no task works any more."""
        tags, in_work = self._tags_to_give_back.copy(), []
        idle: dict[str, list[str]] = defaultdict(list)
        for tag in tags:
            holding = self.held.get(tag)
            if holding is None:
                continue
            if holding.message is not None and holding.message() is not None:
                in_work.append(tag)
            else:
                idle[holding.queue].append(tag)
        try:
            for queue, idle_tags in idle.items():
                self._give_back(self._store, queue, map(self.field, idle_tags), counted=True)
                for tag in idle_tags:
                    self._pop(tag)
        finally:
            # Add before removing: `end` waits until there are none.
            failed = (tag for each in idle.values() for tag in each if tag in self.held)
            self._tags_to_give_back.extend([*in_work, *failed])
            for _ in tags:
                self._tags_to_give_back.popleft()

    # -- the heartbeat

    def extend(self) -> None:
        """Extend the lease, and reconcile if Redis counts other messages than this process."""
        self.acks.send_stuck(self._store)
        self._warn_of_late_acks()
        now = time.monotonic()
        if now >= self._renew_at:
            self._store.leases.renew(self.worker_id, 3 * self.lease)
            self._renew_at = now + 0.9 * self.lease
        known = Counter(holding.queue for holding in self.held.copy().values())
        asked = {queue for queue, _ in self._asked.copy().values()}
        are_known = True
        for queue in {*known, *self._unknown_fields, *asked}:
            try:
                held = self._store.leases.extend(queue, self.worker_id, self.lease)
                if held == known[queue]:
                    self._unknown_fields.pop(queue, None)
                elif not self.changes:
                    self.reconcile(queue)
                else:  # Redis holds what these are about, and we do not
                    are_known = False
            except CommandRefused as exc:
                # One broken queue must not end the leases on the others.
                logger.error("The lease on queue %r could not be extended: %s", queue, exc)
        if are_known:
            self._extended_at = now

    def _warn_of_late_acks(self) -> None:
        late_acks = self.tally.late_acks - self._warned_late_acks
        if late_acks > 0:
            text = "lease of %g s expired while tasks ran, others run them again: late_acks=%d"
            logger.warning(text, self.lease, late_acks)
            self._warned_late_acks += late_acks

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
        unknown = {
            name
            for name in there - now_held - waiting - {self.field(tag) for tag in known}
            if name.partition(":")[0] not in asked
        }
        again = unknown & self._unknown_fields.get(queue, set())
        self._unknown_fields[queue] = unknown - again
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


#: The keepers of this process, by its id and the place of a Redis database.
_KEEPERS: dict[tuple[int, str], LeaseKeeper] = {}


def keeper_of(place: str, make: Callable[[], LeaseKeeper]) -> LeaseKeeper:
    """Return this process' keeper for a place; make it if needed, in a forked child too."""
    own = (os.getpid(), place)
    if own not in _KEEPERS:
        for inherited in [each for each in tuple(_KEEPERS) if each[0] != own[0]]:
            _KEEPERS.pop(inherited, None)
        # Of two threads that make one, both use the first.
        _KEEPERS.setdefault(own, make())
    return _KEEPERS[own]


@atexit.register
def _end_keepers() -> None:
    """Send the rest before the process ends."""
    until = time.monotonic() + SHUTDOWN_SECONDS
    for (pid, _), keeper in _KEEPERS.items():
        if pid == os.getpid():
            keeper.end(until)
