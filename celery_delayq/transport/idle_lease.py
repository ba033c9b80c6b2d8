"""Leases what the dispatcher of this process promotes, in the same round trip, for an idle channel.

Else the channel would be woken by Redis, and ask then: a second round trip for each task that
becomes due while the worker has nothing to do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from celery_delayq.store.scripting.calls import Call
from celery_delayq.transport.credit import Credit
from celery_delayq.transport.fair_share import Share
from celery_delayq.transport.requests import Request
from celery_delayq.transport.settle import SettleChannel
from celery_delayq.utils import native_threads


class IdleLease:
    """One request at a time that the dispatcher sends along with a promotion.

    The channel offers it for as long as it waits. The dispatcher's thread calls :meth:`take` and
    :meth:`answer`, the channel's own all else.

    Parameters
    ----------
    channel : SettleChannel
        The channel.
    credit : Credit
        How many messages it may take.
    """

    #: Held while credit is taken: the channels to all shards of a cluster share one prefetch.
    lock = threading.RLock()

    def __init__(self, channel: SettleChannel, credit: Credit) -> None:
        self._channel = channel
        self._credit = credit
        self._queues: frozenset[str] = frozenset()
        #: The request that is with the dispatcher, until its answer is collected.
        self._request: Request | None = None
        self._answers: deque[Any] = deque()
        self._is_closed = False

    @property
    def expected(self) -> int:
        """How many messages may come."""
        request = self._request
        return 0 if request is None else request.share.limit

    def offer(self, queues: Iterable[str]) -> None:
        """Let the dispatcher lease from these queues, all of which are empty."""
        if self._channel.serves_worker and not self._channel.asks_for_each:
            self._queues = frozenset(queues)

    def withdraw(self) -> bool:
        """Let it lease no more; return whether no answer is awaited."""
        with self.lock:
            self._queues = frozenset()
            return self._request is None

    def collect(self) -> tuple[Request, Any] | None:
        """Return a request and its reply, which is None where it is not known, or an error."""
        if not self._answers:
            return None
        reply = self._answers.popleft()
        request, self._request = self._request, None
        assert request is not None
        return request, reply

    def wait(self, seconds: float) -> None:
        """Let it lease no more, and wait at most so many seconds for an answer."""
        until = time.monotonic() + seconds
        while not (self.withdraw() or self._answers) and time.monotonic() < until:
            time.sleep(0.001)

    def close(self) -> None:
        """Have an answer that comes from now on given back: nobody collects it."""
        with self.lock:
            self._queues = frozenset()
            self._is_closed = True
            request, answered = self._request, bool(self._answers)
        if request is not None and answered:
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self._channel.keeper.abandon(request.share.queue, request.request_number)

    # -- what the dispatcher calls

    def take(self, queue: str) -> Call | None:
        """Return the call that leases what is about to be promoted, if the worker could run it now.

        Only so much as it has idle processes: other workers may have some too.
        """
        channel = self._channel
        with self.lock:
            if queue not in self._queues or self._request is not None or channel.keeper.makes_room:
                return None
            limit = self._credit.idle
            if limit <= 0:
                return None
            keeper, lists = channel.keeper, len(channel.layout.steps)
            self._request = Request(Share(queue, limit, lists), keeper.new_request_number(queue))
        share, number = self._request
        return channel.store.leases.acquire_call(
            queue, keeper.worker_id, keeper.lease, number, share.limit, lists, keeper.others
        )

    def answer(self, reply: Any) -> None:
        """Give the reply to the call of :meth:`take`, None where it was lost."""
        with self.lock:
            self._answers.append(reply)
            if not self._is_closed:
                self._channel.connection.cycle.wakeup.give()
                return
        if self._request is not None:
            self._give_back(self._request)


native_threads.renew_locks(IdleLease, "lock")
