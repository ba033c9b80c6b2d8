"""Reads from RabbitMQ, and how long to wait for it: it may hang, or block those who publish."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from amqp import spec
from amqp.exceptions import AMQPError, RecoverableConnectionError
from kombu.transport import pyamqp

from celery_delayq.errors import BrokerBlocked, BrokerTimeout

#: Seconds of silence after which a connection is given up.
REPLY_SECONDS = 30.0

#: Bytes that are read at once: with TLS, no more than this is ready and unseen by a poller.
_READ_BYTES = 16_384

#: Seconds after which a worker looks at other things than messages that are there.
_TURN_SECONDS = 0.01


#: The connections of this process.
_CONNECTIONS: WeakSet[WaitingConnection] = WeakSet()


class WaitingConnection(pyamqp.Connection):
    """A connection that knows whether RabbitMQ blocks it, and waits for no reply for ever."""

    #: Why RabbitMQ reads nothing from it, in its words, such as "low on memory".
    blocked: str | None = None

    #: Seconds that it waits for a reply.
    reply_timeout = REPLY_SECONDS

    # py-amqp leaves the reason unread.
    _METHODS = pyamqp.Connection._METHODS | {
        spec.Connection.Blocked: spec.method(spec.Connection.Blocked, "s")
    }

    #: The event loop that reads from it, if any.
    loop: Any = None
    _goes_on = False

    def connect(self, *args: Any, **options: Any) -> Any:
        """Connect; from then on read much at once, where py-amqp reads nine times a message."""
        result = super().connect(*args, **options)
        _CONNECTIONS.add(self)
        receive = self.transport._quick_recv
        self.transport._quick_recv = lambda size: receive(max(size, _READ_BYTES))
        return result

    def _has_frame(self) -> bool:
        """Return whether all of a frame has been read already."""
        if self._transport is None:
            return False
        read = self._transport._read_buffer
        return len(read) > 7 and len(read) > 7 + int.from_bytes(read[3:7], "big")

    def reads(self, frame: bytes) -> bool:
        """Return whether RabbitMQ says this and nothing else, in a fraction of the time in which a
        frame is read; what else it says is still to be read.
        """
        transport = self.transport
        if transport._read_buffer:
            return False
        read = transport._quick_recv(_READ_BYTES)
        if read != frame:
            transport._read_buffer = read
            return False
        self.bytes_recv += 1  # what heartbeats go by
        return True

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read a frame; without a change of the socket's timeout where it is here already."""
        if self._has_frame():
            return self.on_inbound_frame(self.transport.read_frame())
        return super().blocking_read(timeout)

    def drain_events(self, timeout: float | None = None) -> None:
        """Read until something has happened; the event loop goes on, since no poller sees more."""
        try:
            super().drain_events(timeout)
        finally:
            if self.loop is not None and not self._goes_on and self._has_frame():
                self._goes_on = True
                self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        # A lost connection's messages come again, and the loop runs what it has left.
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
        """Close, at once where RabbitMQ reads nothing."""
        return self.collect() if self.why_blocked() else super().close(*args, **options)

    def why_blocked(self) -> str | None:
        """Return :attr:`blocked` by what RabbitMQ has said until now."""
        if self.connected:
            with suppress(OSError, AMQPError):
                self.drain_events(timeout=0.001)  # with 0, py-amqp spins in half a frame
        return self.blocked

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason

    def _on_unblocked(self) -> None:
        self.blocked = None


def _leave_to_parent() -> None:
    """Give up the connections that a forked child shares with its parent.

    Nothing is sent to RabbitMQ. If both processes read from one connection, each would miss what
    the other has read.
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
    """Lose a connection on which a reply did not come: a worker that ends asks for many."""
    try:
        yield
    except TimeoutError:
        if not connection.blocked:
            connection.collect()
        raise


@contextmanager
def limit_wait(connection: WaitingConnection, seconds: float | None = None) -> Iterator[None]:
    """Wait so many seconds for each reply, by default its ``reply_timeout``, and close a
    connection that is lost or silent: publishes on it are uncertain.

    Raises
    ------
    BrokerBlocked
        RabbitMQ has blocked it. kombu does not repeat the publish: RabbitMQ may still read it.
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
        reason = connection.why_blocked()  # it may have said so while a large message was written
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
            with suppress(OSError):  # it is closed
                sock.settimeout(timeout)
