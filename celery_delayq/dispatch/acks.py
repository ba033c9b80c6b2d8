"""What a process has to tell Redis of the messages that it held: kept until Redis has answered, and
sent again if need be.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from celery_delayq.store.leases import Acked
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.runner import is_refusal_for_now
from celery_delayq.utils import native_threads

logger = native_threads.Logger(__name__)

#: Redis cannot be reached now, or is no master any more: the same call may succeed later.
LOST = (ConnectionError, TimeoutError, OSError)

#: Times that a change may fail for other reasons than that Redis refused it or was away.
MOST_FAILURES = 10

#: Most acknowledgements to send at once.
MOST = 500


@dataclass(slots=True)
class AckBatch:
    """Some that are sent together: by queue their fields, each with the line of its run.

    Those that *ride* with a request are answered when the channel's own thread reads its reply.
    """

    fields: dict[str, dict[str, bytes]]
    ride: bool = False
    since: float = field(default_factory=time.monotonic)

    def __bool__(self) -> bool:
        return bool(self.fields)


@dataclass(slots=True)
class Tally:
    """What became of messages other than being done.

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
        Under which name the messages are held.
    tally : Tally
        Counts those that came late.
    wake : Callable[[], None]
        Tells who sends them in the end that there are some.
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
        """Whether Redis has not answered to all, but for those that ride."""
        return (
            bool(self._waiting)
            or not all(batch.ride for batch in self._in_flight.copy().values())
            or bool(self._waiting)  # it was put back meanwhile
        )

    @property
    def first(self) -> object | None:
        """The one that has waited longest, to be told from others; None when none waits."""
        try:
            return self._waiting[0]
        except IndexError:
            return None

    def add(self, queue: str, field: str, run: bytes = b"") -> None:
        """Acknowledge a message; *run* is the line of its run for the history."""
        self._waiting.append((queue, field, run))
        self._wake()

    def of(self, queue: str) -> set[str]:
        """Return the fields of a queue for which Redis has not answered yet."""
        waiting = {field for where, field, _ in self._waiting.copy() if where == queue}
        for batch in tuple(self._in_flight.copy().values()):
            waiting.update(batch.fields.get(queue, ()))
        return waiting

    def take(self, *, ride: bool = False) -> AckBatch:
        """Take what is to be sent now; :meth:`confirm` or :meth:`put_back` must follow."""
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
        """Redis has answered the calls: send again what was too much for one of them."""
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
        """The connection was lost: send them again."""
        for queue, fields in batch.fields.items():
            self._sent_before.update(fields)
            self._waiting.extendleft((queue, field, run) for field, run in fields.items())
        del self._in_flight[id(batch)]
        self._wake()

    def flush(self, store: Store) -> None:
        """Send what waits, and wait for the replies, on a store of the caller's."""
        while batch := self.take():
            try:
                replies = [store.run(call) for call in self.calls(store, batch)]
            except BaseException:
                self.put_back(batch)
                raise
            self.confirm(batch, replies)

    def send_stuck(self, store: Store, patience: float = 2.0) -> None:
        """Send again what has got no answer for *patience* seconds: a connection may be silent."""
        now = time.monotonic()
        for batch in tuple(self._in_flight.copy().values()):
            if now - batch.since > patience:
                batch.since = now
                for fields in batch.fields.values():
                    self._sent_before.update(fields)
                for call in self.calls(store, batch):
                    store.run(call)

    def drain(self, store: Store, patience: float = 2.0) -> None:
        """Return when Redis has answered all, after *patience* s at most.

        But for those that ride: the channel with which they do puts them back when it closes.
        """
        self.flush(store)
        deadline = time.monotonic() + patience
        while self.unanswered and time.monotonic() < deadline:
            time.sleep(0.001)


@dataclass(slots=True)
class Change:
    """One change, which may be made twice; *lost* says what is lost if it is never made."""

    make: Callable[[Store], Any]
    lost: str = ""
    failures: int = 0


class Changes:
    """Changes of one process that could not be made at once; any thread may add some.

    Parameters
    ----------
    wake : Callable[[], None]
        Tells the thread that makes them that there are some.
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
        to be tried again.
        """
        while self._waiting:
            change = self._waiting[0]
            try:
                change.make(store)
            except LOST:
                raise
            except Exception as exc:
                if is_refusal_for_now(exc):
                    raise ConnectionError(str(exc)) from exc
                # A client may raise anything while its connection is being closed.
                change.failures += 1
                if not isinstance(exc, ResponseError) and change.failures < MOST_FAILURES:
                    raise
                logger.exception("A change was not made. %s", change.lost or "A lease ends")
            self._waiting.popleft()
            if time.monotonic() >= until:
                return

    def give_up(self) -> None:
        """Log what is lost: the process ends, and Redis is away."""
        for change in self._waiting.copy():
            if change.lost:
                logger.error("Redis was away when this process ended. %s", change.lost)
