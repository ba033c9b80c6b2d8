"""What an idle consumer waits for."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from celery_delayq.settings import Settings
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import pack_arg, pack_command
from celery_delayq.store.server_checks import closes_idle_after
from celery_delayq.transport.requests import FilledQueuesCall

#: Seconds for which a consumer waits for a sign where the fleet looks at ready lists for it.
LONG_WAIT_SECONDS = 15.0

#: Seconds from the last messages of a worker to its look at the ready lists. The look comes at once
#: where stock producers have pushed some of the messages of the last ``STOCK_PUSH_SECONDS``.
IDLE_LOOK_SECONDS, STOCK_PUSH_SECONDS = 0.05, 10.0

#: The longest setting of ``block_timeout``; with a shorter one a consumer looks itself.
MIN_LONG_WAIT_SECONDS = Settings().block_timeout


class IdleWait:
    """Waits for a sign that a queue has got something.

    Stock producers leave none. The dispatchers of the fleet look at the ready lists for all idle
    consumers (:mod:`celery_delayq.dispatch.ready_lists`); where they do not, this consumer does.

    Parameters
    ----------
    store : Store
        Our data.
    settings : Settings
        ``block_timeout`` is read.
    fleet_looks : Callable[[], bool]
        Returns whether the fleet looks at the ready lists.
    looks_after_work : bool
        Whether to look at the ready lists each time when the consumer gets idle, and not to leave
        that to the fleet.
    health_check_interval : float
        Seconds after which kombu takes a connection for dead where a reply is late, 0 for none.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        fleet_looks: Callable[[], bool],
        *,
        looks_after_work: bool = True,
        health_check_interval: float = 0,
    ) -> None:
        self._store = store
        self._settings = settings
        self._fleet_looks = fleet_looks
        self._looks_after_work = looks_after_work
        self._health_check_interval = health_check_interval
        self._looked_at = 0.0
        #: When something was found that a stock producer had pushed.
        self._stock_push_at = float("-inf")
        #: Queues by the list that has a sign of them; ``""`` for what only ends the wait.
        self._queue_by_list: dict[str, str] = {}
        #: These lists, and the ready lists, by queue, packed: a worker may consume hundreds.
        self._wake_lists: dict[str, bytes] = {}
        self._ready_lists: dict[str, list[bytes]] = {}
        self._interrupt = secrets.token_hex(6)
        #: Seconds after which Redis closes a connection that waits, None where it does not say.
        self._idle_close_seconds: float | None = None
        #: For how many seconds the last wait lasts, 0 where it is ended.
        self.wait_seconds = 0.0

    def ask_server(self) -> None:
        """Ask Redis, before the first wait, when it closes a connection that waits."""
        if self._idle_close_seconds is None:
            self._idle_close_seconds = closes_idle_after(self._store.client)

    def note_messages(self, *, from_others: bool) -> None:
        """Note that it is busy: stock producers, the *others*, may push meanwhile.

        The request that brought messages has looked at all ready lists, so a look soon after it is
        worth it only where stock producers push.
        """
        now = time.monotonic()
        self._stock_push_at = now if from_others else self._stock_push_at
        if not self._may_be_long():
            self._looked_at = 0.0
        elif not self._looks_after_work:
            self._looked_at = now
        else:
            is_pushed = now - self._stock_push_at < STOCK_PUSH_SECONDS
            self._looked_at = 0.0 if is_pushed else now + IDLE_LOOK_SECONDS - LONG_WAIT_SECONDS

    def look(self, leased: Sequence[str]) -> FilledQueuesCall | None:
        """Return a look at the ready lists, None when it is not time.

        One each ``block_timeout``, however many queues there are.
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
            look.add(queue, *self.ready_lists(queue))
        return look

    def ready_lists(self, queue: str) -> list[bytes]:
        """Return the ready lists of a queue, the most urgent first, and the quarantined one."""
        return self._ready_lists.get(queue) or self._add_ready_lists(queue)

    def _add_ready_lists(self, queue: str) -> list[bytes]:
        keys = self._store.keys
        lists = [*keys.ready_lists(queue, self._store.layout), keys.queue(queue).quarantined]
        return self._ready_lists.setdefault(queue, [*map(pack_arg, lists)])

    def wake_list(self, queue: str) -> bytes:
        """Return the list that has a sign of a queue, packed as an argument."""
        return self._wake_lists.get(queue) or self._add_wake_list(queue)

    def _add_wake_list(self, queue: str) -> bytes:
        keys = self._store.keys
        key = keys.queue(queue).wake if queue else keys.interrupt(self._interrupt)
        self._queue_by_list[key] = queue
        return self._wake_lists.setdefault(queue, pack_arg(key))

    def wait(self, leased: Sequence[str], popped: Sequence[str], *, briefly: bool) -> bytes | None:
        """Return the command that waits for a sign, or for a message of the lists *popped*.

        With *briefly* some queue is left alone for a moment.
        """
        if not (leased or popped):
            return None
        signs = [*map(self.wake_list, leased)]
        timeout = self._settings.block_timeout
        # Redis may close a connection that has waited for so long together with what it popped: a
        # sign, which only makes its message late, or a message itself.
        loses_none = self._idle_close_seconds is not None or not popped
        if leased and not briefly and loses_none and self._may_be_long():
            signs.append(self.wake_list(""))
            # kombu takes a connection for dead where a reply is so late.
            health = self._health_check_interval or 2 * LONG_WAIT_SECONDS
            timeout = max(timeout, min(LONG_WAIT_SECONDS, 0.6 * health))
        if self._idle_close_seconds is not None:  # Redis counts whole seconds
            timeout = min(timeout, self._idle_close_seconds / 2)
        self.wait_seconds = timeout
        return pack_command("BRPOP", [*signs, *map(pack_arg, popped), pack_arg(timeout)])

    def queue_of(self, sign: str) -> str | None:
        """Return of which queue a list has a sign, ``""`` for none; None for another list."""
        return self._queue_by_list.get(sign)

    def interrupt(self) -> None:
        """End a long wait, as the consumer has other queues now."""
        if self.wait_seconds > self._settings.block_timeout:
            self.wait_seconds = 0.0
            self._store.interrupt(self._interrupt)

    def _may_be_long(self) -> bool:
        return self._settings.block_timeout >= MIN_LONG_WAIT_SECONDS and self._fleet_looks()
