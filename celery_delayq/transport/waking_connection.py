"""Connections that wake waiting greenlets of eventlet when they are closed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery_delayq.utils import native_threads


def waking(connection_class: type[Any]) -> type[Any]:
    """Return a class of connections that wake the greenlets that wait for a reply.

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
