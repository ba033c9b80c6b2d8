"""Acknowledgements, other changes and history lines of one process on their way to Redis.

Each is kept until Redis has answered, and sent again where the answer was lost.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from celery_delayq.errors import BrokerUnavailable, CommandRefused, StoreFull
from celery_delayq.store.leases import Acked
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.runner import is_fault_of_script

logger = logging.getLogger(__name__)

#: Redis cannot be reached, or is no longer a master: the same call may succeed later.
LOST = (BrokerUnavailable, OSError)

#: Times that a change may fail by itself, and not since Redis refused it or was away.
MOST_FAILURES = 10

#: Most changes that wait until Redis allows them.
MOST_REFUSED = 1000

#: Most acknowledgements to send at once.
MOST = 500

#: Seconds after which a run that has ended is sent, and most runs to send at once.
RUN_DELAY = 0.1
MOST_RUNS = 500


@dataclass(slots=True)
class AckBatch:
    """Acknowledgements of one call: by queue their fields, each with its history line.

    If they *ride* with a request, the channel's own thread reads the reply.
    """

    fields: dict[str, dict[str, bytes]]
    ride: bool = False
    since: float = field(default_factory=time.monotonic)

    def __bool__(self) -> bool:
        return bool(self.fields)


@dataclass(slots=True)
class Tally:
    """Numbers of messages that were not simply acknowledged.

    *foreign_acks* were for tags that are not held here; *late_acks* came when Redis had given the
    message to another process already; *lost* were taken away, *given_back* nobody worked on.
    """

    foreign_acks: int = 0
    late_acks: int = 0
    lost: int = 0
    given_back: int = 0


class Acks:
    """The acknowledgements of one process; any thread may add some or send them.

    Parameters
    ----------
    worker_id : str
        The lease under which the messages are held.
    tally : Tally
        Counts late acknowledgements.
    wake : Callable[[], None]
        Wakes the thread that sends what no request took along.
    """

    def __init__(self, worker_id: str, tally: Tally, wake: Callable[[], None]) -> None:
        self._worker_id = worker_id
        self._tally = tally
        self._wake = wake
        self._waiting: deque[tuple[str, str, bytes]] = deque()
        self._in_flight: dict[int, AckBatch] = {}
        self._sent_before: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def unanswered(self) -> bool:
        """Whether some wait for Redis; those that ride do not count."""
        return (
            bool(self._waiting)
            or not all(batch.ride for batch in self._in_flight.copy().values())
            or bool(self._waiting)  # it was put back meanwhile
        )

    @property
    def first(self) -> object | None:
        """The oldest waiting acknowledgement, or None; only compared with an earlier one."""
        try:
            return self._waiting[0]
        except IndexError:
            return None

    def add(self, queue: str, field: str, run: bytes = b"") -> None:
        """Acknowledge a message; *run* is its history line."""
        self._waiting.append((queue, field, run))
        self._wake()

    def of(self, queue: str) -> set[str]:
        """Return the fields of a queue for which Redis has not answered yet."""
        waiting = {field for where, field, _ in self._waiting.copy() if where == queue}
        for batch in tuple(self._in_flight.copy().values()):
            waiting.update(batch.fields.get(queue, ()))
        return waiting

    def take(self, *, ride: bool = False) -> AckBatch:
        """Take a batch to send now; :meth:`confirm` or :meth:`put_back` must follow."""
        batch = AckBatch({}, ride)
        self._in_flight[id(batch)] = batch
        for _ in range(MOST):
            try:
                queue, name, run = self._waiting.popleft()
            except IndexError:
                break
            batch.fields.setdefault(queue, {})[name] = run
        if not batch:
            del self._in_flight[id(batch)]
        return batch

    def calls(self, store: Store, batch: AckBatch) -> list[Call]:
        """Return the script calls for a batch."""
        return [
            store.leases.ack_call(queue, self._worker_id, fields)
            for queue, fields in batch.fields.items()
        ]

    def confirm(self, batch: AckBatch, replies: Sequence[Sequence[int]]) -> None:
        """Handle Redis' answers; acknowledgements that one call could not take are sent again."""
        done: set[str] = set()
        left: list[tuple[str, str, bytes]] = []
        acked = [Acked(*reply) for reply in replies]
        for (queue, fields), (_, number) in zip(batch.fields.items(), acked, strict=True):
            done.update(islice(fields, number))
            left += ((queue, *item) for item in islice(fields.items(), number, None))
        late = len(done - self._sent_before) - sum(each.known for each in acked)
        self._sent_before -= done
        self._tally.late_acks += max(0, late)
        self._waiting.extendleft(reversed(left))
        del self._in_flight[id(batch)]
        if left:
            self._wake()

    def put_back(self, batch: AckBatch) -> None:
        """Send a batch again after a lost connection."""
        for queue, fields in batch.fields.items():
            self._sent_before.update(fields)
            self._waiting.extendleft((queue, field, run) for field, run in fields.items())
        del self._in_flight[id(batch)]
        self._wake()

    def flush(self, store: Store) -> None:
        """Send what waits by the caller's store, and wait for the replies."""
        while batch := self.take():
            try:
                replies = [store.run(call) for call in self.calls(store, batch)]
            except BaseException:
                self.put_back(batch)
                raise
            self.confirm(batch, replies)

    def send_stuck(self, store: Store, timeout: float = 2.0) -> None:
        """Send batches again after *timeout* seconds: their connection may be dead."""
        now = time.monotonic()
        for batch in tuple(self._in_flight.copy().values()):
            if now - batch.since > timeout:
                batch.since = now
                for fields in batch.fields.values():
                    self._sent_before.update(fields)
                for call in self.calls(store, batch):
                    store.run(call)

    def drain(self, store: Store, timeout: float = 2.0) -> None:
        """Wait until Redis has answered all, at most *timeout* seconds.

        Those that ride do not count: their channel puts them back when it closes.
        """
        self.flush(store)
        deadline = time.monotonic() + timeout
        while self.unanswered and time.monotonic() < deadline:
            time.sleep(0.001)


@dataclass(slots=True)
class Change:
    """A change that may be made twice; *lost* is logged if it is never made."""

    make: Callable[[Store], Any]
    lost: str = ""
    failures: int = 0


class Changes:
    """Changes of one process that failed at first; any thread may add one.

    Parameters
    ----------
    wake : Callable[[], None]
        Wakes the thread that makes them.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[Change] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, make: Callable[[Store], Any], lost: str = "") -> None:
        """Have a change made: soon, and before the process ends."""
        self._waiting.append(Change(make, lost))
        self._wake()

    def flush(self, store: Store, until: float = math.inf) -> None:
        """Make all of them in this order, until a monotonic time, but one at least.

        So they are made in the end where leases cannot be extended. Raises an error where that is
        to be tried again. One that Redis refuses goes behind the others.
        """
        refused: Exception | None = None
        for _ in range(len(self._waiting)):
            change = self._waiting[0]
            try:
                change.make(store)
            except LOST:
                raise
            except Exception as exc:
                # What is refused now may pass later, such as when a key has its type again.
                may_pass = isinstance(exc, (CommandRefused, StoreFull))
                may_pass = may_pass and len(self._waiting) <= MOST_REFUSED
                if not may_pass or is_fault_of_script(exc):
                    change.failures += 1
                is_last = change.failures >= MOST_FAILURES
                if may_pass and not is_last:
                    refused = exc
                    self._waiting.append(change)
                elif isinstance(exc, CommandRefused) or is_last:
                    logger.exception("A change was not made. %s", change.lost or "A lease ends")
                else:  # a client may raise anything while its connection is being closed
                    raise
            self._waiting.popleft()
            if time.monotonic() >= until:
                break
        if refused is not None:
            raise BrokerUnavailable(str(refused)) from refused

    def give_up(self) -> None:
        """Log the changes that are lost when the process ends while Redis is away."""
        for change in self._waiting.copy():
            if change.lost:
                logger.error("Redis was away when this process ended. %s", change.lost)


class EarlyRuns:
    """Runs whose messages were acknowledged before they began, on their way to the history.

    Any thread may add some, one thread sends them.

    Parameters
    ----------
    worker_id : str
        The name of the process.
    most : int
        About how many runs the history keeps; 0 without a history.
    begin : Callable[[], None]
        Wakes the thread that sends them.

    Attributes
    ----------
    due : float
        Monotonic time of the next :meth:`flush`; infinite while nothing waits.
    """

    def __init__(self, worker_id: str, most: int, begin: Callable[[], None]) -> None:
        self.most = most
        self.due = math.inf
        self._worker_id = worker_id
        self._begin = begin
        self._waiting: list[bytes] = []
        self._has_begun = False
        self._sending: list[bytes] = []
        self._number = 1  # that of no call: `claim` leaves it in Redis

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sending)

    def add(self, run: bytes) -> None:
        """Note a run in the history: soon."""
        if not self.most:
            return
        self._waiting.append(run)
        if not self._has_begun:
            self._has_begun = True
            self.due = time.monotonic() + RUN_DELAY
            self._begin()

    def send_soon(self) -> None:
        """Send all at once, since the process ends soon."""
        if self:
            self.due = 0.0

    def flush(self, store: Store) -> None:
        """Send what waits; after a lost connection repeat the same call, which Redis recognizes."""
        # In this order: a run that is added meanwhile sets both again, or is sent here.
        self.due = math.inf
        self._has_begun = False
        try:
            while self:
                if not self._sending:
                    self._sending = self._waiting[:MOST_RUNS]
                    del self._waiting[:MOST_RUNS]  # meanwhile others may only have added some
                    self._number += 1
                store.history.add(self._worker_id, self._number, self.most, self._sending)
                self._sending = []
        except BaseException:
            self.due = 0.0
            raise
