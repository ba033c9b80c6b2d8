"""A connection to Redis on an event loop, shared by many callers. Replies come in request order."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError, TimeoutError

from celery_delayq.transport.loop.replies import ReplyReader
from celery_delayq.utils.bridge import read_error

#: Bytes of waiting requests from which they are sent at once. Fewer wait for the loop's next turn.
_SEND_BYTES = 16384

#: Most bytes that one callback reads or sends: more would block the loop for longer.
_MAX_PIECE_BYTES = 65536

#: Errors of a socket that has no data to read, or no room to write.
_NOT_READY_ERRORS = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Request = tuple["asyncio.Future[Any]", bytes]


class LoopSocket:
    """A connection opened by redis-py, with login, TLS and database, and served by an event loop.

    Parameters
    ----------
    connection : redis.Connection
        Connected. No other code may use it.
    loop : asyncio.AbstractEventLoop
        The running loop.
    """

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._socket = connection._sock
        self._socket.setblocking(False)
        self._replies = ReplyReader(connection._parser.parse_error)
        #: Requests of which no byte is sent. A cancelled request is never sent.
        self._unsent: list[Request] = []
        self._unsent_size = 0
        self._is_scheduled = False
        #: Bytes to send for which the socket had no room.
        self._rest = memoryview(b"")
        self._unanswered: deque[asyncio.Future[Any]] = deque()
        self._timeout: float | None = connection.socket_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self.is_open = True
        loop.add_reader(self._socket, self._read)

    def __len__(self) -> int:
        """Return the number of requests without a reply."""
        return len(self._unanswered) + len(self._unsent)

    def ask(self, request: bytes) -> asyncio.Future[Any]:
        """Send a request. The future's result is the reply, which may be an exception of redis-py.

        Raises
        ------
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError
            By the future: the connection was lost before the reply, or was silent for longer than
            ``socket_timeout``.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            answer.set_exception(ConnectionError("the connection is closed"))
            return answer
        self._unsent.append((answer, request))
        self._unsent_size += len(request)
        if self._unsent_size >= _SEND_BYTES:
            self._send()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_scheduled)
        return answer

    def send_without_reply(self, request: bytes) -> None:
        """Send a request and ignore its reply."""
        self.ask(request).add_done_callback(read_error)

    def close(self, error: Exception | None = None) -> None:
        """Close the connection. Calls without a reply get *error*."""
        if not self.is_open:
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        with suppress(Exception):  # TLS may try to send a last record
            self._connection.disconnect()
        error = error or ConnectionError("the connection was closed")
        unanswered = [*self._unanswered, *(answer for answer, _ in self._unsent)]
        self._unanswered.clear()
        self._unsent.clear()
        if not self._loop.is_closed():
            for answer in unanswered:
                if not answer.done():
                    answer.set_exception(error)

    def _send_scheduled(self) -> None:
        self._is_scheduled = False
        self._send()

    def _send(self) -> None:
        """Send all requests that are not cancelled, in one piece if the socket has room."""
        if self._rest or not self._unsent or not self.is_open:
            return
        wanted = [(answer, data) for answer, data in self._unsent if not answer.done()]
        self._unsent.clear()
        self._unsent_size = 0
        if not wanted:
            return
        if not self._unanswered:
            self._watch()
        self._unanswered.extend(answer for answer, _ in wanted)
        self._rest = memoryview(b"".join([data for _, data in wanted]))
        self._write()

    def _write(self) -> None:
        """Send one piece of the waiting bytes."""
        try:
            sent = self._socket.send(self._rest[:_MAX_PIECE_BYTES])
        except _NOT_READY_ERRORS:
            sent = 0
        except OSError as exc:
            self._lose(exc)
            return
        self._rest = self._rest[sent:]
        if self._rest:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)
            self._send()

    def _read(self) -> None:
        """Read one piece, and hand out its replies."""
        try:
            data = self._socket.recv(_MAX_PIECE_BYTES)
        except _NOT_READY_ERRORS:
            return
        except OSError as exc:
            self._lose(exc)
            return
        if not data:
            self.close(ConnectionError("Connection closed by server."))
            return
        self._heard = self._loop.time()
        try:
            for reply in self._replies.feed(data):
                self._answer(reply)
        except ValueError as exc:
            self.close(ConnectionError(f"a reply could not be read: {exc}"))
            return
        # TLS may have decrypted more data, which the loop does not see at the socket.
        pending = getattr(self._socket, "pending", None)
        if self.is_open and pending is not None and pending():
            self._loop.call_soon(self._read_more)

    def _read_more(self) -> None:
        if self.is_open:
            self._read()

    def _answer(self, reply: Any) -> None:
        """Hand out a reply to the oldest request."""
        if not self._unanswered:
            raise ValueError("nothing was asked")
        answer = self._unanswered.popleft()
        if not answer.done():
            answer.set_result(reply)

    def _lose(self, exc: OSError) -> None:
        error = ConnectionError(f"Error while talking to Redis: {exc}")
        error.__cause__ = exc
        self.close(error)

    def _watch(self) -> None:
        """Start the timer that closes the connection if it is silent for too long."""
        self._heard = self._loop.time()
        if self._timeout is not None and self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._check_silence)

    def _check_silence(self) -> None:
        self._timer = None
        if not self._unanswered or self._timeout is None:
            return
        left = self._heard + self._timeout - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
        else:
            self.close(TimeoutError("Timeout reading from socket"))
