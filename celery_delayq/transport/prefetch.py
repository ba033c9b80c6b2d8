"""How many more messages consumers may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from celery_delayq.transport.fair_share import MESSAGES_PER_QUEUE


class Fetching(Protocol):
    """What asks for messages."""

    @property
    def fetched(self) -> int:
        """How many messages are here, or may come, that are not handed out."""
        ...


class Prefetch:
    """The messages that may be handed out, without those that are here or may come.

    All shards of a cluster share one.

    Parameters
    ----------
    qos : kombu.transport.virtual.QoS
        kombu's record of the messages that are handed out.
    """

    def __init__(self, qos: Any) -> None:
        self._qos = qos
        self._consumers: list[Fetching] = []
        self._counted: int | None = None
        #: How many consumers are about to ask for messages.
        self.asking = 0

    def join(self, consumer: Fetching) -> None:
        """Count what a consumer has fetched."""
        self._consumers.append(consumer)

    def leave(self, consumer: Fetching) -> None:
        """Stop counting what a consumer has fetched."""
        self._consumers.remove(consumer)

    @property
    def request_size(self) -> bool:
        """Whether Celery wants to be asked for each message (``worker_disable_prefetch``)."""
        return "can_consume" in vars(self._qos)

    @property
    def half(self) -> int:
        """Half of the messages that may be handed out at a time, 0 without a limit."""
        return int(self._qos.prefetch_count // 2)

    def credit(self, unlimited: int) -> int:
        """Return how many messages may be taken beside those on their way.

        Parameters
        ----------
        unlimited : int
            How many to take at once where there is no limit.
        """
        if self.request_size:
            return 0 if self._fetched else int(self._qos.can_consume())
        credit: int | None = self._qos.can_consume_max_estimate()
        if credit is None:
            credit = unlimited
        return credit - self._fetched if credit else 0

    def part_of(self, credit: int, *, has_more: bool) -> int:
        """Return for how many of the messages that may be taken a consumer asks now.

        Several ask at the same time. One that may have a single message leaves room to all others.
        One that has more asks for at least :data:`MESSAGES_PER_QUEUE`, and leaves room for at least
        one.
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
        """Count once for all consumers, while none asks or delivers."""
        self._counted = self._fetched
        try:
            yield
        finally:
            self._counted = None
