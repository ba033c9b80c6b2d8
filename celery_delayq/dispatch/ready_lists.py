"""Looks at the ready lists of all queues, which stock producers fill without a sign.

One dispatcher of the fleet does it for all consumers: whoever comes when it is time, so that the
loss of none delays the next look. It wakes the consumers of a queue in which something is ready.
Many queues are looked at in portions: entries that are due do not wait for all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import islice

from celery_delayq.errors import CommandRefused
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store, layouts
from celery_delayq.store.scripting.replies import Look

logger = logging.getLogger(__name__)

#: Seconds between two looks of the fleet. The one on duty comes each 0.3 s, a lone dispatcher each
#: second: in time for the 1.1 s within which a message of a stock producer starts.
FLEET_LOOK_SECONDS = 0.65

#: Seconds after which a dispatcher that may not look tries again.
RETRY_SECONDS = 60.0

#: Queues of a portion: one EXISTS for all of them, and one for each where that has found something.
PORTION_QUEUES = 50

#: Seconds for which a portion may wait although entries are due all the time: less with more than
#: 800 queues, so that a whole look takes half of the time until the next one.
PORTION_SECONDS = 0.02

#: Seconds without a look of its own dispatcher after which a consumer looks itself.
SILENCE_SECONDS = 2.0

#: Seconds between two readings of the registry for looks, where the number of queues is the same.
REREAD_SECONDS = 5.0


class Registry:
    """The registered queues and how their ready lists are laid out, read now and then.

    Parameters
    ----------
    refresh : float
        Seconds between two readings.
    """

    def __init__(self, refresh: float) -> None:
        self._refresh = refresh
        self._layouts: dict[str, Layout] = {}
        self._read = float("-inf")
        #: As Redis counts them, with names that cannot be read.
        self._size: int | None = None

    def layout(self, store: Store, queue: str) -> Layout:
        """Return the layout of a queue, kombu's default for one that is not registered."""
        if not self.known(queue):
            self._reread(store)
        return self._layouts.setdefault(queue, Layout())

    def known(self, queue: str) -> Layout | None:
        """Return the layout of a queue without asking Redis; None where it is to be asked."""
        return self._layouts.get(queue) if self._age <= self._refresh else None

    def all(self, store: Store, size: int | None) -> Iterator[tuple[str, Layout]]:
        """Return an iterator over all queues, of which Redis counts *size*."""
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


class ReadyLists:
    """When it is the turn of a dispatcher to look at the ready lists, and what it does then.

    It takes its turns only once it has seen that its account may look at all of them: consumers
    rely on a turn that is taken.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._may_look: bool | None = None
        self._try_at = self._fresh_until = float("-inf")
        #: The reply that began the current look, and the queues that are not looked at yet.
        self._current: Look | None = None
        self._remaining: Iterator[tuple[str, Layout]] | None = None
        self._portion_at = float("-inf")

    @property
    def look_seconds(self) -> float:
        """Seconds after which to look if nobody has; 0 for one that may not look."""
        return FLEET_LOOK_SECONDS if self._may_look else 0.0

    @property
    def fleet_looks(self) -> bool:
        """Whether consumers may leave it to the fleet. For any thread."""
        return time.monotonic() < self._fresh_until

    def note_look(self, look: Look) -> None:
        """Begin to look, if it is this dispatcher's turn, or to see whether it may."""
        if look.ready == "own turn" or (not self._may_look and time.monotonic() >= self._try_at):
            self._current = look
        self.note_heartbeat(look.ready != "nobody")

    def note_heartbeat(self, is_fresh: bool) -> None:
        """Note whether the fleet looks at them."""
        # Who may not look at them leaves it to nobody: the others may end while it waits.
        is_fresh = is_fresh and bool(self._may_look)
        self._fresh_until = time.monotonic() + SILENCE_SECONDS if is_fresh else float("-inf")

    @property
    def is_looking(self) -> bool:
        """Whether a look has begun that has not ended."""
        return self._current is not None

    @property
    def is_time(self) -> bool:
        """Whether the next portion is to be looked at although entries are due."""
        return time.monotonic() >= self._portion_at

    def go_on(self, store: Store) -> None:
        """Look at the next portion of queues."""
        look = self._current
        if not look:
            return
        every = min(
            PORTION_SECONDS, FLEET_LOOK_SECONDS / 2 * PORTION_QUEUES / max(1, look.queues or 0)
        )
        try:
            self._remaining = self._remaining or self._registry.all(store, look.queues)
            some = [*islice(self._remaining, PORTION_QUEUES)]
            if some:
                store.wake_ready(store.ready_of(some))
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
            self._portion_at = time.monotonic() + every
            if len(some) < PORTION_QUEUES:
                self._may_look = True
                self._end()
                self.note_heartbeat(look.ready != "nobody")

    def note_reconnect(self) -> None:
        """Begin a look anew that an outage has interrupted: it counts as done for the others."""
        self._remaining = None

    def give_up(self) -> None:
        """End a look that has failed: consumers look themselves until the next one begins."""
        self._try_at = time.monotonic() + RETRY_SECONDS
        self._end()
        self.note_heartbeat(False)

    def _end(self) -> None:
        self._current = self._remaining = None
