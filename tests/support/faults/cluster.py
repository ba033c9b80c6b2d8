"""The stage of fault tests on a Redis Cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from tests.support.cluster import Cluster
from tests.support.faults.leftovers import left_in
from tests.support.faults.stage import Stage
from tests.support.proxy import Proxy

#: Queues of several hash tags, on all masters.
QUEUES = tuple(f"faults-{number}" for number in range(8))


class ClusterStage(Stage):
    """A stage on three masters, each with a replica."""

    broker: Cluster

    def start_worker(self, **options: Any) -> Any:
        """Start a worker of all queues, and do not wait."""
        return super().start_worker(**{"queues": QUEUES, **options})

    def send(self, number: int, after: float | None) -> None:
        """Send a task to one queue after the other."""
        queue = QUEUES[number % len(QUEUES)]
        self.producer.send("faults.work", 0.01, after=after, queue=queue)

    def masters(self) -> Iterator[tuple[EmbeddedRedis, Redis]]:
        """Yield each server that is a master now, with a client."""
        for server in (*self.broker.masters, *self.broker.replicas):
            if server.running:
                with server.client() as client:
                    if client.role()[0] == b"master":
                        yield server, client

    def _new_broker(self, _options: Mapping[str, Any]) -> Any:
        return None  # its servers start together

    def _enter_broker(self, stack: ExitStack) -> None:
        self.broker = Cluster.start(
            lambda **options: stack.enter_context(EmbeddedRedis(**{**options, "appendonly": True}))
        )

    def _url(self, through: Proxy | None) -> str:
        assert through is None, "no proxy stands before a cluster: its nodes tell their addresses"
        return self.broker.url

    def _left_in(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for _, client in self.masters():
            for state, ids in left_in(client).items():
                found[state] |= ids
        return dict(found)
