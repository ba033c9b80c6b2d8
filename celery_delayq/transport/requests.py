"""Requests of a consumer, and the messages that it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from celery_delayq.store.leases import DeliveryCounts, Mark
from celery_delayq.store.scripting.calls import pack_keys
from celery_delayq.transport.fair_share import Share


class Taken(NamedTuple):
    """A leased message that is not handed out yet."""

    queue: str
    tag: str
    message: bytes
    deliveries: DeliveryCounts
    promoted: int | None = None
    #: Why the message does not run; None where it runs.
    mark: Mark | None = None


class Request(NamedTuple):
    """A call of ``leases/acquire.lua`` without a reply. A repetition has the same number."""

    share: Share
    request_number: str


@dataclass(slots=True)
class FilledQueuesCall:
    """A call of ``leases/filled_lists.lua``, which finds the queues that are not empty."""

    #: The queue of each list.
    queues: list[str] = field(default_factory=list)
    lists: list[bytes] = field(default_factory=list)

    def add(self, queue: str, *lists: bytes) -> None:
        """Add packed lists of a queue to the call."""
        self.queues += [queue] * len(lists)
        self.lists += lists

    def packed(self) -> bytes:
        """Return the packed call, ``b""`` without lists.

        The call has the source of the script, which is short: Redis may not know the script.
        """
        return pack_keys("leases/filled_lists", self.lists) if self.lists else b""

    def found(self, reply: Any) -> list[str]:
        """Return the queues in a reply; after an error, all queues of the call."""
        if isinstance(reply, ResponseError):
            return self.queues
        return [self.queues[place - 1] for place in reply]


class Popped(NamedTuple):
    """A message of a queue that is not leased."""

    queue: str
    message: bytes
