"""The brokers of the contract tests, and their differences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from kombu import Connection

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.model.cluster_tags import slot_of, tag_of
from celery_delayq.testing import WorkerProcess
from celery_delayq.transport.amqp.sizes import ready_messages
from tests.support import SHORT_LEASE
from tests.support.cluster import SPREAD, TAGS, Cluster
from tests.support.faults.leftovers import ids_in, unfinished_in
from tests.support.keyspace import look, snapshot
from tests.support.scene import BUSY, AppScene, Scene

S = TypeVar("S", bound=AppScene)


class Broker:
    """A broker of this package.

    Attributes
    ----------
    soon : dict[str, Any]
        Settings with which tasks of a killed worker are redelivered within seconds.
    counting : dict[str, Any]
        Celery's settings with which deliveries are counted.
    queues : Sequence[str]
        The queues to which tasks are sent in turn.
    conf : dict[str, Any]
        Celery's settings for sending in turn.
    """

    name: ClassVar[str]
    soon: ClassVar[dict[str, Any]] = {}
    counting: ClassVar[dict[str, Any]] = {}
    queues: ClassVar[Sequence[str]] = ("celery",)
    conf: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str) -> None:
        self.url = url
        self.stock_url = url.removeprefix("delayq+")

    def show(self, scene: S) -> S:
        """Let a scene read from this broker instead of Redis."""
        return scene

    def for_worker(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options of `start_worker` for a worker that consumes the queues."""
        return options

    def stored(self, scene: Scene) -> set[str]:
        """Return the names of all keys on Redis, without the hash tags of a cluster."""
        raise NotImplementedError

    def waits(self, scene: Scene) -> int:
        """Return the number of tasks that are not due yet."""
        raise NotImplementedError

    def lose_connections(self, scene: Scene) -> None:
        """Let the server close all connections except the test's own."""
        raise NotImplementedError

    def is_back(self, worker: WorkerProcess) -> bool:
        """Return whether a worker has connections again after a loss of all connections."""
        return worker.log.count("] Connected to ") == 2


class OnRedis(Broker):
    """The Redis that also has results, notes and gates."""

    name = "redis"
    soon: ClassVar[dict[str, Any]] = {"lease": SHORT_LEASE}

    def stored(self, scene: Scene) -> set[str]:
        return {*snapshot(scene.client)}

    def waits(self, scene: Scene) -> int:
        return len(scene.unfinished().get("due", ()))

    def lose_connections(self, scene: Scene) -> None:
        for kind in ("normal", "pubsub"):
            scene.client.client_kill_filter(_type=kind, skipme=True)


class OnCluster(Broker):
    """A Redis Cluster. Tasks go to a queue of each master in turn."""

    name = "cluster"
    soon: ClassVar[dict[str, Any]] = {"lease": SHORT_LEASE}
    queues = SPREAD
    conf: ClassVar[dict[str, Any]] = {"task_routes": ["tests.support.cluster:in_turn"]}

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.url)
        self._cluster = cluster

    def show(self, scene: S) -> S:
        scene.broker = self
        scene.app.conf.update(self.conf)
        return scene

    def for_worker(self, options: dict[str, Any]) -> dict[str, Any]:
        conf = {**self.conf, **options.get("conf", {})}
        return {"queues": self.queues, **options, "conf": conf}

    def stored(self, _: Scene) -> set[str]:
        keys = set()
        for master in self._cluster.masters:
            with master.client() as client:
                keys |= {key.partition("}:")[2] or key for key in snapshot(client)}
        return keys

    def waits(self, _: Scene) -> int:
        return len(self.unfinished().get("due", ()))

    def lose_connections(self, _: Scene) -> None:
        for master in self._cluster.masters:
            with master.client() as client:
                for kind in ("normal", "pubsub"):
                    client.client_kill_filter(_type=kind, skipme=True)

    def is_back(self, worker: WorkerProcess) -> bool:
        """Return whether a worker is connected to each shard again. Celery has no event for it."""
        tags = [tag_of(queue, TAGS) for queue in self.queues]
        return all(f"shard of {tag} is back" in worker.log for tag in tags)

    def unfinished(self, _: str = "") -> dict[str, list[Any]]:
        """Return all unfinished tasks of all queues, by the end of their key."""
        patterns = [f"*}}:{name}" for name in (*BUSY, *self.queues)]
        found: dict[str, list[Any]] = defaultdict(list)
        for master in self._cluster.masters:
            with master.client() as client:
                stored = look(client, *patterns, "*:leased:*")
            for key, items in stored.items():
                if b":leased:" in key:
                    found["leased"] += items.values()
                else:
                    name = key.decode().rpartition("}:")[2]
                    found["ready" if name in self.queues else name] += items
        return dict(found)

    def unfinished_ids(self) -> dict[str, set[str]]:
        """Return the ids of all unfinished tasks, by state."""
        found: dict[str, set[str]] = defaultdict(set)
        for master in self._cluster.masters:
            with master.client() as client:
                for state, ids in unfinished_in(client).items():
                    found[state] |= ids
        return dict(found)

    def ready(self) -> list[str]:
        """Return the ids of ready tasks by queue; the next to be taken comes first."""
        found = []
        for queue in self.queues:
            tag = tag_of(queue, TAGS)
            with self._cluster.master_of(slot_of(tag)).client() as client:
                items = client.lrange(f"{{{tag}}}:{queue}", 0, -1)
            found += [id for item in reversed(items) for id in ids_in(item)]
        return found


def close_connections(server: EmbeddedRabbitMQ, vhost: str) -> None:
    """Do what ``rabbitmqctl close_all_connections`` does, without its process."""
    # One that has ended meanwhile tells nothing.
    server.evaluate(
        '[catch rabbit_networking:close_connection(Each, "the test")'
        " || Each <- rabbit_networking:connections(),"
        " (catch rabbit_networking:connection_info(Each, [vhost]))"
        f' =:= [{{vhost, <<"{vhost}">>}}]]'
    )


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

    def stored(self, _: Scene) -> set[str]:
        return set()

    def waits(self, _: Scene) -> int:
        return self.unfinished().get("scheduled", 0)

    def lose_connections(self, _: Scene) -> None:
        close_connections(self.server, self._vhost)

    def unfinished(self, queue: str = "celery") -> dict[str, int]:
        """Return the number of unfinished tasks, by state; empty if there is none."""
        # The list counts leased messages. For quorum queues it may be some seconds old.
        rows = f'rabbit_amqqueue:info_all(<<"{self._vhost}">>, [name, messages_unacknowledged])'
        table = self.server.evaluate(
            f"[{{binary_to_list(Name), N}} || [{{_, {{_, _, _, Name}}}}, {{_, N}}] <- {rows}]"
        )
        unacknowledged = dict(re.findall(r'\{"(.*?)",(\d+)\}', table))
        ours = [
            name
            for name in unacknowledged
            if name.startswith(("delayq.delay.", "delayq.unroutable"))
        ]
        with Connection(self.stock_url) as connection:
            ready = ready_messages(connection.connection, [queue, *ours])
        found = {
            "ready": ready.pop(queue, 0),
            "leased": int(unacknowledged.get(queue, 0)),
            "scheduled": sum(ready.values()),
        }
        return {state: number for state, number in found.items() if number}

    def ready(self, queue: str = "celery") -> list[str]:
        """Return the ids of ready tasks, the next one first. Each read counts as a delivery."""
        with Connection(self.stock_url) as connection:
            channel = connection.default_channel
            found = [*iter(lambda: channel.basic_get(queue), None)]
            return [each.headers["id"] for each in found]
