"""Acknowledgements that are sent and not waited for, as AMQP does it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from redis import VERSION, ConnectionPool
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

logger = logging.getLogger(__name__)

Command = tuple[str, ...]


def checkout(pool: ConnectionPool) -> Any:
    """Take a connection out of *pool*; before redis-py 5.3 that wanted the name of a command."""
    return pool.get_connection() if VERSION >= (5, 3) else pool.get_connection("_")


class Sender:
    """Sends commands on a connection of its own and reads the replies before the next ones.

    A worker that waits for the reply to each acknowledgement spends more on it than on all the
    rest. The commands must be such that they may be repeated: when the connection is lost, those
    whose replies were not read are sent again on a new one.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._connection: Any = None
        self._unconfirmed: list[Command] = []
        self._lock = threading.Lock()

    def send(self, commands: Sequence[Command], *, wait: bool = False) -> None:
        """Send *commands*; with *wait*, return when Redis has answered them.

        Raises
        ------
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError
            The connection is gone and a new one was not to be had; the next call sends them too.
        """
        with self._lock:
            try:
                self._read()
                self._write(commands)
            except (ConnectionError, TimeoutError, OSError):
                # An idle connection may have been closed by the other side at any time.
                again = [*self._unconfirmed, *(c for c in commands if c not in self._unconfirmed)]
                self._drop()
                self._unconfirmed = again
                self._write(again)
            if wait:
                self._read()

    def poll(self) -> None:
        """Read the replies that have come, so that a lost connection is noticed while idle."""
        with self._lock:
            waiting = self._unconfirmed
            if not waiting or (self._is_open() and not self._connection.can_read(timeout=0)):
                return
        self.drain()

    def drain(self) -> None:
        """Wait until Redis has answered everything: a socket closed before may discard it."""
        self.send([], wait=True)

    def _write(self, commands: Sequence[Command]) -> None:
        if not commands:
            return
        if self._connection is None:
            self._connection = checkout(self.pool)
        self._unconfirmed = list(commands)
        self._connection.send_packed_command(self._connection.pack_commands(commands))

    def _read(self) -> None:
        if self._unconfirmed and not self._is_open():
            raise ConnectionError("the pool closed the connection")
        while self._unconfirmed:
            try:
                self._connection.read_response()
            except ResponseError as exc:
                logger.error("Redis refused an acknowledgement, the task may run again: %s", exc)
            del self._unconfirmed[0]

    def _is_open(self) -> bool:
        return self._connection is not None and self._connection._sock is not None

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self.pool.release(connection)
