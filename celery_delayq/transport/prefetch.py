"""The number of messages that consumers may still take."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from celery_delayq.integration import worker
from celery_delayq.transport.fair_share import MESSAGES_PER_QUEUE


class HasFetched(Protocol):
    """A consumer, as far as :class:`Prefetch` knows it."""

    @property
    def fetched(self) -> int:
        """Number of requested and leased messages that are not handed out."""
        ...

    @property
    def scarce(self) -> int:
        """Number of leased messages with a scarce permit of a limit."""
        ...


class Prefetch:
    """The number of messages that may be handed out, less those that are fetched or requested.

    All shards of a cluster share one object.

    Parameters
    ----------
    qos : kombu.transport.virtual.QoS
        kombu's record of the messages that are handed out.
    """

    def __init__(self, qos: Any) -> None:
        self._qos = qos
        self._consumers: list[HasFetched] = []
        self._counted: int | None = None
        #: Consumers and queues with messages of limits of which the process gets no more than it
        #: can run now.
        self.waiting: set[tuple[HasFetched, str]] = set()
        #: Number of consumers that are about to ask for messages.
        self.asking = 0

    def add(self, consumer: HasFetched) -> None:
        """Count the fetched messages of a consumer."""
        self._consumers.append(consumer)

    def remove(self, consumer: HasFetched) -> None:
        """Count the fetched messages of a consumer no more."""
        self._consumers.remove(consumer)

    def note_waiting(self, consumer: HasFetched, queue: str, *, waits: bool) -> None:
        """Note whether messages of limits of a queue wait until the process can run them."""
        if waits:
            self.waiting.add((consumer, queue))
        elif self.waiting:
            self.waiting.discard((consumer, queue))

    def keep_waiting(self, consumer: HasFetched, queues: Container[str]) -> None:
        """Forget that other queues of a consumer than *queues* wait."""
        self.waiting = {
            (other, queue)
            for other, queue in self.waiting
            if other is not consumer or queue in queues
        }

    @property
    def asks_singly(self) -> bool:
        """Whether Celery decides about each message (``worker_disable_prefetch``)."""
        return "can_consume" in vars(self._qos)

    def free_slots(self, asked: int) -> int:
        """Return how many more messages with a scarce permit of a limit may be leased.

        A process leases no more of them than it can run now: each has a permit, which other
        processes could use. *asked* messages are requested by the calls that this number is for.
        """
        fetched = sum([each.fetched for each in self._consumers]) - asked
        return max(0, worker.slots() - max(worker.begun() + fetched, self._scarce))

    @property
    def _scarce(self) -> int:
        return sum([each.scarce for each in self._consumers])

    @property
    def half(self) -> int:
        """Half of the messages that may be handed out at a time, 0 without a limit."""
        return int(self._qos.prefetch_count // 2)

    def credit(self, unlimited: int) -> int:
        """Return how many more messages may be requested.

        While messages of limits wait until the process can run them, it takes no others ahead:
        those of limits would never find a free slot.

        Parameters
        ----------
        unlimited : int
            The number to request at once where there is no limit.
        """
        scarce = self._scarce
        if scarce and scarce >= worker.slots():
            return 0  # no message could begin before one of these ends
        if self.asks_singly:
            credit = 0 if self._fetched else int(self._qos.can_consume())
        else:
            estimate: int | None = self._qos.can_consume_max_estimate()
            credit = unlimited if estimate is None else estimate
            credit = credit - self._fetched if credit else 0
        return min(credit, self.free_slots(0)) if credit > 0 and self.waiting else credit

    def part_of(self, credit: int, *, has_more: bool) -> int:
        """Return how many messages of the *credit* one consumer requests.

        Several consumers ask at the same time. A consumer whose queues may be empty leaves room
        for all others. A consumer whose queues have messages (*has_more*) requests at least
        :data:`MESSAGES_PER_QUEUE` and leaves room for at least one message.
        """
        if self.asking <= 1:
            return credit
        if has_more:
            return min(max(1, credit - 1), max(MESSAGES_PER_QUEUE, credit // 2))
        return max(1, credit // self.asking)

    @property
    def _fetched(self) -> int:
        if self._counted is not None:
            return self._counted
        return sum([each.fetched for each in self._consumers])

    @contextmanager
    def counted_once(self) -> Iterator[None]:
        """Count fetched messages once; meanwhile no consumer asks or delivers."""
        self._counted = self._fetched
        try:
            yield
        finally:
            self._counted = None
