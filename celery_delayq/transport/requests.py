"""Requests of a consumer, and the messages that it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from celery_delayq.store.leases import DeliveryCounts, Mark
from celery_delayq.store.scripting.calls import pack_keys
from celery_delayq.transport.fair_share import Share


class Taken(NamedTuple):
    """A message that is leased to this process and not handed out yet."""

    queue: str
    tag: str
    message: bytes
    deliveries: DeliveryCounts
    promoted: int | None = None
    #: Why it does not run, None for one that runs.
    mark: Mark | None = None


class Request(NamedTuple):
    """A call of ``leases/acquire.lua`` whose reply has not come; repeated with the same request
    number."""

    share: Share
    request_number: str


@dataclass(slots=True)
class FilledQueuesCall:
    """A call of ``leases/signs.lua``: which queues have got something."""

    #: The queue of each list.
    queues: list[str] = field(default_factory=list)
    lists: list[bytes] = field(default_factory=list)

    def add(self, queue: str, *lists: bytes) -> None:
        """Look at lists of a queue, packed as arguments."""
        self.queues += [queue] * len(lists)
        self.lists += lists

    def packed(self) -> bytes:
        """Return the call, ``b""`` where there is nothing to look at.

        With the source, which is short: only idle consumers would teach it to Redis otherwise.
        """
        return pack_keys("leases/signs", self.lists) if self.lists else b""

    def found(self, reply: Any) -> list[str]:
        """Return the queues in a reply: all of them where it is an error."""
        if isinstance(reply, ResponseError):
            return self.queues
        return [self.queues[place - 1] for place in reply]


class Popped(NamedTuple):
    """A message of a queue that is not leased."""

    queue: str
    message: bytes
