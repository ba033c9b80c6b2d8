"""The stage on a Redis Cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.cluster_tags import slot_of, tag_of
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.cluster import MASTERS, TAGS, Cluster, place_of
from tests.support.faults.leftovers import unfinished_in
from tests.support.faults.stage import Stage
from tests.support.proxy import Proxy

#: Queues of several hash tags, on all masters.
QUEUES = tuple(f"faults-{number}" for number in range(8))


def shard_of(number: int) -> int:
    """Return the number of the shard to which `ClusterStage.send` sends a task."""
    return place_of(slot_of(tag_of(QUEUES[number % len(QUEUES)], TAGS)))


class ClusterStage(Stage):
    """A stage on three masters, each with a replica."""

    broker: Cluster

    def start_worker(self, **options: Any) -> Any:
        """Start a worker of all queues; do not wait."""
        return super().start_worker(**{"queues": QUEUES, **options})

    def send(self, number: int, after: float | None) -> None:
        """Send tasks to the queues in turn."""
        queue = QUEUES[number % len(QUEUES)]
        self.producer.send("faults.work", 0.01, after=after, queue=queue)

    def masters(self) -> Iterator[tuple[EmbeddedRedis, Redis]]:
        """Yield each server that is a master now, with a client."""
        for server in (*self.broker.masters, *self.broker.replicas):
            if server.running:
                with server.client() as client:
                    if client.role()[0] == b"master":
                        yield server, client

    def shard(self, number: int) -> list[EmbeddedRedis]:
        """Return the servers of a shard, its master first."""
        servers = [self.broker.masters[number], self.broker.replicas[number]]
        masters = [server for server, _ in self.masters()]
        return sorted(servers, key=lambda server: server not in masters)

    def replace(self, master: EmbeddedRedis) -> None:
        """Wait until the replica of a killed master has taken over; start the server again."""
        wait_until(self._is_served, TIMEOUT, "the replica takes over")
        master.start()
        wait_until(self.broker.all_follow, TIMEOUT, "it follows")

    @contextmanager
    def cut_off(self, number: int) -> Iterator[None]:
        """Let the replica of a shard receive nothing during the ``with`` block.

        The replica has all data that its master had at the time of the call.
        """
        master, replica = self.shard(number)
        with master.client() as client:
            written = client.info("replication")["master_repl_offset"]
        with replica.client() as client:
            wait_until(
                lambda: client.info("replication")["slave_repl_offset"] >= written,
                10,
                "the replica has it",
            )
            # The replica may become the master even if the block takes long on a slow machine.
            client.config_set("cluster-replica-validity-factor", 0)
            client.config_set("masterauth", "wrong")
            client.client_kill_filter(_type="master")
            try:
                yield
            finally:
                client.config_set("masterauth", "")

    def _is_served(self) -> bool:
        return len([*self.masters()]) == MASTERS and self.broker.is_served()

    def _new_broker(self, _options: Mapping[str, Any]) -> Any:
        return None  # the servers start together

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
            for state, ids in unfinished_in(client).items():
                found[state] |= ids
        return dict(found)
