"""Interfaces of a channel for its parts, which so need not import the channel itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store


class BatchChannel(Protocol):
    """A channel as a batch of published messages sees it."""

    connection: Any
    pool: Any
    global_keyprefix: str
    settings: Settings
    ResponseError: Any

    @property
    def store(self) -> Store:
        """Our data, through the channel's connections."""
        ...

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Route a message, here into the batch."""
        ...


class FetchingChannel(Protocol):
    """A channel as its fetcher sees it."""

    qos: Any
    global_keyprefix: str
    sep: str
    settings: Settings
    #: Whether the tasks of a Celery worker come through this channel.
    serves_worker: bool
    #: Whether messages of any queue that is consumed are leased.
    leases_any: bool
    #: The connection on which a reply is awaited, kombu's word for it.
    _in_poll: Any
    _brpop_sent_at: Any
    _queue_cycle: Any
    active_queues: Any

    @property
    def client(self) -> Any:
        """The client that waits for messages."""
        ...

    @property
    def store(self) -> Store:
        """Our data, through the channel's connections."""
        ...

    @property
    def layout(self) -> Layout:
        """The ready lists of the channel's queues."""
        ...

    @property
    def keeper(self) -> LeaseKeeper:
        """What this process holds in this Redis database."""
        ...

    @property
    def consumed(self) -> Collection[str]:
        """The consumed queues."""
        ...

    def leases_from(self, queue: str) -> bool:
        """Return whether messages of a queue are leased, and not popped as on stock."""
        ...
