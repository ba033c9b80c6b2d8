"""The brokers of the contract, and how they differ."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from kombu import Connection

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.transport.amqp.sizes import ready_messages
from tests.support.scene import Scene

S = TypeVar("S", bound=Scene)


class Broker:
    """A broker of ours.

    Attributes
    ----------
    soon : dict[str, Any]
        Settings with which a killed worker's tasks come back within seconds.
    counting : dict[str, Any]
        Settings of Celery with which deliveries are counted.
    """

    name: ClassVar[str]
    soon: ClassVar[dict[str, Any]] = {}
    counting: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str) -> None:
        self.url = url
        self.stock_url = url.removeprefix("delayq+")

    def show(self, scene: S) -> S:
        """Have a scene look at this broker; it looks at Redis by itself."""
        return scene

    def waits(self, scene: Scene) -> int:
        """Return how many tasks wait until they are due."""
        raise NotImplementedError

    def lose_connections(self, scene: Scene) -> None:
        """Have the server close all connections but those of the test."""
        raise NotImplementedError


class OnRedis(Broker):
    """The Redis that has results, notes and gates, too."""

    name = "redis"
    soon: ClassVar[dict[str, Any]] = {"lease": 1}

    def waits(self, scene: Scene) -> int:
        return len(scene.left().get("due", ()))

    def lose_connections(self, scene: Scene) -> None:
        for kind in ("normal", "pubsub"):
            scene.client.client_kill_filter(_type=kind, skipme=True)


class OnRabbitMQ(Broker):
    """A virtual host of RabbitMQ."""

    name = "rabbitmq"
    counting: ClassVar[dict[str, Any]] = {"task_default_queue_type": "quorum"}

    def __init__(self, server: EmbeddedRabbitMQ, url: str) -> None:
        super().__init__(url)
        self.server = server
        self._vhost = urlsplit(url).path[1:]

    def show(self, scene: S) -> S:
        scene.broker = self
        return scene

    def waits(self, _: Scene) -> int:
        return self.left().get("scheduled", 0)

    def lose_connections(self, _: Scene) -> None:
        self.server.control("close_all_connections", "--vhost", self._vhost, "the test")

    def left(self, queue: str = "celery") -> dict[str, int]:
        """Return how many tasks are not done yet, by state; empty where all are."""
        # This list has what consumers hold; of quorum queues it may be some seconds old.
        columns = ("name", "messages_unacknowledged")
        table = self.server.control("list_queues", "--vhost", self._vhost, *columns)
        held = dict(line.split("\t") for line in table.splitlines()[1:])
        ours = [name for name in held if name.startswith(("delayq.delay.", "delayq.unroutable"))]
        with Connection(self.stock_url) as connection:
            ready = ready_messages(connection.connection, [queue, *ours])
        found = {
            "ready": ready.pop(queue, 0),
            "leased": int(held.get(queue, 0)),
            "scheduled": sum(ready.values()),
        }
        return {state: number for state, number in found.items() if number}

    def ready(self, queue: str = "celery") -> list[str]:
        """Return the ids of ready tasks, the next to be taken first; they count as delivered."""
        with Connection(self.stock_url) as connection:
            channel = connection.default_channel
            found = [*iter(lambda: channel.basic_get(queue), None)]
            return [each.headers["id"] for each in found]
