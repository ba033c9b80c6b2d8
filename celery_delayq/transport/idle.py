"""The wait of an idle consumer for its next message."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from celery_delayq.integration import worker
from celery_delayq.settings import Settings
from celery_delayq.store.scripting.calls import pack_arg, pack_command
from celery_delayq.store.server.checks import closes_idle_after
from celery_delayq.store.store import Store
from celery_delayq.transport.requests import FilledQueuesCall

#: Seconds for which a consumer waits while the fleet looks at the ready lists.
LONG_WAIT_SECONDS = 15.0

#: Seconds from the last messages of a worker to its look at the ready lists. If stock producers
#: have pushed messages in the last :data:`STOCK_PUSH_SECONDS`, the look comes at once.
IDLE_LOOK_SECONDS, STOCK_PUSH_SECONDS = 0.05, 10.0

#: Least ``block_timeout``, in seconds, with which a consumer relies on the fleet: its default. With
#: a shorter one the consumer looks at the ready lists itself.
MIN_LONG_WAIT_SECONDS = Settings().block_timeout

#: Seconds between two turns of the event loop while messages of limits wait until the process can
#: run them: no event tells of each task that ends.
BUSY_WAIT_SECONDS = 0.1


class IdleWait:
    """Waits for an element in the wake list of a queue, which has one while messages may be ready.

    Stock producers push no such element, and a process that has taken one may die. The dispatchers
    of the fleet look at ready lists and lanes for all idle consumers
    (:mod:`celery_delayq.dispatch.ready_looks`). Where no dispatcher does, this consumer looks
    itself.

    Lanes of limits have a wake list of their own. A consumer waits for it on all its queues if the
    last reply for one of them has told of limits.

    Parameters
    ----------
    store : Store
        The store.
    settings : Settings
        ``block_timeout`` is read.
    fleet_looks : Callable[[], bool]
        Returns whether the fleet looks at the ready lists.
    looks_when_idle : bool
        Whether to look at the ready lists each time that the consumer becomes idle, also where the
        fleet looks at them.
    health_check_interval : float
        Seconds without a reply after which kombu takes a connection for dead; 0: never.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        fleet_looks: Callable[[], bool],
        *,
        looks_when_idle: bool = True,
        health_check_interval: float = 0,
    ) -> None:
        self._store = store
        self._settings = settings
        self._fleet_looks = fleet_looks
        self._looks_when_idle = looks_when_idle
        self._health_check_interval = health_check_interval
        self._looked_at = 0.0
        #: When :meth:`look_soon` last set a timer.
        self._turned_at = float("-inf")
        #: When a message of a stock producer was found last.
        self._stock_push_at = float("-inf")
        #: The queue of each wake list; ``""`` for the list that only ends the wait.
        self._queue_by_list: dict[str, str] = {}
        #: By queue: its wake lists and its ready lists, packed once for hundreds of queues.
        self._wake_lists: dict[str, list[bytes]] = {}
        self._ready_lists: dict[str, list[bytes]] = {}
        self._interrupt = secrets.token_hex(6)
        #: Seconds after which Redis closes an idle connection; None where Redis does not tell.
        self._idle_close_seconds: float | None = None
        #: Seconds of the current wait; 0 where it was ended.
        self.wait_seconds = 0.0
        #: The queues whose last reply has told of limits or lanes.
        self.limited_queues: set[str] = set()

    def ask_server(self) -> None:
        """Ask Redis, before the first wait, after how long it closes an idle connection."""
        if self._idle_close_seconds is None:
            self._idle_close_seconds = closes_idle_after(self._store.client)

    def note_limits(self, queue: str, *, has_limits: bool) -> None:
        """Note whether there are limits, or lanes of a queue, as the last reply for it has told."""
        (self.limited_queues.add if has_limits else self.limited_queues.discard)(queue)

    def note_messages(self, *, from_others: bool) -> None:
        """Note that the consumer got messages, *from_others* if stock producers pushed some.

        The request that brought the messages has looked at all ready lists. So a look soon after
        it is worth its cost only where stock producers push.
        """
        now = time.monotonic()
        self._stock_push_at = now if from_others else self._stock_push_at
        if not self._may_be_long():
            self._looked_at = 0.0
        elif not self._looks_when_idle:
            self._looked_at = now
        else:
            is_pushed = now - self._stock_push_at < STOCK_PUSH_SECONDS
            self._looked_at = 0.0 if is_pushed else now + IDLE_LOOK_SECONDS - LONG_WAIT_SECONDS

    def look(self, leased: Sequence[str]) -> FilledQueuesCall | None:
        """Return the call that looks at the ready lists and lanes of all queues; None if not due.

        There is one look for each ``block_timeout`` or :data:`LONG_WAIT_SECONDS`. It is at lanes
        too where no limits are known: the last reply may be older than the first limit.
        """
        if not leased:  # replies of remote control need no dispatcher
            return None
        now = time.monotonic()
        wait = LONG_WAIT_SECONDS if self._may_be_long() else self._settings.block_timeout
        if now - self._looked_at < wait:
            return None
        self._looked_at = now
        look = FilledQueuesCall()
        for queue in leased:
            lanes = pack_arg(self._store.keys.queue(queue).lanes)
            look.add(queue, *self.ready_lists(queue), lanes)
        return look

    def ready_lists(self, queue: str) -> list[bytes]:
        """Return the packed ready lists of a queue, the most urgent first, then the quarantine."""
        if queue not in self._ready_lists:
            keys = self._store.keys
            lists = [*keys.ready_lists(queue, self._store.layout), keys.queue(queue).quarantined]
            self._ready_lists[queue] = [*map(pack_arg, lists)]
        return self._ready_lists[queue]

    def wake_lists(self, queue: str, *, lanes: bool) -> list[bytes]:
        """Return the packed wake lists of a queue, with *lanes* also that for its lanes."""
        if queue not in self._wake_lists:
            keys = self._store.keys
            of_queue = keys.queue(queue)
            lists = (
                [of_queue.wake, of_queue.lanes_wake] if queue else [keys.interrupt(self._interrupt)]
            )
            self._queue_by_list.update(dict.fromkeys(lists, queue))
            self._wake_lists[queue] = [*map(pack_arg, lists)]
        packed = self._wake_lists[queue]
        return packed if lanes else packed[:1]

    def wait(self, leased: Sequence[str], popped: Sequence[str], *, briefly: bool) -> bytes | None:
        """Return the BRPOP on the wake lists of *leased* queues and the lists *popped*.

        With *briefly* the wait is short, since another queue is asked again soon. None
        without queues and lists.
        """
        if not (leased or popped):
            return None
        lanes = bool(self.limited_queues)
        lists = [each for queue in leased for each in self.wake_lists(queue, lanes=lanes)]
        timeout = self._settings.block_timeout
        # Redis may close an idle connection together with the element that it popped. A lost
        # element of a wake list only delays messages; an element of *popped* is a message.
        loses_none = self._idle_close_seconds is not None or not popped
        if leased and not briefly and loses_none and self._may_be_long():
            lists += self.wake_lists("", lanes=False)
            # A wait must end before kombu takes the connection for dead.
            health = self._health_check_interval or 2 * LONG_WAIT_SECONDS
            timeout = max(timeout, min(LONG_WAIT_SECONDS, 0.6 * health))
        if self._idle_close_seconds is not None:  # Redis counts whole seconds
            timeout = min(timeout, self._idle_close_seconds / 2)
        self.wait_seconds = timeout
        return pack_command("BRPOP", [*lists, *map(pack_arg, popped), pack_arg(timeout)])

    def look_soon(self) -> None:
        """Have the event loop of the worker turn after :data:`BUSY_WAIT_SECONDS`."""
        now = time.monotonic()
        if now - self._turned_at >= BUSY_WAIT_SECONDS:
            self._turned_at = now
            worker.call_later(BUSY_WAIT_SECONDS, worker.do_nothing)

    def queue_of(self, wake_list: str) -> str | None:
        """Return the queue of a wake list, ``""`` for no queue; None for any other list."""
        return self._queue_by_list.get(wake_list)

    def interrupt(self) -> None:
        """End a long wait, since the consumer's queues have changed."""
        if self.wait_seconds > self._settings.block_timeout:
            self.wait_seconds = 0.0
            self._store.interrupt(self._interrupt)

    def _may_be_long(self) -> bool:
        return self._settings.block_timeout >= MIN_LONG_WAIT_SECONDS and self._fleet_looks()
