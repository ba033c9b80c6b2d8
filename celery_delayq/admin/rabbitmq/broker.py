"""Opens a channel to the app's RabbitMQ for administration, and counts the tasks there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from celery import Celery

from celery_delayq.errors import NotSupported
from celery_delayq.transport.amqp.channel import Channel
from celery_delayq.transport.amqp.sizes import ready_messages


@contextmanager
def open_channel(app: Celery) -> Iterator[Channel]:
    """Open a channel to the app's RabbitMQ.

    Raises
    ------
    NotSupported
        The app's broker is not RabbitMQ with a URL ``delayq+amqp://``.
    """
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        if not isinstance(channel, Channel):
            raise NotSupported(
                f"the broker is {connection.as_uri()}; this is for RabbitMQ, with a URL "
                "delayq+amqp://"
            )
        yield channel


@dataclass(frozen=True, slots=True)
class RabbitMQQueueStats:
    """A queue and its ready messages.

    The other numbers of :class:`~celery_delayq.admin.stats.QueueStats` are None.
    """

    name: str
    ready: int

    scheduled = leased = dead = overdue = paused = held = is_paused = None
    next_due = oldest_age = scheduled_tasks = ready_tasks = memory = None


@dataclass(frozen=True, slots=True)
class RabbitMQStats:
    """The numbers of tasks in RabbitMQ.

    The other numbers of :class:`~celery_delayq.admin.stats.Stats` are None.

    Attributes
    ----------
    queues : list[RabbitMQQueueStats]
        The queues from which this app consumes, by name.
    scheduled : int
        Tasks of all queues that are not due yet.
    unroutable : int
        Due tasks whose queue was deleted.
    dead : int
        Dead letters.
    """

    queues: list[RabbitMQQueueStats]
    scheduled: int
    unroutable: int
    dead: int

    leased = overdue = paused = held = oldest_age = periodic = None
    used_memory = max_memory = away = broken = None

    @property
    def ready(self) -> int:
        """Number of ready messages in all queues."""
        return sum(queue.ready for queue in self.queues)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return {"ready": self.ready, **asdict(self)}


def gather(app: Celery) -> RabbitMQStats:
    """Read the numbers. Different queues are read at different times."""
    with open_channel(app) as channel:
        topology, connection = channel.topology, channel.connection
        ready = ready_messages(connection, app.amqp.queues.consume_from)
        return RabbitMQStats(
            queues=[RabbitMQQueueStats(*each) for each in sorted(ready.items())],
            scheduled=sum(ready_messages(connection, topology.delay_queues()).values()),
            unroutable=sum(ready_messages(connection, [topology.unroutable]).values()),
            dead=sum(1 for _ in channel.dead_letters.read()),
        )
