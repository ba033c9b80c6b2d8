"""Fanout on a Redis Cluster goes over any master, and leaves one that is silent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from celery_delayq.model import envelope
from celery_delayq.store.cluster.nodes import ASK_TIMEOUT
from celery_delayq.store.scripting.calls import pack

#: How often to send an event, each time to another node.
ATTEMPTS = 3

#: Seconds to wait for the last replies when a channel closes.
LAST_REPLY = 1.0


def is_event(message: Mapping[str, Any]) -> bool:
    """Return whether a message is an event of a Celery worker, such as a heartbeat."""
    return "hostname" in (message.get("headers") or ()) and not envelope.is_task(message)


class EventPublisher:
    """Publishes events without waiting for replies: a worker's event loop does it.

    Each call reads the replies that have come. Where one is missing for too long the node is
    silent, and another one gets the events that it has not confirmed.

    Parameters
    ----------
    pool : Any
        Of connections to any master.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._connection: Any = None
        #: When an event was published first, and the command.
        self._unanswered: deque[tuple[float, bytes]] = deque()
        #: How many of them this connection has been sent.
        self._sent = 0

    def publish(self, topic: str, data: str) -> None:
        """Publish an event."""
        self._unanswered.append((time.monotonic(), pack([("PUBLISH", topic, data)])))
        for attempt in range(ATTEMPTS):
            try:
                self._read()
                self._send()
                return
            except (ConnectionError, TimeoutError):
                self._connection.disconnect()
                if attempt == ATTEMPTS - 1:
                    self._unanswered.clear()  # as where a single Redis is away
                    raise

    def _read(self) -> None:
        """Read the replies that are here."""
        if self._connection is None:
            self._connection = self._pool.get_connection()
        connection = self._connection
        if connection._sock is None:
            self._sent = 0
            connection.connect()
        while self._sent and connection.can_read(0):
            self._read_one()
        if self._sent and time.monotonic() - self._unanswered[0][0] > ASK_TIMEOUT:
            connection.note_silent()
            raise TimeoutError(f"{connection.host}:{connection.port} does not answer")

    def _read_one(self) -> None:
        try:
            self._connection.read_response()
        except ResponseError:
            self._forget_first()
            raise
        self._forget_first()

    def _forget_first(self) -> None:
        self._unanswered.popleft()
        self._sent -= 1

    def _send(self) -> None:
        """Send what this connection has not been sent."""
        connection = self._connection
        for _, command in [*self._unanswered][self._sent :]:
            connection.send_packed_command([command], check_health=False)
            self._sent += 1

    def close(self) -> None:
        """Wait a moment for the last replies."""
        if self._connection is None:
            return
        until = time.monotonic() + LAST_REPLY
        with suppress(ConnectionError, TimeoutError, ResponseError):
            while self._sent and self._connection.can_read(max(0.0, until - time.monotonic())):
                self._read_one()
        self._connection.disconnect()
