"""Requests of a fetcher, and the messages that it gets."""

from __future__ import annotations

from typing import NamedTuple

from celery_delayq.store.leases import Deliveries
from celery_delayq.transport.fair_share import Share


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
