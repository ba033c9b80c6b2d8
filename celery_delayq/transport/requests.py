"""One round trip of a fetcher: requests, replies, and acknowledgements that ride along."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, ResponseError

from celery_delayq.dispatch.acks import AckBatch, Acks
from celery_delayq.store.leases import Deliveries
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.transport.fair_share import Share

logger = logging.getLogger(__name__)


class Taken(NamedTuple):
    """A message that is leased to this process and not handed out yet."""

    queue: str
    tag: str
    message: bytes
    deliveries: Deliveries
    promoted: int | None = None


class Request(NamedTuple):
    """A call of ``leases/acquire.lua`` whose reply has not come; repeated with the same request
    number."""

    share: Share
    request_number: str


class Popped(NamedTuple):
    """A message of a queue that is not leased."""

    queue: str
    message: bytes


class RidingAcks:
    """Acknowledgements that are sent with requests for messages, and answered with them.

    Parameters
    ----------
    acks : Callable[[], Acks]
        Returns those of the process.
    """

    def __init__(self, acks: Callable[[], Acks]) -> None:
        self._acks = acks
        self._batch = AckBatch({})

    def __len__(self) -> int:
        """Return how many replies are to come."""
        return len(self._batch.fields)

    def board(self) -> None:
        """Take those that wait now."""
        self.let_off()
        self._batch = self._acks().take(ride=True)

    def calls(self, store: Store) -> list[Call]:
        """Return the script calls for them."""
        return self._acks().calls(store, self._batch)

    def let_off(self) -> None:
        """Put back those that did not arrive."""
        if self._batch:
            self._acks().put_back(self._batch)
            self._batch = AckBatch({})

    def answered(self, replies: Sequence[Any]) -> None:
        """Handle the replies, which may be errors."""
        batch, self._batch = self._batch, AckBatch({})
        if not batch:
            return
        errors = [reply for reply in replies if isinstance(reply, ResponseError)]
        if not errors:
            self._acks().confirm(batch, replies)
            return
        if not isinstance(errors[0], NoScriptError):
            logger.error("Redis refused acknowledgements, which are sent again: %s", errors[0])
        self._acks().put_back(batch)
