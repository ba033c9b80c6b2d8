"""A Redis client that does not block an event loop.

In a greenlet of a bridge, commands are awaited on shared connections. Elsewhere this is the usual
client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from redis import VERSION, ConnectionPool
from redis.exceptions import ConnectionError

from celery_delayq.store.scripting.calls import pack
from celery_delayq.store.scripting.client import Client
from celery_delayq.store.scripting.errors import translate_errors
from celery_delayq.store.scripting.refusals import Refusal, refusal_of
from celery_delayq.store.scripting.wire import Wire
from celery_delayq.transport.loop.loop_socket import LoopSocket
from celery_delayq.utils import bridge
from celery_delayq.utils.bridge import Bridge


class LoopConnections:
    """Connections that many calls of one event loop share.

    Parameters
    ----------
    pool : redis.ConnectionPool
        Its class and options are used for new connections. No connection is taken from the pool.
    bridge : Bridge
        Connects in a thread, since connecting blocks.
    size : int
        Most connections.
    new_socket : Callable
        Creates the socket object of a connection.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        bridge: Bridge,
        size: int,
        new_socket: Callable[[Any, asyncio.AbstractEventLoop], LoopSocket] = LoopSocket,
    ) -> None:
        self._pool = pool
        self._bridge = bridge
        self._size = size
        self._new_socket = new_socket
        self._sockets: list[LoopSocket] = []
        self._opening: asyncio.Task[None] | None = None
        #: Whether the connections are closed for good.
        self.is_closed = False

    def get_connection(self, *_command_name: str) -> LoopConnection:
        """Return a connection over the socket with the fewest waiting requests. For greenlets.

        Raises
        ------
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError
            Redis is away.
        """
        sockets = self.open_sockets()
        if len(sockets) < self._size:
            opening = self._open_missing()
            if not sockets:
                bridge.wait(asyncio.shield(opening))
                sockets = self.open_sockets()
        return LoopConnection(_least_busy(sockets), self._checked)

    def release(self, _connection: LoopConnection) -> None:
        """Do nothing: other calls share the connection's socket."""

    async def fetch(self, request: bytes) -> Any:
        """Send a request and return the reply. For coroutines.

        Raises
        ------
        BrokerUnavailable, CommandRefused
            Redis is away, or refuses the request.
        """
        await self.open()
        with translate_errors():
            return self._checked(await _least_busy(self.open_sockets()).ask(request))

    def open_sockets(self) -> list[LoopSocket]:
        """Return the open connections."""
        return [each for each in self._sockets if each.is_open]

    async def open(self) -> None:
        """Open the missing connections. Raises the errors of :meth:`fetch`."""
        if len(self.open_sockets()) < self._size:
            with translate_errors():
                # If this caller is cancelled, the task continues for other callers.
                await asyncio.shield(self._open_missing())

    def close(self) -> None:
        """Close the connections for good. Calls without a reply get an error."""
        self.is_closed = True
        self._drop()

    def _drop(self) -> None:
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            each.close()

    def _open_missing(self) -> asyncio.Task[None]:
        """Open the missing connections. Simultaneous callers share one task."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(bridge.read_error)
        return self._opening

    async def _open(self) -> None:
        if self.is_closed:
            raise ConnectionError("the client was closed")
        loop = asyncio.get_running_loop()
        self._sockets = self.open_sockets()
        while len(self._sockets) < self._size:
            connection = await self._bridge.in_thread(partial(_connected, self._pool))
            self._sockets.append(self._new_socket(connection, loop))
        if self.is_closed:
            self._drop()

    def _checked(self, reply: Any) -> Any:
        """Return a reply, or raise an error reply. Drop all connections to a former master."""
        if not isinstance(reply, Exception):
            return reply
        if refusal_of(reply) is Refusal.RECONNECT:
            self._drop()
        raise reply


class LoopConnection:
    """A connection for a :class:`Wire` that sends one request and reads its reply.

    Parameters
    ----------
    socket : LoopSocket
        Other calls use the same socket.
    checked : Callable[[Any], Any]
        Returns a reply, or raises an error reply.
    """

    #: None: redis-py repeats no request. kombu, or the session, repeats a lost request.
    retry = None

    def __init__(self, socket: LoopSocket, checked: Callable[[Any], Any]) -> None:
        self._socket = socket
        self._checked = checked

    def send_packed_command(self, commands: Sequence[bytes]) -> None:
        """Send a request."""
        [request] = commands
        self._reply = self._socket.ask(request)

    def read_response(self) -> Any:
        """Wait in a greenlet for the reply. Return it, or raise an error reply."""
        return self._checked(bridge.wait(self._reply))

    def disconnect(self) -> None:
        """Do nothing: other calls use the socket."""


def _least_busy(sockets: list[LoopSocket]) -> LoopSocket:
    if not sockets:
        raise ConnectionError("the connections were closed meanwhile")
    return min(sockets, key=len)


def _connected(pool: ConnectionPool) -> Any:
    """Return a new, logged-in connection with the class and options of a pool."""
    connection = pool.connection_class(**_with_resp2(pool.connection_kwargs))
    with translate_errors():
        connection.connect()
    return connection


def _with_resp2(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return connection options with RESP2, the protocol that ReplyReader reads."""
    found = dict(options)
    if VERSION >= (5, 0):
        found["protocol"] = 2
        found.pop("maint_notifications_config", None)  # needs RESP3
    return found


class LoopClient(Client):
    """A client that awaits replies on an event loop, and blocks elsewhere."""

    connections: LoopConnections

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command."""
        if not bridge.is_running():
            return super().execute_command(*args, **options)
        wire = self.wire()
        wire.send(pack([args]))
        reply = wire.read()
        options.pop("keys", None)  # only for redis-py's cache
        read: Callable[..., Any] | None = self.response_callbacks.get(args[0])
        return reply if read is None else read(reply, **options)

    def wire(self) -> Wire:
        """Return a wire for one command at a time. On an event loop, calls share its connection."""
        return Wire(self.connections) if bridge.is_running() else super().wire()

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Return a pipeline. On an event loop this is an error: a pipeline blocks.

        Raises
        ------
        RuntimeError
            The call runs on an event loop.
        """
        if bridge.is_running():
            raise RuntimeError("a pipeline blocks the event loop: mark the function off_loop")
        return super().pipeline(*args, **kwargs)


def new_loop_client(pool: ConnectionPool, threads: Bridge, size: int) -> LoopClient:
    """Return a client for an event loop. Elsewhere the client uses the connections of *pool*."""
    pool.connection_kwargs = _with_resp2(pool.connection_kwargs)
    client = LoopClient(connection_pool=pool)
    client.connections = LoopConnections(pool, threads, size)
    return client
