"""One connection to Redis: commands are sent before the replies to earlier ones are read."""

from __future__ import annotations

from typing import Any, Protocol

from redis import VERSION
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from celery_delayq.errors import NotReplicated
from celery_delayq.store.scripting.calls import pack
from celery_delayq.store.scripting.errors import error_of, raise_ours, unavailable

#: Arguments of ``get_connection``: before redis-py 5.3 it needs the name of a command.
_COMMAND_NAME = () if VERSION >= (5, 3) else ("_",)


class Pool(Protocol):
    """Gives connections, and takes them back: redis-py's pool, or connections of an event loop."""

    def get_connection(self, *command_name: str) -> Any:
        """Return a connection that is ready for commands."""
        ...

    def release(self, connection: Any, /) -> object:
        """Take a connection back."""
        ...


class Wire:
    """A connection of a pool, taken when a command is sent.

    redis-py takes twice as long for a command, and three times as long for a pipeline. The wire
    raises our errors, as a client does. If replies may no longer match commands, the connection is
    closed, and the next command uses another one. For one thread at a time.

    Parameters
    ----------
    pool : Pool
        Gives the connection, and takes it back.
    repeats : bool
        Whether a command is repeated after each lost connection.

    Attributes
    ----------
    unread : int
        Number of unread replies.
    """

    def __init__(self, pool: Pool, *, repeats: bool = False) -> None:
        self.unread = 0
        self._repeats = repeats
        self._pool = pool
        self._connection: Any = None
        self._retry: Any = None

    @property
    def socket(self) -> Any:
        """The socket; None without a connection."""
        return socket_of(self._connection)

    def send(self, commands: bytes, number: int = 1) -> None:
        """Send *number* commands, packed by :func:`~celery_delayq.store.scripting.calls.pack`.

        Raises
        ------
        BrokerUnavailable
            The server is gone. Whether it has received the commands is unknown.
        """
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._pool.get_connection(*_COMMAND_NAME)
                self._retry = connection.retry
            # Counted before sending: a signal handler may raise at any moment.
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
            The reply is an error.
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
        """Return all unread replies. A refusal is a reply too."""
        found = list[Any]()
        while self.unread:
            try:
                found.append(self.read())
            except ResponseError as exc:
                found.append(error_of(exc))
        return found

    def repeats_after(self, exc: BaseException) -> bool:
        """Return whether to repeat a command after an error.

        After a lost connection a wire with *repeats* repeats the command. Other wires do so if the
        connection's ``retry`` has retries.
        """
        if self._repeats:
            return isinstance(exc, (ConnectionError, TimeoutError, OSError))
        retry = self._retry
        return bool(retry and retry._retries) and isinstance(exc, retry._supported_errors)

    def wait(self, replicas: int, seconds: float) -> None:
        """Wait at most *seconds* until *replicas* replicas have all changes of this wire.

        Raises
        ------
        NotReplicated
            Fewer replicas have the changes.
        """
        if self._connection is not None:
            self.send(pack([("WAIT", replicas, int(seconds * 1000))]))
            there = self.read()
            if there < replicas:
                raise few_replicas(there, replicas, seconds)

    def close(self) -> None:
        """Return the connection to the pool. A connection with unread replies is closed."""
        if self.unread:
            self.drop()
        elif self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.release(connection)

    def drop(self) -> None:
        """Close the connection, whose replies may no longer match its commands."""
        connection, self._connection, self.unread = self._connection, None, 0
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)


def socket_of(connection: Any) -> Any:
    """Return the socket of a redis-py connection; None while it is not connected."""
    return getattr(connection, "_sock", None)


def few_replicas(replicas: int, wanted: int, seconds: float) -> NotReplicated:
    """Return the error for a task that only *replicas* of *wanted* replicas have."""
    return NotReplicated(
        f"the task is stored, but {replicas} of {wanted} replicas have it after {seconds:g} s; "
        "it may be lost in a failover. Sending it again may run it twice"
    )
