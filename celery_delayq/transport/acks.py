"""Acknowledgements that are sent and not waited for, as AMQP does it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from redis import ConnectionPool
from redis.exceptions import ResponseError

logger = logging.getLogger(__name__)

#: How many replies may be outstanding before they are read.
UNREAD = 100


class Sender:
    """Sends commands on a connection of its own and reads the replies some time later.

    A worker that waits for the reply to each acknowledgement spends more on it than on all the
    rest. What is lost with the connection comes back as any message does that a worker held: at
    least once.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._connection: Any = None
        self._unread = 0
        self._lock = threading.Lock()

    def send(self, commands: Sequence[tuple[str, ...]], *, wait: bool = False) -> None:
        """Send *commands*; with *wait*, return when Redis has answered them all.

        Raises
        ------
        redis.exceptions.ConnectionError, OSError
            The connection is gone; what was sent before may be lost with it.
        """
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self.pool.get_connection()
                # A health check would take the reply to something else for its own.
                self._connection.send_packed_command(
                    self._connection.pack_commands(commands), check_health=not self._unread
                )
                self._unread += len(commands)
                if wait or self._unread >= UNREAD:
                    self._read()
            except Exception:
                self._drop()
                raise

    def drain(self) -> None:
        """Wait until Redis has answered everything: a socket closed before may discard it."""
        with self._lock:
            try:
                self._read()
            except Exception:
                self._drop()
                raise

    def _read(self) -> None:
        while self._unread:
            self._unread -= 1
            try:
                self._connection.read_response()
            except ResponseError as exc:
                logger.error("Redis refused an acknowledgement, the task may run again: %s", exc)

    def _drop(self) -> None:
        connection, self._connection, self._unread = self._connection, None, 0
        if connection is not None:
            connection.disconnect()
            self.pool.release(connection)
