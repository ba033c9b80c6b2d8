"""A Redis Cluster and apps on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.embedded import EmbeddedRedis
from tests.support.cluster import Cluster


@pytest.fixture
def cluster(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> Cluster:
    """Three masters, each with a replica."""
    return Cluster.start(delayq_redis_factory)


@pytest.fixture
def delayq_broker_url(cluster: Cluster) -> str:
    """The broker of apps and workers."""
    return ";".join(f"delayq+rediscluster://{host}:{port}" for host, port in cluster.addresses)
