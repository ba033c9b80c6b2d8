"""Looks at the ready lists of all queues: stock producers push there and wake no consumer.

One dispatcher of the fleet looks for all consumers: the first one that comes when the look is due.
So the loss of a dispatcher delays no look. The dispatcher wakes the consumers of each queue with
ready messages. It looks at many queues in portions, so that due entries do not wait for all queues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import islice

from celery_delayq.errors import CommandRefused
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting.replies import Look
from celery_delayq.store.store import Store, layouts

logger = logging.getLogger(__name__)

#: Seconds between two looks of the fleet. The dispatcher on duty comes each 0.3 s, a lone one each
#: second. So a message of a stock producer starts within 1.1 s.
FLEET_LOOK_SECONDS = 0.65

#: Seconds after which a dispatcher without the right to look tries again.
RETRY_SECONDS = 60.0

#: Queues of a portion: one EXISTS for all of them, and one for each if the first has found a list.
PORTION_QUEUES = 50

#: Most seconds for which a portion waits while entries are due all the time. With more than 800
#: queues it is less, so that a whole look takes half of the time until the next look.
PORTION_SECONDS = 0.02

#: Seconds after which a consumer looks itself, if its own dispatcher has not heard of a look.
SILENCE_SECONDS = 2.0

#: Most seconds between two readings of the registry while the number of queues stays the same.
REREAD_SECONDS = 5.0


class Registry:
    """The registered queues and the layout of their ready lists, read again from time to time.

    Parameters
    ----------
    refresh : float
        Seconds between two readings.
    """

    def __init__(self, refresh: float) -> None:
        self._refresh = refresh
        self._layouts: dict[str, Layout] = {}
        self._read = float("-inf")
        #: Number of queues in Redis, with those whose names cannot be read.
        self._size: int | None = None

    def layout(self, store: Store, queue: str) -> Layout:
        """Return the layout of a queue; kombu's default if the queue is not registered."""
        if not self.known(queue):
            self._reread(store)
        return self._layouts.setdefault(queue, Layout())

    def known(self, queue: str) -> Layout | None:
        """Return the layout of a queue without asking Redis; None if it must be read again."""
        return self._layouts.get(queue) if self._age <= self._refresh else None

    def all(self, store: Store, size: int | None) -> Iterator[tuple[str, Layout]]:
        """Return an iterator over all queues; *size* is their number in Redis."""
        if size != self._size or self._age > min(self._refresh, REREAD_SECONDS):
            self._reread(store)
            self._size = size
        return iter([*self._layouts.items()])

    @property
    def _age(self) -> float:
        return time.monotonic() - self._read

    def _reread(self, store: Store) -> None:
        self._layouts = layouts(store.registry())
        self._read = time.monotonic()


class ReadyLooks:
    """The looks of one dispatcher at the ready lists.

    The dispatcher takes turns only after it has seen that its account may look at all lists:
    consumers rely on a turn that is taken.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._may_look: bool | None = None
        self._try_at = self._fresh_until = float("-inf")
        #: The reply that began the current look, and the queues that remain.
        self._current: Look | None = None
        self._remaining: Iterator[tuple[str, Layout]] | None = None
        self._portion_at = float("-inf")

    @property
    def look_seconds(self) -> float:
        """Seconds between two looks of the fleet; 0 where this dispatcher may not look."""
        return FLEET_LOOK_SECONDS if self._may_look else 0.0

    @property
    def fleet_looks(self) -> bool:
        """Whether consumers may leave the looks to the fleet. For any thread."""
        return time.monotonic() < self._fresh_until

    def note_look(self, look: Look) -> None:
        """Begin a look in this dispatcher's turn, or to find out whether it may look."""
        if look.ready == "own turn" or (not self._may_look and time.monotonic() >= self._try_at):
            self._current = look
        self.note_heartbeat(look.ready != "nobody")

    def note_heartbeat(self, is_fresh: bool) -> None:
        """Note whether the fleet looks at the ready lists."""
        # A dispatcher that may not look does not rely on others: they may end.
        is_fresh = is_fresh and bool(self._may_look)
        self._fresh_until = time.monotonic() + SILENCE_SECONDS if is_fresh else float("-inf")

    @property
    def is_looking(self) -> bool:
        """Whether a look has begun and not ended."""
        return self._current is not None

    @property
    def is_time(self) -> bool:
        """Whether the next portion comes before due entries."""
        return time.monotonic() >= self._portion_at

    def go_on(self, store: Store) -> None:
        """Look at the next portion of queues."""
        look = self._current
        if not look:
            return
        seconds = min(
            PORTION_SECONDS, FLEET_LOOK_SECONDS / 2 * PORTION_QUEUES / max(1, look.queues or 0)
        )
        try:
            self._remaining = self._remaining or self._registry.all(store, look.queues)
            portion = [*islice(self._remaining, PORTION_QUEUES)]
            if portion:
                store.wake_ready(store.ready_of(portion))
        except CommandRefused as exc:  # others may have that right
            if self._may_look is not False:
                logger.warning(
                    "account may not look at all ready lists (%s): each worker looks itself", exc
                )
            self._may_look = False
            self.give_up()
            if look.ready == "own turn":
                store.forget_ready_look()
        else:
            self._portion_at = time.monotonic() + seconds
            if len(portion) < PORTION_QUEUES:
                self._may_look = True
                self._end()
                self.note_heartbeat(look.ready != "nobody")

    def note_reconnect(self) -> None:
        """Start an interrupted look from its first queue: the fleet counts this look as done."""
        self._remaining = None

    def give_up(self) -> None:
        """End a failed look: consumers look themselves until the next look begins."""
        self._try_at = time.monotonic() + RETRY_SECONDS
        self._end()
        self.note_heartbeat(False)

    def _end(self) -> None:
        self._current = self._remaining = None
