"""A Redis Cluster, and apps and workers on it; results and notes of tasks are in a single Redis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from celery import Celery

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.cluster_tags import slot_of
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.retry_tasks import RetryScene, tasks_of
from tests.support import TIMEOUT
from tests.support.cluster import QUEUES, TAGS, Cluster
from tests.support.scene import StartWorker


@pytest.fixture
def cluster(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> Cluster:
    """Three masters, each with a replica."""
    return Cluster.start(delayq_redis_factory)


@pytest.fixture
def shared_cluster(cluster_server: Cluster, delayq_cluster: str) -> Cluster:
    """The emptied cluster of the whole run, for tests that end or move no node."""
    assert delayq_cluster == cluster_server.url
    return cluster_server


@pytest.fixture
def delayq_broker_url(cluster: Cluster) -> str:
    """The broker of apps and workers."""
    return cluster.url


@dataclass
class Shard:
    """What a test sees of a queue, which is the only one of its hash tag."""

    cluster: Cluster
    tag: str

    @property
    def queue(self) -> str:
        """The queue."""
        return QUEUES[self.tag]

    @property
    def slot(self) -> int:
        """The slot of the tag."""
        return slot_of(self.tag)

    @property
    def master(self) -> EmbeddedRedis:
        """The server that has it when the cluster is new."""
        return self.cluster.master_of(self.slot)

    def names(self) -> set[str]:
        """Return the names of its keys, without the tag."""
        with self.master.client() as client:
            names = {name.decode() for name in client.scan_iter(f"{{{self.tag}}}:*")}
        return {name.removeprefix(f"{{{self.tag}}}:") for name in names}

    def wait_empty(self) -> None:
        """Wait until all its tasks are done and acknowledged."""

        def is_empty() -> bool:
            names = self.names()
            ready = {name for name in names if name.split("\x06")[0] == self.queue}
            return not (ready or any("}:entries" in each or "}:leased:" in each for each in names))

        wait_until(is_empty, TIMEOUT, lambda: f"nothing ready, scheduled or leased: {self.names()}")


class ClusterScene(RetryScene):
    """Tasks, workers and shards of a cluster."""

    cluster: Cluster

    def shard(self, number: int) -> Shard:
        """Return a shard by the number of its tag."""
        return Shard(self.cluster, TAGS[number])

    def listeners(self) -> int:
        """Return how many patterns are subscribed to at all nodes together."""
        found = 0
        for each in self.cluster.masters:
            with each.client() as client:
                found += client.pubsub_numpat()
        return found

    def work(self, *numbers: int, pool: str = "solo", **options: object) -> WorkerProcess:
        """Start a worker that consumes the queues of these shards."""
        queues = [self.shard(number).queue for number in numbers]
        return self.start(pool, queues=queues, **options)


@pytest.fixture
def scene(
    app: Celery, cluster: Cluster, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> ClusterScene:
    """Tasks that are tried again, and their workers."""
    found = ClusterScene(delayq_redis, tasks_of(app), delayq_worker)
    found.cluster = cluster
    return found
