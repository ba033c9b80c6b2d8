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

from celery_delayq.dispatch.acks import Acks, LeaseTally
from celery_delayq.dispatch.pending_changes import PendingChanges
from celery_delayq.dispatch.quarantine_room import QuarantineRoom, RoomState
from celery_delayq.errors import CommandRefused
from celery_delayq.settings import Settings
from celery_delayq.store.leases import Counted, place_of
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS
from celery_delayq.store.store import Store
from celery_delayq.utils import native_threads
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

#: Seconds between two looks at acknowledgements while there are any. An acknowledgement that is
#: there at two looks was not sent with a request. The thread sends it, at most 10 ms after it came.
ACK_LOOK_SECONDS = 0.005

#: Seconds between two looks at messages to requeue.
REQUEUE_LOOK_SECONDS = 0.5

#: Seconds for which a process that ends waits for Redis, where it has something to send.
SHUTDOWN_SECONDS = 5.0

#: Seconds for which a process that ends waits for the end of the thread.
JOIN_SECONDS = 1.0


def new_worker_id() -> str:
    """Return a name for this process, or a part of it, that no other has or had."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname())
    return f"{host}.{os.getpid()}.{secrets.token_hex(6)}"


@dataclass(slots=True)
class LeasedMessage:
    """One message that is leased to this process.

    Attributes
    ----------
    since : float
        Monotonic time at which the message was requested.
    message : weakref.ref | None
        The object that was handed out. While the object lives, a task may work on it.
    crashed : bool
        Whether the message killed its pool process.
    reason, details
        Why the message was rejected.
    run : bytes
        The line for the history.
    has_permit : bool
        Whether the message has a permit of a limit.
    """

    queue: str
    since: float
    message: ReferenceType[Any] | None = None
    crashed: bool = False
    reason: str | None = None
    details: bytes = b""
    run: bytes = b""
    has_permit: bool = False


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
    """Keeps the leases of one process in one Redis database.

    A consumer calls :meth:`note_leased` for the messages that it leases. :meth:`ack` or
    :meth:`release` ends the lease of one message; :meth:`requeue_idle` has the thread requeue
    messages.

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
        Changes in Redis that failed at first.
    leased : dict[str, LeasedMessage]
        The leased messages by their delivery tags.
    tally : LeaseTally
        Counts of lost and requeued messages.
    has_announced_limits : bool
        Whether this process has stored the limits of its code.
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
        self.leased: dict[str, LeasedMessage] = {}
        self.has_announced_limits = False
        self._store = store
        self._tag_prefix_length = len(worker_id) + 1
        self._request_numbers = count(1)
        #: By request number: the queue of a request without a reply, and its monotonic time.
        self._open_requests: dict[str, tuple[str, float]] = {}
        #: Tags of quarantined messages. No other message runs beside them.
        self._quarantined_tags: set[str] = set()
        #: Tags of messages that have a scarce permit of a limit.
        self._scarce_tags: set[str] = set()
        self._quarantine_room = QuarantineRoom()
        #: By queue: fields that Redis has under this worker id and this process does not know.
        self._unknown_fields: dict[str, set[str]] = {}
        self._tags_to_requeue: deque[str] = deque()
        #: Queue and request number of each abandoned request.
        self._abandoned_requests: set[tuple[str, str]] = set()
        self._open_channels = 0
        self._logged_late_acks = 0
        self._thread_state = ThreadState.STOPPED
        self._start = start
        self._work_event = native_threads.Event()
        #: For the state and the open channels.
        self._lock = native_threads.lock()
        #: Held by the thread.
        self._thread_lock = native_threads.lock()
        # Monotonic times: of the last extension of all leases, and of the next work of each kind.
        self._extended_at = time.monotonic()
        self._extend_at = 0.0
        self._renew_at = 0.0
        self._requeue_at = 0.0

    # -- requests of consumers, and leased messages

    def new_request_number(self, queue: str) -> str:
        """Return a new request number for a request that is about to be sent."""
        request_number = str(next(self._request_numbers))
        self._open_requests[request_number] = queue, time.monotonic()
        return request_number

    def note_leased(
        self,
        queue: str,
        request_number: str,
        fields: Iterable[str],
        *,
        alone: bool = False,
        permits: Iterable[str] = (),
        scarce: Iterable[str] = (),
    ) -> list[str]:
        """Note the messages that a request has leased; return their delivery tags.

        *permits* are the fields of messages that have a permit of a limit, and *scarce* those of
        them whose limit has few left.
        """
        tags = [f"{self.worker_id}:{field}" for field in fields]
        _, since = self._open_requests.pop(request_number, (queue, time.monotonic()))
        for tag in tags:
            self.leased[tag] = LeasedMessage(queue, since)
        if alone:
            self._quarantined_tags.update(tags)
        for field in permits:
            self.leased[f"{self.worker_id}:{field}"].has_permit = True
        self._scarce_tags.update([f"{self.worker_id}:{field}" for field in scarce])
        return tags

    def note_handed_out(self, tag: str, message: Any) -> bool:
        """Note the object of a message; return whether its task may start.

        False if the message is not leased, or if its lease may have ended: then the message is
        requeued, unless another process has it.
        """
        leased_message = self.leased.get(tag)
        if leased_message is None:
            return False
        if time.monotonic() > max(self._extended_at, leased_message.since) + self.lease:
            self.requeue_idle([tag])
            return False
        leased_message.message = ref(message)
        return True

    def message_of(self, tag: str) -> Any:
        """Return the object of a leased message, or None after its garbage collection."""
        leased_message = self.leased.get(tag)
        return (
            None
            if leased_message is None or leased_message.message is None
            else leased_message.message()
        )

    def owns(self, tag: str) -> bool:
        """Return whether a delivery tag was made here."""
        return tag.startswith(self.worker_id)

    def field(self, tag: str) -> str:
        """Return the field under which Redis keeps the message *tag*."""
        return tag[self._tag_prefix_length :]

    def ack(self, tag: str) -> None:
        """Acknowledge a message. The ack is sent soon, and again until Redis has answered."""
        is_scarce = tag in self._scarce_tags
        one = self.release(tag)
        if one is not None:
            how = {"has_permit": one.has_permit, "is_urgent": is_scarce}
            self.acks.add(one.queue, self.field(tag), one.run, **how)

    def release(self, tag: str) -> LeasedMessage | None:
        """Remove a message from the leased ones and return it; None if it was not leased."""
        leased_message = self._pop(tag)
        if leased_message is None:
            self.tally.foreign_acks += 1
        return leased_message

    def _pop(self, tag: str) -> LeasedMessage | None:
        self._quarantined_tags.discard(tag)
        self._scarce_tags.discard(tag)
        return self.leased.pop(tag, None)

    def requeue_idle(self, tags: Iterable[str]) -> None:
        """Have the thread requeue messages as soon as no task works on them."""
        before = len(self._tags_to_requeue)
        self._tags_to_requeue.extend(tags)
        if len(self._tags_to_requeue) > before:
            self._wake()

    def abandon_request(self, queue: str, request_number: str) -> None:
        """Have the thread requeue the messages of a request whose reply will never be read."""
        self._open_requests.pop(request_number, None)
        self._abandoned_requests.add((queue, request_number))
        self._wake()

    def requeue_abandoned(self, store: Store) -> Iterable[tuple[str, str]]:
        """Requeue the messages that abandoned requests have leased; return the requests.

        A caller that requeues older messages calls this method first, since each call puts its
        messages at the head of their lists. If Redis executes a request later, its messages come
        back when the lease ends.
        """
        requests = tuple(self._abandoned_requests)
        for queue, request_number in requests:
            stored_fields = store.leases.leased_fields(queue, self.worker_id)
            fields = {name for name in stored_fields if name.partition(":")[0] == request_number}
            self._requeue(store, queue, fields)
        return requests

    # -- whether consumers may ask for messages

    @property
    def scarce(self) -> int:
        """The number of leased messages that have a scarce permit of a limit."""
        return len(self._scarce_tags)

    @property
    def busy(self) -> int:
        """The number of leased messages and of requests without a reply."""
        return len(self.leased) + len(self._open_requests)

    @property
    def leases_beside(self) -> int:
        """:attr:`busy` without the current request, for ``leases/acquire.lua``.

        -1 tells the script to lease no quarantined message to this process.
        """
        beside, room = self.busy - 1, self._quarantine_room
        leaves = room.state is RoomState.LEAVES_TO_OTHERS and time.monotonic() < room.until
        return -1 if beside and leaves else beside

    def make_room(self) -> None:
        """Ask for no message while one is leased: a quarantined message waits."""
        self._quarantine_room = QuarantineRoom(RoomState.MAKES_ROOM, time.monotonic() + self.lease)

    def may_request(self) -> bool:
        """Return whether to ask for messages.

        Not while this process makes room for a quarantined message, or runs one.
        """
        before = self._quarantine_room
        room = before.at(time.monotonic(), self.lease, is_empty=not self.leased)
        # Assign only a changed value: another thread may have called `make_room` meanwhile.
        if room is not before:
            self._quarantine_room = room
        return room.state is not RoomState.MAKES_ROOM and not self._quarantined_tags

    # -- channels, and the end of the process

    def add_channel(self) -> None:
        """Note that a channel uses this object: the thread runs."""
        with self._lock:
            self._open_channels += 1
        self._wake()

    def remove_channel(self) -> None:
        """Note that a channel has closed. The messages that it handed out stay leased."""
        with self._lock:
            self._open_channels -= 1
        self._work_event.set()

    def send_all(self, store: Store) -> None:
        """Send all changes, acknowledgements and lines of history over the caller's *store*."""
        self.changes.flush(store)
        self.acks.flush(store)
        self.acks.early_runs.flush(store)

    def finish(self, timeout: float = 1.0) -> None:
        """Wait at most *timeout* seconds for the thread to send changes and lines of history."""
        runs = self.acks.early_runs
        runs.send_soon()
        self._wait_while(lambda: self.changes or runs, time.monotonic() + timeout)

    def end(self, until: float) -> None:
        """Wait for the thread to finish all work: the process ends, and no task runs any more.

        Parameters
        ----------
        until : float
            Monotonic time at which to give up.
        """
        for leased_message in self.leased.copy().values():
            leased_message.message = None
        self._requeue_at = 0.0
        self.acks.early_runs.send_soon()
        self._wait_while(
            lambda: (
                self.changes
                or self.acks.early_runs
                or self.acks.unanswered
                or self._abandoned_requests
                or self._tags_to_requeue
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
        self._work_event.set()
        if self._thread_lock.acquire(True, JOIN_SECONDS):
            self._thread_lock.release()

    def _wait_while(self, has_work: Callable[[], object], until: float) -> None:
        while has_work() and time.monotonic() < until:
            self._work_event.set()
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
        self._work_event.set()

    def _run(self) -> None:
        # The thread before this one may still close its connections, or wait for a silent server.
        is_only_one = self._thread_lock.acquire(True, self.lease / 3)
        try:
            self._work()
        finally:
            if is_only_one:
                self._thread_lock.release()

    def _work(self) -> None:
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
            with suppress(*OUTAGE_ERRORS):  # the claim of the worker id expires anyway
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
            goes_on = bool(
                self._open_channels
                or self.leased
                or self.changes
                or self.acks
                or self.acks.early_runs
                or self._abandoned_requests
                or self._tags_to_requeue
            )
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
        if now >= self._requeue_at and (self._tags_to_requeue or self._abandoned_requests):
            self._requeue_at = now + REQUEUE_LOOK_SECONDS
            self._abandoned_requests.difference_update(self.requeue_abandoned(self._store))
            self._requeue_idle_messages()

    def _wait_for_work(self) -> None:
        """Wait until something is to do; while acknowledgements come, until the next look."""
        if time.monotonic() < self.acks.look_until:
            native_threads.sleep(self._ack_interval)
            return
        self._work_event.clear()  # first: work that is added from now on sets the event again
        if self.acks or self.changes:
            return
        until = min(self._extend_at, self.acks.early_runs.due)
        if self._tags_to_requeue or self._abandoned_requests:
            until = min(until, self._requeue_at)
        self._work_event.wait(until - time.monotonic())

    def _requeue_idle_messages(self) -> None:
        """Requeue the messages in `_tags_to_requeue` whose tasks have ended."""
        tags, in_work = self._tags_to_requeue.copy(), []
        idle: dict[str, list[str]] = defaultdict(list)
        for tag in tags:
            leased_message = self.leased.get(tag)
            if leased_message is None:
                continue
            if leased_message.message is not None and leased_message.message() is not None:
                in_work.append(tag)
            else:
                idle[leased_message.queue].append(tag)
        try:
            for queue, idle_tags in idle.items():
                self._requeue(self._store, queue, map(self.field, idle_tags), "requeued")
                for tag in idle_tags:
                    self._pop(tag)
        finally:
            # Add before removing: `end` waits until there are none.
            failed = (tag for each in idle.values() for tag in each if tag in self.leased)
            self._tags_to_requeue.extend([*in_work, *failed])
            for _ in tags:
                self._tags_to_requeue.popleft()

    # -- the heartbeat

    def extend(self) -> None:
        """Extend the leases; reconcile each queue whose number of messages in Redis differs."""
        self.acks.send_stuck(self._store)
        self._warn_of_late_acks()
        now = time.monotonic()
        if now >= self._renew_at:
            self._store.leases.renew(self.worker_id, 3 * self.lease)
            self._renew_at = now + 0.9 * self.lease
        known_counts = Counter(
            leased_message.queue for leased_message in self.leased.copy().values()
        )
        asked_queues = {queue for queue, _ in self._open_requests.copy().values()}
        are_known = True
        for queue in {*known_counts, *self._unknown_fields, *asked_queues}:
            try:
                leased_count = self._store.leases.extend(queue, self.worker_id, self.lease)
                if leased_count == known_counts[queue]:
                    self._unknown_fields.pop(queue, None)
                elif not self.changes:
                    self.reconcile(queue)
                else:  # the messages of these changes are leased in Redis only
                    are_known = False
            except CommandRefused as exc:
                # One broken queue must not end the leases on the others.
                logger.error("The lease on queue %r could not be extended: %s", queue, exc)
        if are_known:
            self._extended_at = now

    def _warn_of_late_acks(self) -> None:
        late_acks = self.tally.late_acks - self._logged_late_acks
        if late_acks > 0:
            text = "lease of %g s expired while tasks ran, others run them again: late_acks=%d"
            logger.warning(text, self.lease, late_acks)
            self._logged_late_acks += late_acks

    def reconcile(self, queue: str) -> None:
        """Compare the leased messages of *queue* in Redis with those of this process.

        A message that only this process knows was given to another process. A message that only
        Redis knows in two comparisons in a row came with a lost reply, or its acknowledgement was
        lost in a failover: it is requeued.
        """
        known_tags = {tag for tag, one in self.leased.copy().items() if one.queue == queue}
        stored_fields = self._store.leases.leased_fields(queue, self.worker_id)
        lost_tags = [tag for tag in known_tags if self.field(tag) not in stored_fields]
        taken = [tag for tag in lost_tags if self._pop(tag) is not None]
        if taken:
            self.tally.lost_messages += len(taken)
            logger.warning(
                "lease of %g s expired, others have the messages: queue=%s lost=%d",
                self.lease,
                queue,
                len(taken),
            )
        open_requests = set(self._open_requests.copy())
        unanswered_fields = self.acks.unanswered_fields(queue)
        leased_fields = {self.field(tag) for tag in self.leased.copy()}
        unknown_fields = {
            name
            for name in stored_fields
            - leased_fields
            - unanswered_fields
            - {self.field(tag) for tag in known_tags}
            if name.partition(":")[0] not in open_requests
        }
        orphaned_fields = unknown_fields & self._unknown_fields.get(queue, set())
        self._unknown_fields[queue] = unknown_fields - orphaned_fields
        self._requeue(self._store, queue, orphaned_fields)

    def _requeue(
        self, store: Store, queue: str, fields: Iterable[str], counted: Counted = "nothing"
    ) -> None:
        fields = sorted(fields, key=place_of)
        if fields:
            moved, _ = store.leases.requeue(queue, self.worker_id, fields, counted=counted)
            self.tally.requeued += moved
            logger.info("orphaned messages were requeued: queue=%s moved=%d", queue, moved)


#: The keepers of this process, by the process id and the id of the Redis database.
_KEEPERS: dict[tuple[int, str], LeaseKeeper] = {}


def keeper_of(database_id: str, make: Callable[[], LeaseKeeper]) -> LeaseKeeper:
    """Return this process' keeper for a database; make it if needed, in a forked child too."""
    own = (os.getpid(), database_id)
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
