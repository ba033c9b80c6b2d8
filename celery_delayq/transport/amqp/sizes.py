"""How many messages RabbitMQ's queues have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amqp.exceptions import NotFound


def ready_messages(connection: Any, queues: Iterable[str]) -> dict[str, int]:
    """Return the number of ready messages of each queue that exists.

    What a worker holds is not among them, nor what RabbitMQ itself is moving from a delay queue
    to the next.
    """
    sizes: dict[str, int] = {}
    channel = connection.channel()
    for queue in queues:
        try:
            sizes[queue] = channel.queue_declare(queue, passive=True).message_count
        except NotFound:  # which closes the channel
            channel = connection.channel()
    channel.close()
    return sizes
