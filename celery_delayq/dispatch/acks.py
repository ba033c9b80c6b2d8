"""Acknowledgements of one process on their way to Redis, with the history lines of its runs.

Each acknowledgement is kept until Redis has answered, and sent again if the answer was lost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from celery_delayq.dispatch.early_runs import EarlyRuns
from celery_delayq.store.leases import Acked
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.store import Store

#: Most acknowledgements to send at once.
MAX_ACKS = 500

#: Seconds after an acknowledgement for which the thread looks again and again. Then the thread
#: sleeps until another thread wakes it, which costs that thread more than a look.
LOOK_SECONDS = 0.1


@dataclass(slots=True)
class LeaseTally:
    """Counts of messages that were not simply acknowledged.

    Attributes
    ----------
    foreign_acks : int
        Acknowledgements of messages that are not leased to this process.
    late_acks : int
        Acknowledgements of messages that Redis had already given to another process.
    lost_messages : int
        Messages that Redis had given to another process.
    requeued : int
        Requeued messages.
    """

    foreign_acks: int = 0
    late_acks: int = 0
    lost_messages: int = 0
    requeued: int = 0


@dataclass(slots=True)
class AckBatch:
    """Acknowledgements that are sent together: by queue the fields, each with its history line.

    A batch that *rides* is sent together with the requests of a consumer, so that it costs no round
    trip. The consumer reads the reply.
    """

    fields: dict[str, dict[str, bytes]]
    rides: bool = False
    since: float = field(default_factory=time.monotonic)

    def __bool__(self) -> bool:
        return bool(self.fields)


class Acks:
    """The acknowledgements of one process; any thread may add some or send them.

    Parameters
    ----------
    worker_id : str
        The worker id under which the messages are leased.
    history_size : int
        Approximate number of runs that the history keeps; 0 without a history.
    tally : LeaseTally
        Counts late acknowledgements.
    wake : Callable[[], None]
        Wakes the thread that sends acknowledgements which no request took along.

    Attributes
    ----------
    early_runs : EarlyRuns
        History lines of runs whose messages are acknowledged already.
    look_until : float
        Monotonic time until which the thread looks often, without being woken.
    """

    def __init__(
        self, worker_id: str, history_size: int, tally: LeaseTally, wake: Callable[[], None]
    ) -> None:
        self.early_runs = EarlyRuns(worker_id, history_size, wake)
        self.look_until = 0.0
        self._worker_id = worker_id
        self._tally = tally
        self._wake = wake
        #: Queue, field and history line of each acknowledgement.
        self._waiting: deque[tuple[str, str, bytes]] = deque()
        #: Fields of messages that have a permit of a limit.
        self._permits: set[str] = set()
        self._is_urgent = False
        self._in_flight: dict[int, AckBatch] = {}
        self._sent_before: set[str] = set()
        #: The oldest acknowledgement at the last look; only its identity matters.
        self._oldest_seen: object | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def unanswered(self) -> bool:
        """Whether acknowledgements wait for an answer; batches that ride do not count."""
        # Twice: `put_back` may move a batch from in-flight to waiting between the two reads.
        return (
            bool(self._waiting)
            or not all(batch.rides for batch in self._in_flight.copy().values())
            or bool(self._waiting)
        )

    def add(
        self,
        queue: str,
        field: str,
        run: bytes = b"",
        *,
        has_permit: bool = False,
        is_urgent: bool = False,
    ) -> None:
        """Acknowledge a message; *run* is its history line.

        *has_permit*: the message has a permit of a limit. *is_urgent*: another message waits for
        the permit, so the acknowledgement does not wait for a request that takes it along.
        """
        if is_urgent:
            self._is_urgent = True
        if has_permit:
            self._permits.add(field)
        self._waiting.append((queue, field, run))
        self._wake()

    def unanswered_fields(self, queue: str) -> set[str]:
        """Return the fields of a queue whose acknowledgements have no answer yet."""
        waiting = {field for where, field, _ in self._waiting.copy() if where == queue}
        for batch in tuple(self._in_flight.copy().values()):
            waiting.update(batch.fields.get(queue, ()))
        return waiting

    def take(self, *, rides: bool = False) -> AckBatch:
        """Take a batch to send now; :meth:`confirm` or :meth:`put_back` must follow."""
        batch = AckBatch({}, rides)
        self._in_flight[id(batch)] = batch
        for _ in range(MAX_ACKS):
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
        permits = self._permits
        return [
            store.leases.ack_call(
                queue, self._worker_id, fields, bool(permits) and not permits.isdisjoint(fields)
            )
            for queue, fields in batch.fields.items()
        ]

    def confirm(self, batch: AckBatch, replies: Sequence[Sequence[int]]) -> None:
        """Handle the replies; acknowledgements that one call could not take are sent again."""
        done: set[str] = set()
        unsent: list[tuple[str, str, bytes]] = []
        acked = [Acked(*reply) for reply in replies]
        for (queue, fields), (_, number) in zip(batch.fields.items(), acked, strict=True):
            done.update(islice(fields, number))
            unsent += ((queue, *item) for item in islice(fields.items(), number, None))
        late = len(done - self._sent_before) - sum(each.known for each in acked)
        self._sent_before -= done
        self._permits -= done
        self._tally.late_acks += max(0, late)
        self._waiting.extendleft(reversed(unsent))
        del self._in_flight[id(batch)]
        if unsent:
            self._wake()

    def put_back(self, batch: AckBatch) -> None:
        """Queue a batch to be sent again, after a lost connection."""
        unsent: list[tuple[str, str, bytes]] = []
        for queue, fields in batch.fields.items():
            self._sent_before.update(fields)
            unsent += ((queue, *item) for item in fields.items())
        self._waiting.extendleft(reversed(unsent))
        del self._in_flight[id(batch)]
        self._wake()

    def flush(self, store: Store) -> None:
        """Send waiting acknowledgements by the caller's store, and wait for the replies."""
        while batch := self.take():
            try:
                replies = [store.run(call) for call in self.calls(store, batch)]
            except BaseException:
                self.put_back(batch)
                raise
            self.confirm(batch, replies)

    def send_due(self, store: Store) -> None:
        """Send acknowledgements that no request has taken along since the last look.

        Early runs that are due are sent too.
        """
        try:
            oldest = self._waiting[0]
        except IndexError:
            self._oldest_seen = None
        else:
            has_waited = oldest is self._oldest_seen or self._is_urgent
            self._is_urgent = False
            self._oldest_seen = None if has_waited else oldest
            self.look_until = time.monotonic() + LOOK_SECONDS
            if has_waited:
                self.flush(store)
        if time.monotonic() >= self.early_runs.due:
            self.early_runs.flush(store)

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
        """Wait at most *timeout* seconds until Redis has answered all acknowledgements.

        Batches that ride do not count: their consumer puts them back when it closes.
        """
        self.flush(store)
        deadline = time.monotonic() + timeout
        while self.unanswered and time.monotonic() < deadline:
            time.sleep(0.001)
