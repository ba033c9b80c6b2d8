"""One connection to Redis: commands are sent before the replies to earlier ones are read."""

from __future__ import annotations

from typing import Any, Protocol

from redis import VERSION
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from celery_delayq.errors import NotReplicated
from celery_delayq.store.scripting.calls import pack
from celery_delayq.store.scripting.errors import error_of, raise_ours, unavailable

#: Before redis-py 5.3 a pool wants the name of a command.
_COMMAND_NAME = () if VERSION >= (5, 3) else ("_",)


class Pool(Protocol):
    """Where connections come from, and go back to: that of redis-py, or of an event loop."""

    def get_connection(self, *command_name: str) -> Any:
        """Return a connection that is ready for commands."""
        ...

    def release(self, connection: Any, /) -> object:
        """Take a connection back."""
        ...


class Wire:
    """A connection out of a pool, taken when something is sent.

    redis-py takes twice as long for a command, and three times as long for a pipeline. Errors are
    ours, as of a client. A connection that may be out of step is closed, and the next command goes
    over another one. For one thread at a time.

    Parameters
    ----------
    pool : Pool
        Where the connection comes from, and goes back to.
    repeats : bool
        Whether a command is repeated after each lost connection.

    Attributes
    ----------
    unread : int
        How many replies have not been read.
    """

    def __init__(self, pool: Pool, *, repeats: bool = False) -> None:
        self.unread = 0
        self._repeats = repeats
        self._pool = pool
        self._connection: Any = None
        self._retry: Any = None

    @property
    def socket(self) -> Any:
        """The socket, None where there is no connection."""
        return socket_of(self._connection)

    def send(self, commands: bytes, number: int = 1) -> None:
        """Send so many commands, as :func:`~celery_delayq.store.scripting.calls.pack` returns them.

        Raises
        ------
        BrokerUnavailable
            The server is gone; whether it has got the commands is not known.
        """
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._pool.get_connection(*_COMMAND_NAME)
                self._retry = connection.retry
            # Counted first: a signal may end this at any moment.
            self.unread += number
            connection.send_packed_command([commands])
        except BaseException as exc:
            self.drop()
            raise_ours(exc)

    def read(self) -> Any:
        """Return the next reply.

        Raises
        ------
        BrokerUnavailable
            The server is gone, or is no master any more.
        CommandRefused
            That is the reply.
        """
        if self._connection is None:
            raise unavailable("the connection to Redis is lost, and with it the replies")
        try:
            reply = self._connection.read_response()
        except BaseException as exc:
            if isinstance(exc, ResponseError):
                self.unread -= 1
            else:
                self.drop()
            raise_ours(exc)
        self.unread -= 1
        return reply

    def read_all(self) -> list[Any]:
        """Return all replies that are unread; a refusal is one too."""
        found = list[Any]()
        while self.unread:
            try:
                found.append(self.read())
            except ResponseError as exc:
                found.append(error_of(exc))
        return found

    def repeats_after(self, exc: BaseException) -> bool:
        """Return whether to repeat a command after such an error, which may be a lost connection.

        A wire that *repeats* does, others where ``retry`` of the connection has retries.
        """
        if self._repeats:
            return isinstance(exc, (ConnectionError, TimeoutError, OSError))
        retry = self._retry
        return bool(retry and retry._retries) and isinstance(exc, retry._supported_errors)

    def wait(self, replicas: int, seconds: float) -> None:
        """Wait at most so many *seconds* until so many *replicas* have what was sent.

        Raises
        ------
        NotReplicated
            Fewer have it.
        """
        if self._connection is not None:
            self.send(pack([("WAIT", replicas, int(seconds * 1000))]))
            there = self.read()
            if there < replicas:
                raise few_replicas(there, replicas, seconds)

    def close(self) -> None:
        """Give the connection back to the pool; one with unread replies is closed."""
        if self.unread:
            self.drop()
        elif self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.release(connection)

    def drop(self) -> None:
        """Close the connection: it may be out of step."""
        connection, self._connection, self.unread = self._connection, None, 0
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)


def socket_of(connection: Any) -> Any:
    """Return the socket of a connection of redis-py; None before it connects, and after."""
    return getattr(connection, "_sock", None)


def few_replicas(replicas: int, wanted: int, seconds: float) -> NotReplicated:
    """Return the error for *replicas* that have a task where more are *wanted*."""
    return NotReplicated(
        f"the task is stored, but {replicas} of {wanted} replicas have it after {seconds:g} s; "
        "it may be lost in a failover. Sending it again may run it twice"
    )
