"""The end of a worker whose Redis is silent, on a host that hangs: nothing waits for ever.

Without ``socket_timeout`` a heartbeat waits for its reply until TCP gives up, and with it the end
of the worker. While it ends, a thread asks Redis for a sign of life. Where none comes, the thread
shuts down the sockets of the channels: whoever waits gets an error, as where Redis is gone.
"""

from __future__ import annotations

import _socket
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, TimeoutError

from celery_delayq.integration import worker
from celery_delayq.utils import native_threads

logger = native_threads.Logger(__name__)

#: Seconds for which a worker that ends waits for a sign of life.
PATIENCE = 5.0

#: The same once none has come.
IMPATIENCE = 0.2

#: Seconds between two signs of life.
PAUSE = 1.0

_CHANNELS: WeakSet[Any] = WeakSet()

_is_silent = False


def note_channel(channel: Any) -> None:
    """Note a channel that the end of a worker may wait for."""
    _CHANNELS.add(channel)


def watch(client: Any) -> None:
    """Have the end of this process' worker watched.

    Parameters
    ----------
    client : Any
        Asks for signs of life; nothing else uses it.
    """
    worker.at_its_end(lambda: native_threads.start(lambda: _watch(client)))


def before_connecting() -> None:
    """End the worker where a heartbeat would try for ever to connect to a silent Redis.

    Raises
    ------
    OperationalError
        It ends already: a greenlet would keep the lock that the end waits for.
    """
    if _is_silent:
        worker.end_now()
        raise OperationalError("Redis is silent, and the worker ends")


def _watch(client: Any) -> None:
    """Shut down sockets while Redis is silent, for as long as the process lives."""
    global _is_silent
    pool = client.connection_pool
    while True:
        seconds = IMPATIENCE if _is_silent else PATIENCE
        pool.connection_kwargs.update(socket_timeout=seconds, socket_connect_timeout=seconds)
        try:
            client.ping()
            _is_silent = False
        except TimeoutError:
            if not _is_silent:
                logger.warning("Redis does not answer, the worker ends without it")
            _is_silent = True
        except (RedisError, OSError):  # it is gone, and nobody waits for it
            _is_silent = False
        if _is_silent:
            with suppress(RuntimeError):  # a set changed meanwhile: the next time
                for each in _sockets():
                    _shut_down(each)
        native_threads.sleep(IMPATIENCE if _is_silent else PAUSE)
        pool.disconnect()
        pool.reset()  # a connection keeps its timeout


def _sockets() -> Iterator[Any]:
    for channel in [*_CHANNELS]:
        for pool in (channel._pool, channel._async_pool):
            for name in ("_in_use_connections", "_available_connections"):
                for connection in [*getattr(pool, name, ())]:
                    if connection._sock is not None:
                        yield connection._sock


def _shut_down(sock: Any) -> None:
    """Shut a socket down, of whatever library: its owner closes it."""
    with suppress(OSError):  # it has just been closed
        copy = _socket.socket(fileno=os.dup(sock.fileno()))
        try:
            copy.shutdown(socket.SHUT_RDWR)
        finally:
            copy.close()
