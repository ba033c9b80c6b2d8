"""A private Redis Cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.cluster import ClusterNode, RedisCluster

from celery_delayq.embedded import EmbeddedRedisCluster
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


def test_a_server_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64'\n")
    old.chmod(0o755)

    with pytest.raises(RedisServerNotFound, match=r"needs Redis 7 or Valkey, and .* is older"):
        find_cluster_server(old)
