"""Classes of a channel's connections to Redis."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from redis.sentinel import SentinelManagedConnection

from celery_delayq.store.scripting.client import TLSConnection
from celery_delayq.utils import native_threads


def leave_poller_on_close(connection_class: type[Any], channel: Any) -> type[Any]:
    """Return a class of connections that leave the poller of *channel* before they close.

    An epoll reports a closed socket for ever if another process still has the socket open, such as
    a forked child of a prefork pool. A closed descriptor cannot be unregistered. The next
    connection may get the number of that descriptor. The poller would then read that connection,
    and wait, although no data has come.
    """

    class LeavingConnection(connection_class):
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            if self._sock is not None and channel.connection:
                channel.connection.cycle.leave(self._sock.fileno())
            super().disconnect(*args, **kwargs)

    return LeavingConnection


def waking(connection_class: type[Any]) -> type[Any]:
    """Return a class of connections that, when closed, wake the waiting greenlets of eventlet.

    Without this, eventlet wakes a greenlet that waits for a reply only when another socket gets the
    same descriptor, which may never happen. Celery's heartbeat would wait for ever, and hold the
    lock that the worker needs to stop.
    """
    notify_opened = import_module("eventlet.hubs").notify_opened

    class WakingConnection(connection_class):
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            if self._sock is not None and not native_threads.is_native():
                notify_opened(self._sock.fileno())
            super().disconnect(*args, **kwargs)

    return WakingConnection


class ManagedTLSConnection(SentinelManagedConnection, TLSConnection):
    """A TLS connection to the master that Sentinels name."""
