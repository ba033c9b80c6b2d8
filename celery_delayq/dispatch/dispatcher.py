"""Moves entries to the ready lists at the moment they are due, and reclaims ended leases.

Any number of dispatchers may run against one Redis, without a leader: ``dispatch/promote.lua`` is
atomic, and Redis' clock decides. The dispatcher on duty (:mod:`celery_delayq.dispatch.pacing`)
sleeps until the earliest entry is due, or until a pub/sub message announces an earlier entry. A
lost message or a dead dispatcher delays an entry by at most one ``dispatch_interval``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from celery_delayq.dispatch import start_gate
from celery_delayq.dispatch.audit import Audit
from celery_delayq.dispatch.lease_keeper import new_worker_id
from celery_delayq.dispatch.pacing import (
    MIN_GATHER_SECONDS,
    POLL_MARGIN_SECONDS,
    PollTimer,
    SkippedQueues,
)
from celery_delayq.dispatch.promotion_loop import Handover, PromotionLoop
from celery_delayq.dispatch.ready_looks import ReadyLooks, Registry
from celery_delayq.errors import CommandRefused, StoreFull
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS
from celery_delayq.store.scripting.refusals import is_denied
from celery_delayq.store.scripting.replies import Look, read_wake_up
from celery_delayq.store.scripting.scripts import load_for_due_tasks
from celery_delayq.store.scripting.wire import socket_of
from celery_delayq.store.store import Store
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

#: Seconds until a queue is tried again after a promotion from it failed.
DEFER_SECONDS = 1.0

#: Longest sleep, in seconds, in which a dispatcher does not listen to messages: listening costs as
#: much as a promotion.
MAX_UNHEARD_SLEEP_SECONDS = 0.005
#: Seconds without listening after which a dispatcher listens in each sleep.
MAX_UNHEARD_SECONDS = 0.1

#: Most seconds to wait for the rest of a message of which a part has come.
MESSAGE_SECONDS = 0.005

#: Seconds after its last duty for which a dispatcher still gets wake-ups.
WAKE_UP_SECONDS = 2.0

#: Whether a dispatcher looks at the ready lists, by the heartbeat of the dispatcher on duty.
HEARTBEATS = {b"1": True, b"0": False}

#: Seconds between two checks whether dead letters are too many or too old. Each checks one queue,
#: so that the cost does not grow with the number of queues.
TRIM_SECONDS = 30.0

#: Most entries that one call promotes.
MAX_PROMOTED = 50
#: Most messages that one call reclaims: the call counts the deaths of each message by its hash.
MAX_RECLAIMED = 25

#: Seconds between two promotions whose time is written to Redis, for metrics.
NOTE_PROMOTION_SECONDS = 5.0


@dataclass(slots=True)
class Tally:
    """Counts of a dispatcher since its start, and its last look."""

    promoted: int = 0
    dead_lettered: int = 0
    errors: int = 0
    last_look: Look | None = field(default=None, repr=False)


class Dispatcher(threading.Thread):
    """A thread, or a greenlet where threads are patched, that promotes from every queue in Redis'
    registry until :meth:`stop`.

    Parameters
    ----------
    store : Store
        Used by this dispatcher alone, and closed at its end.
    settings : Settings
        ``dispatch_interval``, ``dispatch_batch``, ``registry_refresh``, ``lease`` and
        ``max_deliveries`` are read.
    reopen : Callable[[], Store] | None
        Makes a new store after an outage: another server may have taken over.
    gather : float
        Seconds between two promotions of a steady stream; each moves several entries.
    consumed : Callable[[], Iterable[str]]
        Returns the queues that this process consumes.
    limits : Mapping[str, str]
        The definitions of the limits of this process' code.
    loop : PromotionLoop | None
        Promotes for several dispatchers of this process; None: this thread promotes.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        reopen: Callable[[], Store] | None = None,
        *,
        gather: float = MIN_GATHER_SECONDS,
        loop: PromotionLoop | None = None,
        consumed: Callable[[], Iterable[str]] = tuple,
        limits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(name="delayq-dispatcher", daemon=True)
        self.tally = Tally()
        self._store = store
        self._reopen = reopen
        self._settings = settings
        self._batch = min(settings.dispatch_batch, MAX_PROMOTED)
        self._stopping = threading.Event()
        self._has_started = False
        self._id = new_worker_id()
        # Each look lets lease time pass by at most a third of a lease. So leases do not end while
        # no dispatcher looks, such as in an outage of Redis.
        self._timer = PollTimer(min(settings.dispatch_interval, settings.lease / 6), gather=gather)
        self._unheard_sleep = max(MAX_UNHEARD_SLEEP_SECONDS, gather)
        #: Queues from which this account may not promote, or not reclaim.
        self._skipped_queues, self._unreclaimed_queues = SkippedQueues(), SkippedQueues()
        self._registry = Registry(settings.registry_refresh)
        #: The ready lists, and whether the fleet looks at them.
        self.ready_looks = ReadyLooks(self._registry)
        self._audit = Audit(self._registry, consumed, limits)
        self._listened_at = float("-inf")
        #: Whether it listens to the fleet and is counted, and whether it gets wake-ups.
        self._is_subscribed = self._gets_wake_ups = False
        self._on_duty_at = float("-inf")
        self._trimmed_at = float("-inf")
        self._noted_at = self._call_noted_at = float("-inf")
        self._queues_to_trim: list[str] = []
        self._loop = loop
        self._handover: Handover | None = None

    def stop(self) -> None:
        """End the thread within one ``dispatch_interval``. For any thread or signal.

        The caller need not wait: each promotion is atomic.
        """
        self._stopping.set()
        if self._loop is not None and self._handover is not None:
            self._loop.leave(self._handover)

    def run(self) -> None:
        """Dispatch until :meth:`stop`; outlives every error."""
        load_for_due_tasks()
        seconds = self._settings.dispatch_interval
        self._reconnecting = ReconnectingLoop(
            self._store.keys.named("dispatcher"),
            logger,
            go_on=lambda: not self._stopping.is_set(),
            wait=self._stopping.wait,
            retry=seconds,
            outages={"Redis is away": OUTAGE_ERRORS},
            on_failure=self._after_failure,
        )
        self._reconnecting.run(self._dispatch_connected)
        with suppress(Exception):  # or others notice
            self._store.resign(self._id)
        self._store.client.connection_pool.disconnect()

    def _dispatch_connected(self) -> None:
        """Dispatch for as long as the connection lasts."""
        self._timer.note_reconnect()
        self.ready_looks.note_reconnect()
        self._repair_types()
        wire = self._store.keep_connection()
        self._handover = Handover(self._timer, wire, self._next_call, self._read_promoted)
        with self._store.client.pubsub(ignore_subscribe_messages=True) as pubsub:
            self._subscribe(pubsub)
            self._is_subscribed = self._gets_wake_ups = bool(pubsub.subscribed)
            self._on_duty_at = time.monotonic()
            start_gate.wait(lambda: not self._stopping.is_set())
            self._look()
            self._reconnecting.recovered()
            if not self._has_started:
                self._has_started = True
                logger.info("%s started", self._store.keys.named("dispatcher"))
            while not self._stopping.is_set():
                if self.ready_looks.is_looking:
                    self._look_at_portion(pubsub)
                    if self._timer.wait():
                        continue
                if self._promote_in_loop(pubsub) and self._timer.wait():
                    continue
                self._sleep(pubsub)
                self._dispatch()
                self._subscribe_on_duty(pubsub)

    def _promote_in_loop(self, pubsub: Any) -> bool:
        """Have the promotion loop promote until this thread has other work.

        Return False if this thread has to promote itself.
        """
        if not self._loop:
            return False
        self._take_messages(pubsub)  # a poll does not see what is read already
        handover, wake_ups = self._handover, socket_of(pubsub.connection)
        if not (handover and handover.wire.socket and wake_ups):
            return False
        if self._timer.on_duty and (self._timer.wait() or self._timer.next_queue is not None):
            self._loop.promote(handover, wake_ups.fileno())
            self._take_messages(pubsub)
            return True
        return False

    def _after_failure(self, is_outage: bool) -> None:
        """Count an error; after an outage connect to the new master, if there is one."""
        if not is_outage:
            self.tally.errors += 1
            self.ready_looks.give_up()  # due entries must not wait for the rest of this look
        elif self._reopen is not None and not self._stopping.is_set():
            with suppress(Exception):  # the next turn logs what is wrong
                self._store = self._reopen()

    def _subscribe(self, pubsub: Any) -> None:
        """Subscribe to wake-ups; an account without that right only polls."""
        channels = self._store.keys.fleet, self._store.keys.wake
        try:
            pubsub.subscribe(*channels)
            for _ in channels:
                pubsub.get_message(timeout=self._settings.dispatch_interval)
        except CommandRefused as exc:
            logger.warning(
                "This account may not listen to %s (%s): tasks may start up to %s s late",
                " and ".join(channels),
                exc,
                self._settings.dispatch_interval,
            )
            pubsub.reset()

    def _subscribe_on_duty(self, pubsub: Any) -> None:
        """Subscribe to wake-ups on duty only: Redis sends each wake-up to all subscribers."""
        now = time.monotonic()
        if self._timer.on_duty:
            self._on_duty_at = now
        if not self._is_subscribed or self._gets_wake_ups == (
            now - self._on_duty_at < WAKE_UP_SECONDS
        ):
            return
        self._gets_wake_ups = not self._gets_wake_ups
        if not self._gets_wake_ups:
            pubsub.unsubscribe(self._store.keys.wake)
        else:
            pubsub.subscribe(self._store.keys.wake)
            self._timer.look_now(MAX_UNHEARD_SLEEP_SECONDS)  # a wake-up may have been missed

    def _sleep(self, pubsub: Any) -> None:
        """Sleep until the next look or promotion; messages may change its time."""
        while (wait := self._timer.wait()) and not self._stopping.is_set():
            recently = time.monotonic() - self._listened_at < MAX_UNHEARD_SECONDS
            if not pubsub.subscribed or (wait <= self._unheard_sleep and recently):
                self._stopping.wait(wait)
                return
            self._take_message(pubsub, max(0.0, wait - POLL_MARGIN_SECONDS))
            self._listened_at = time.monotonic()

    def _take_message(self, pubsub: Any, timeout: float = 0.0) -> bool:
        """Handle the next heartbeat or wake-up; False if none came within *timeout* seconds."""
        message = pubsub.get_message(timeout=timeout)
        if not message:
            return False
        data: bytes = message["data"]
        if message["channel"].decode() == self._store.keys.fleet:
            if data in HEARTBEATS:
                self._timer.note_heartbeat()
                self.ready_looks.note_heartbeat(HEARTBEATS[data])
        elif (wake_up := read_wake_up(data)) and wake_up[0] not in self._skipped_queues:
            self._timer.wake_in(*wake_up)
        return True

    def _look_at_portion(self, pubsub: Any) -> None:
        """Look at the next portion of the ready lists, and handle new messages.

        Due entries go first, for as long as a portion may wait.
        """
        if self._timer.wait() or self.ready_looks.is_time:
            self.ready_looks.go_on(self._store)
        self._take_messages(pubsub)

    def _take_messages(self, pubsub: Any) -> None:
        """Handle all messages that have come."""
        while pubsub.subscribed and pubsub.has_data():
            self._take_message(pubsub, MESSAGE_SECONDS)

    def _dispatch(self) -> None:
        """Look at the next queue, or at the next-due index if no queue is known."""
        queue = self._timer.next_queue
        if queue is None:
            self._look()
            return
        try:
            layout = self._registry.layout(self._store, queue)
            reply = self._store.run(self._promote_call(queue, layout))
        except (CommandRefused, StoreFull) as exc:
            self._skip_refused(queue, exc)
        else:
            self._read_promoted(reply)

    def _next_call(self) -> Call | None:
        """Return the next call for the promotion loop; None if this thread has work."""
        queue = self._timer.next_queue
        if queue is None or not self._timer.on_duty:
            return None
        layout = self._registry.known(queue)
        return self._promote_call(queue, layout) if layout else None

    def _promote_call(self, queue: str, layout: Layout) -> Call:
        """Return the call that promotes from a queue."""
        now = time.monotonic()
        note = now - self._noted_at >= NOTE_PROMOTION_SECONDS
        self._call_noted_at = now if note else self._noted_at
        me = self._id if self._timer.may_take_duty_by_promotion or self._timer.on_duty else ""
        return self._store.promote_call(
            queue, layout, self._batch, note=note, dispatcher=me, skipped=self._skipped_queues
        )

    def _read_promoted(self, reply: Any) -> None:
        """Handle the reply to the promotion from the timer's queue."""
        promoted, queue = self._store.read_promoted(reply), str(self._timer.queue)
        self._skipped_queues.discard(queue)
        self._noted_at = self._call_noted_at
        self.tally.promoted += promoted.moved
        self.tally.dead_lettered += promoted.dead_lettered
        self.tally.last_look = promoted.look
        if promoted.dead_lettered:
            logger.error(
                "unreadable or too late entries: queue=%s dead_lettered=%d",
                queue,
                promoted.dead_lettered,
            )
        self._timer.note_look(promoted.look, promoted)

    def _skip_refused(self, queue: str, exc: Exception) -> None:
        """Skip a queue after an error, so that other queues do not wait for it."""
        self.tally.errors += 1
        self._repair_types()
        if self._timer.leave_duty():  # others may be able to
            self._store.resign(self._id)
        if is_denied(exc) and not self._skipped_queues.is_full:
            if self._skipped_queues.add(queue):
                logger.error("account may not promote, left to others: queue=%s: %s", queue, exc)
            self._look()
        else:
            logger.error("promoting failed: queue=%s retry_s=%g: %s", queue, DEFER_SECONDS, exc)
            self._timer.note_look(
                self._store.defer_queue(queue, DEFER_SECONDS, self._skipped_queues)
            )

    def _repair_types(self) -> None:
        """Delete shared keys whose types somebody has changed, if the account may."""
        with suppress(CommandRefused):  # others have that right
            self._store.repair_types()

    def _look(self) -> None:
        """Look at the next-due index, and reclaim the messages of ended leases.

        The look also lets lease time pass.
        """
        me = self._id if self._timer.may_take_vacant_duty else ""
        look = self.tally.last_look = self._store.next_queue(
            self._settings.lease / 3,
            me,
            is_subscribed=self._is_subscribed,
            ready_every=self.ready_looks.look_seconds,
            skipped=self._skipped_queues,
        )
        self._timer.note_look(look)
        self.ready_looks.note_look(look)
        with suppress(CommandRefused, StoreFull):  # others have that right, or the next audit
            self._audit.note_look(self._store, look, on_duty=self._timer.on_duty)
        for queue in look.reclaim_expired:
            if queue not in self._unreclaimed_queues:
                self._reclaim(queue)
        now = time.monotonic()
        if self._timer.on_duty and now - self._trimmed_at >= TRIM_SECONDS:
            self._trimmed_at = now
            self._trim()

    def _trim(self) -> None:
        """Delete dead letters of the next queue if they are too many or too old.

        Each new dead letter checks the number too, so this check is mainly for the age.
        """
        if not self._queues_to_trim:
            self._queues_to_trim = [*self._store.registry()]
        if self._queues_to_trim:
            queue = self._queues_to_trim.pop()
            try:
                # By the layout that its own consumers wrote: other apps may share this Redis.
                self._store.dead_letters.trim_by(queue, self._registry.layout(self._store, queue))
            except CommandRefused as exc:
                self.tally.errors += 1
                logger.error("trimming dead letters failed: queue=%s: %s", queue, exc)

    def _reclaim(self, queue: str) -> None:
        """Reclaim the messages of a queue from processes whose leases have expired."""
        settings, leases = self._settings, self._store.leases
        more = moved = True
        while more and moved and not self._stopping.is_set():
            worker_id = ""
            try:
                worker_id = leases.first_ended_lease(queue) or ""
                layout = self._registry.layout(self._store, queue)
                more, *counts = leases.reclaim_expired(
                    queue,
                    layout,
                    worker_id,
                    min(MAX_RECLAIMED, self._batch),
                    settings.max_deliveries,
                    settings.lease / 3,
                )
            except CommandRefused as exc:
                self.tally.errors += 1
                if self._unreclaimed_queues.add(queue):
                    logger.error("reclaiming from %s failed: queue=%s: %s", worker_id, queue, exc)
                return
            self._unreclaimed_queues.discard(queue)
            moved = any(counts)
            if moved:
                logger.warning(
                    "lease of %s expired: queue=%s requeued=%d quarantined=%d dead_lettered=%d",
                    worker_id,
                    queue,
                    *counts,
                )
