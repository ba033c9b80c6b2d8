"""Reads from RabbitMQ, and limits each wait: RabbitMQ may hang, or block publishing connections."""

from __future__ import annotations

import math
import os
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from amqp import method_framing, spec
from amqp.exceptions import AMQPError, RecoverableConnectionError
from kombu.transport import pyamqp

from celery_delayq.errors import BrokerBlocked, BrokerTimeout
from celery_delayq.integration.interrupts import SHUTDOWN_GUARD

#: Seconds without data after which a connection is closed.
REPLY_SECONDS = 30.0

#: Bytes to read at once. TLS decrypts at most this many bytes, which a poller does not see.
_READ_BYTES = 16_384

#: Seconds between two looks whether a shutdown has read the data that a read waits for.
_LOOK_SECONDS = 0.5

#: Seconds for which a worker's event loop handles read messages before it does other work.
_TURN_SECONDS = 0.01


#: The connections of this process.
_CONNECTIONS: WeakSet[WaitingConnection] = WeakSet()


def _frame_writer(connection: Any, transport: Any) -> Callable[..., None]:
    """Return py-amqp's writer of frames, which no shutdown interrupts."""
    writer: Callable[..., None] = method_framing.frame_writer(connection, transport)
    return SHUTDOWN_GUARD(writer)


class WaitingConnection(pyamqp.Connection):
    """A connection that knows whether RabbitMQ blocks it, and limits each wait for a reply."""

    #: RabbitMQ's reason for blocking the connection, such as "low on memory"; None: not blocked.
    blocked: str | None = None

    #: Most seconds to wait for a reply.
    reply_timeout = REPLY_SECONDS

    # py-amqp does not read the reason.
    _METHODS = pyamqp.Connection._METHODS | {
        spec.Connection.Blocked: spec.method(spec.Connection.Blocked, "s")
    }

    #: The event loop that reads from the connection, if any.
    loop: Any = None
    _goes_on = False
    #: Number of methods that were handled.
    _handled = 0
    #: The arguments of the method that :meth:`_parse` has parsed.
    _parsed_method: tuple[Any, ...] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, frame_writer=_frame_writer, **options)

    def connect(self, *args: Any, **options: Any) -> Any:
        """Connect. Afterwards read many bytes at once; py-amqp reads nine times for a message."""
        result = super().connect(*args, **options)
        _CONNECTIONS.add(self)
        receive = self.transport._quick_recv
        self.transport._quick_recv = lambda size: receive(max(size, _READ_BYTES))
        return result

    def _has_frame(self) -> bool:
        """Return whether a whole frame has been read already."""
        if self._transport is None:
            return False
        read = self._transport._read_buffer
        return len(read) > 7 and len(read) > 7 + int.from_bytes(read[3:7], "big")

    def reads(self, frame: bytes) -> bool:
        """Read from RabbitMQ, and return whether the data is exactly *frame*.

        This takes a fraction of the time in which py-amqp reads a frame. Other data stays in the
        read buffer.
        """
        transport = self.transport
        if transport._read_buffer:
            return False
        read = transport._quick_recv(_READ_BYTES)
        if read != frame:
            transport._read_buffer = read
            return False
        self.bytes_recv += 1  # py-amqp's heartbeats check whether this number has changed
        return True

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read a frame, and handle its method. Return whether a method has ended.

        The socket's timeout is not changed if the frame has been read already. A cold shutdown may
        interrupt the wait for data, and then reads itself. It does not interrupt the read and the
        parsing of a frame: the shutdown would read the rest of that frame as another one, or parse
        the next frame in its place.
        """
        handled = self._handled
        if timeout != 0 and not self._has_frame():
            self._wait_for_data(timeout, handled)
        with SHUTDOWN_GUARD:
            if self._handled != handled:
                return True  # a shutdown has read meanwhile, perhaps the reply that is waited for
            is_whole, method = self._parse(self._read_frame(timeout))
        if method:  # a task may run here
            self._handled += 1
            super().on_inbound_method(*method)
        return is_whole

    def _wait_for_data(self, timeout: float | None, handled: int) -> None:
        """Wait for data, or until more methods than *handled* were handled, by a shutdown."""
        sock = self.transport.sock
        if getattr(sock, "pending", int)():  # TLS has decrypted data
            return
        if timeout is None:
            timeout = sock.gettimeout()
        # Without a timeout of the socket, wait for ever.
        until = time.monotonic() + (math.inf if timeout is None else timeout)
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            while self.connected and self._handled == handled:
                left = until - time.monotonic()
                if selector.select(min(left, _LOOK_SECONDS)):
                    return
                if left <= 0:
                    raise TimeoutError("timed out")

    def _read_frame(self, timeout: float | None) -> Any:
        if self._has_frame():
            return self.transport.read_frame()
        with self.transport.having_timeout(timeout):
            return self.transport.read_frame()

    def _parse(self, frame: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return whether the frame ends a method, and the arguments of that method."""
        is_whole = self.on_inbound_frame(frame)
        method, self._parsed_method = self._parsed_method, ()
        return is_whole, method

    def on_inbound_method(self, *method: Any) -> None:
        """Keep a parsed method until :meth:`blocking_read` handles the method."""
        self._parsed_method = method

    def drain_events(self, timeout: float | None = None) -> None:
        """Read until an event. The event loop reads the other frames in the buffer, which a poller
        does not see.
        """
        try:
            super().drain_events(timeout)
        finally:
            if self.loop is not None and not self._goes_on and self._has_frame():
                self._goes_on = True
                self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        # The loop may call this after the connection was lost. RabbitMQ then requeues the messages.
        if not self.connected or self.sock.fileno() not in self.loop.readers:
            return
        end = time.monotonic() + _TURN_SECONDS
        with suppress(TimeoutError):  # the rest of a message has not come
            while self._has_frame() and time.monotonic() < end:
                self.drain_events(timeout=0)

    def wait(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Wait for a reply."""
        with silence_ends(self):
            return super().wait(*args, timeout=timeout or self.reply_timeout, **options)

    def close(self, *args: Any, **options: Any) -> Any:
        """Close the connection; without waiting if RabbitMQ blocks it."""
        return self.collect() if self.why_blocked() else super().close(*args, **options)

    def why_blocked(self) -> str | None:
        """Read the data that has come, and return :attr:`blocked`."""
        if self.connected:
            with suppress(OSError, AMQPError):
                self.drain_events(timeout=0.001)  # with 0, py-amqp spins in half a frame
        return self.blocked

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason

    def _on_unblocked(self) -> None:
        self.blocked = None


def _leave_to_parent() -> None:
    """Drop, in a forked child, the connections that it shares with its parent.

    Nothing is sent to RabbitMQ. If both processes read from one connection, each would miss the
    data that the other has read.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in _CONNECTIONS:
        if connection.connected:
            os.dup2(nowhere, connection.sock.fileno(), inheritable=False)
            connection.collect()
    os.close(nowhere)


os.register_at_fork(after_in_child=_leave_to_parent)


@contextmanager
def silence_ends(connection: WaitingConnection) -> Iterator[None]:
    """Close a connection on which a reply did not come.

    A worker that ends waits for many replies, and would wait for each.
    """
    try:
        yield
    except TimeoutError:
        if not connection.blocked:
            connection.collect()
        raise


@contextmanager
def limit_wait(connection: WaitingConnection, seconds: float | None = None) -> Iterator[None]:
    """Wait at most *seconds* for each reply, by default the connection's ``reply_timeout``.

    A lost or silent connection is closed: whether RabbitMQ has its last messages is unknown.

    Raises
    ------
    BrokerBlocked
        RabbitMQ has blocked the connection. kombu does not repeat the publish: RabbitMQ may still
        read the message.
    BrokerTimeout
        RabbitMQ did not answer.
    """
    before, sock = connection.reply_timeout, connection.sock
    connection.reply_timeout = seconds = seconds or before
    timeout = sock.gettimeout()
    if timeout != seconds:
        sock.settimeout(seconds)
    try:
        yield
    except (OSError, RecoverableConnectionError) as exc:
        if not connection.connected and not isinstance(exc, TimeoutError):
            raise
        reason = connection.why_blocked()  # RabbitMQ may block it while a large message is written
        connection.collect()
        if reason:
            raise BrokerBlocked(
                f"RabbitMQ has blocked this connection ({reason}) and did not confirm in "
                f"{seconds:g} s; it may still run the task later. Free memory or disk space of "
                "the broker, or raise vm_memory_high_watermark or lower disk_free_limit"
            ) from exc
        if "timed out" in str(exc):
            raise BrokerTimeout(
                f"RabbitMQ did not confirm in {seconds:g} s; whether it has the task is not known"
            ) from exc
        raise
    finally:
        connection.reply_timeout = before
        if timeout != seconds:
            with suppress(OSError):  # the socket is closed
                sock.settimeout(timeout)
