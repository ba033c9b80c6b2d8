"""The number of messages in RabbitMQ's queues."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from amqp.exceptions import NotFound, RecoverableConnectionError


def new_channel(connection: Any) -> Any:
    """Return a new channel of a connection.

    Raises
    ------
    amqp.exceptions.RecoverableConnectionError
        The connection was lost, or is None.
    """
    if connection is None or not connection.connected:
        raise RecoverableConnectionError("the connection to RabbitMQ was lost")
    return connection.channel()


def ready_messages(connection: Any, queues: Iterable[str]) -> dict[str, int]:
    """Return the number of ready messages of each queue that exists.

    Unacknowledged messages are not counted. Nor are messages that RabbitMQ is moving from a delay
    queue to the next queue.
    """
    sizes: dict[str, int] = {}
    channel = new_channel(connection)
    for queue in queues:
        with suppress(NotFound):  # RabbitMQ closes the channel, and py-amqp opens it again
            sizes[queue] = channel.queue_declare(queue, passive=True).message_count
    channel.close()
    return sizes
