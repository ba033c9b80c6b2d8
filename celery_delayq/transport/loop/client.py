"""A client of Redis whose commands do not block a loop: in a greenlet of a bridge they are awaited
on shared connections, elsewhere it is the usual client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from redis import VERSION, ConnectionPool
from redis.client import Pipeline
from redis.exceptions import ConnectionError, ResponseError

from celery_delayq.store.scripting.calls import pack
from celery_delayq.store.scripting.client import Client, translating
from celery_delayq.store.scripting.runner import is_demoted
from celery_delayq.transport.loop.loop_socket import LoopSocket
from celery_delayq.utils import bridge
from celery_delayq.utils.bridge import Bridge


class LoopConnections:
    """Connections that many calls of one loop share.

    Parameters
    ----------
    pool : redis.ConnectionPool
        Makes the connections; none is taken out of it.
    threads : Bridge
        Connecting blocks, so that a thread does it.
    size : int
        Most connections.
    """

    def __init__(self, pool: ConnectionPool, threads: Bridge, size: int) -> None:
        self._pool = pool
        self._bridge = threads
        self._size = size
        self._sockets: list[LoopSocket] = []
        self._opening: asyncio.Task[None] | None = None

    def ask(self, request: bytes) -> Any:
        """Send a request and wait for the reply, in a greenlet; the socket with the fewest waiting
        requests takes it.
        """
        sockets = [each for each in self._sockets if each.is_open]
        if len(sockets) < self._size:
            opening = self._open_missing()
            if not sockets:
                bridge.wait(asyncio.shield(opening))
                sockets = [each for each in self._sockets if each.is_open]
        if not sockets:
            raise ConnectionError("the connections were closed meanwhile")
        return bridge.wait(min(sockets, key=len).ask(request))

    async def open(self) -> None:
        """Open the connections that are missing."""
        # A caller that is cancelled leaves it to the others.
        await asyncio.shield(self._open_missing())

    def _open_missing(self) -> asyncio.Task[None]:
        """Open connections, once for all who want it at the same time."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(_note_error)
        return self._opening

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._sockets = [each for each in self._sockets if each.is_open]
        while len(self._sockets) < self._size:
            connection = await self._bridge.in_thread(partial(_connected, self._pool))
            self._sockets.append(LoopSocket(connection, loop))

    def close(self) -> None:
        """Close them; calls without a reply get an error."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            each.close()


def _note_error(opening: asyncio.Task[None]) -> None:
    """Keep asyncio from logging an error that nobody waited for: the next call tries again."""
    if not opening.cancelled():
        opening.exception()


def _connected(pool: ConnectionPool) -> Any:
    """Return a new connection, logged in, to the server that the pool's connections go to."""
    connection = pool.connection_class(**pool.connection_kwargs)
    with translating():
        connection.connect()
    return connection


class LoopClient(Client):
    """A client that awaits the reply to each command where it runs on a loop."""

    connections: LoopConnections

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command."""
        if not bridge.is_running():
            return super().execute_command(*args, **options)
        with translating():
            reply = self.connections.ask(pack([args]))
            if isinstance(reply, Exception):
                if isinstance(reply, ResponseError) and is_demoted(reply):
                    self.connections.close()
                raise reply
        options.pop("keys", None)  # for redis-py's own cache
        read: Callable[..., Any] | None = self.response_callbacks.get(args[0])
        return reply if read is None else read(reply, **options)

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Return a pipeline; on a loop a thread executes it, as it needs a connection alone."""
        found: Pipeline = super().pipeline(*args, **kwargs)
        found.execute = bridge.off_loop(found.execute)
        return found


def on_loop(pool: ConnectionPool, threads: Bridge, size: int) -> LoopClient:
    """Return a client for a loop, with connections of its own beside those of a new pool."""
    if VERSION >= (5, 0):
        pool.connection_kwargs["protocol"] = 2  # which ReplyReader reads
        pool.connection_kwargs.pop("maint_notifications_config", None)  # those want RESP3
    client = LoopClient(connection_pool=pool)
    client.connections = LoopConnections(pool, threads, size)
    return client
