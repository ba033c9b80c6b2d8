"""Classes of connections to Redis that a channel makes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from redis.sentinel import SentinelManagedConnection

from celery_delayq.store.scripting.client import TLSConnection
from celery_delayq.utils import native_threads


def leave_poller_on_close(connection_class: type[Any], channel: Any) -> type[Any]:
    """Return a class of connections that leave the poller of *channel* before they close.

    An epoll reports a closed socket for ever where another process has it open, as the children of
    a prefork pool have that were forked meanwhile, and a closed descriptor cannot be unregistered.
    The next connection with the number of that descriptor would be read, and waited for, where
    nothing has come.
    """

    class LeavingConnection(connection_class):
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            if self._sock is not None and channel.connection:
                channel.connection.cycle.leave(self._sock.fileno())
            super().disconnect(*args, **kwargs)

    return LeavingConnection


def waking(connection_class: type[Any]) -> type[Any]:
    """Return a class of connections that wake the greenlets of eventlet that wait for a reply.

    By itself eventlet wakes them when the number of the descriptor is used again, which may be
    never. Celery's heartbeat would wait for ever with the lock that the worker needs to stop.
    """
    notify_opened = import_module("eventlet.hubs").notify_opened

    class WakingConnection(connection_class):
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            if self._sock is not None and not native_threads.is_native():
                notify_opened(self._sock.fileno())
            super().disconnect(*args, **kwargs)

    return WakingConnection


class ManagedTLSConnection(SentinelManagedConnection, TLSConnection):
    """A connection over TLS to the master that Sentinels name."""
