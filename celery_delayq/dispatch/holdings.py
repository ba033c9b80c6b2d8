"""The messages that this process holds, by delivery tag. No I/O."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

from celery_delayq.dispatch.acks import Tally

#: Leases for which a process with long tasks leaves a quarantined message to others.
TIRED = 10


@dataclass(slots=True)
class Holding:
    """One message that this process holds.

    *since* is the monotonic time at which it was asked for. *message* is the object that was handed
    out; while it lives, someone may still work on it.
    *crashed* says that it killed its process; *reason* and *details* say why it was rejected;
    *run* is its history line.
    """

    queue: str
    since: float
    message: ReferenceType[Any] | None = None
    crashed: bool = False
    reason: str | None = None
    details: bytes = b""
    run: bytes = b""


class Holdings:
    """The messages that one process holds in one Redis database.

    Parameters
    ----------
    worker_id : str
        The name of the lease.
    lease : float
        Seconds for which they are held without a sign of life.
    """

    def __init__(self, worker_id: str, lease: float) -> None:
        self.worker_id = worker_id
        self.lease = lease
        self.tally = Tally()
        self.held: dict[str, Holding] = {}
        #: Monotonic time at which all leases were extended last.
        self.heard = time.monotonic()
        self._prefix = len(worker_id) + 1
        self._request_numbers = count(1)
        #: By request number: the queue that was asked, and when by the monotonic clock.
        self._asked: dict[str, tuple[str, float]] = {}
        self._alone: set[str] = set()
        self._room_until = 0.0
        self._tired_until = 0.0

    def new_request_number(self, queue: str) -> str:
        """Return the request number of a request that is about to be sent."""
        request_number = str(next(self._request_numbers))
        self._asked[request_number] = queue, time.monotonic()
        return request_number

    def take(
        self, queue: str, request_number: str, fields: Iterable[str], *, alone: bool = False
    ) -> list[str]:
        """Note the messages that came for *request_number* as held; return their delivery tags."""
        tags = [f"{self.worker_id}:{field}" for field in fields]
        _, since = self._asked.pop(request_number, (queue, time.monotonic()))
        for tag in tags:
            self.held[tag] = Holding(queue, since)
        if alone:
            self._alone.update(tags)
        return tags

    def handed_out(self, tag: str, message: Any) -> bool:
        """Note the object of a held message; return whether it is still held."""
        holding = self.held.get(tag)
        if holding is None:
            return False
        holding.message = ref(message)
        return True

    def message_of(self, tag: str) -> Any:
        """Return the object of a held message, or None after its garbage collection."""
        holding = self.held.get(tag)
        return None if holding is None or holding.message is None else holding.message()

    def owns(self, tag: str) -> bool:
        """Return whether a delivery tag was made here."""
        return tag.startswith(self.worker_id)

    def field(self, tag: str) -> str:
        """Return the field under which Redis keeps the message *tag*."""
        return tag[self._prefix :]

    def drop(self, tag: str) -> Holding | None:
        """Drop a message and return it, or None if it was not held."""
        holding = self._pop(tag)
        if holding is None:
            self.tally.foreign_acks += 1
        return holding

    def _pop(self, tag: str) -> Holding | None:
        self._alone.discard(tag)
        return self.held.pop(tag, None)

    @property
    def busy(self) -> int:
        """The number of held messages and of requests that may bring more."""
        return len(self.held) + len(self._asked)

    @property
    def others(self) -> int:
        """:attr:`busy` without the current request; -1 after making room in vain."""
        busy = self.busy - 1
        return -1 if busy and time.monotonic() < self._tired_until else busy

    def make_room(self) -> None:
        """Take nothing until nothing is held: a message waits that must be delivered alone."""
        self._room_until = time.monotonic() + self.lease

    @property
    def makes_room(self) -> bool:
        """Whether to take nothing now; after one lease it is another process' turn."""
        now = time.monotonic()
        if self._room_until and not self.held:
            self._room_until = 0.0
        elif self._room_until and now > self._room_until:
            self._room_until = 0.0
            self._tired_until = now + TIRED * self.lease
        return bool(self._room_until) or bool(self._alone)
