"""``delayq doctor`` on a Redis Cluster: it looks at each master once, and at each hash tag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.admin.doctor import work
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.cluster_tags import cluster_tags, slot_of
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.cluster import Cluster

pytestmark = pytest.mark.full


def has_begun_to_log(client: Redis) -> bool:
    return not client.info("persistence")["aof_rewrite_scheduled"]


@pytest.fixture
def cluster(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> Cluster:
    found = Cluster.start(delayq_redis_factory)
    for each in (*found.masters, *found.replicas):
        with each.client() as client:
            client.config_set("appendonly", "yes")
            wait_until(partial(has_begun_to_log, client))
    return found


@pytest.fixture
def app(cluster: Cluster, make_app: MakeApp) -> Celery:
    urls = (f"delayq+rediscluster://{host}:{port}" for host, port in cluster.addresses)
    return make_app(broker=";".join(urls))


def findings(app: Celery) -> list[Mapping[str, str]]:
    told = CommandLine(app)("doctor", "--json").json
    found: list[Mapping[str, str]] = told["findings"]
    return found


def test_a_fault_of_a_master_is_told_once_and_of_which_shard(cluster: Cluster, app: Celery) -> None:
    before = findings(app)
    tags = cluster_tags(12)
    with cluster.master_of(slot_of(tags[0])).client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")

    new = [each for each in findings(app) if each not in before]

    assert [each for each in before if each["level"] != "cannot tell"] == []
    assert [each["check"] for each in new] == ["eviction"]
    # All tags of a third of the slots are on that master.
    assert {tag for tag in tags if f"shard of {tag}: " in new[0]["what"]} <= {*tags[:4]}


def test_entries_of_any_hash_tag_that_nobody_moves_are_found(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "OVERDUE", 0.2)
    queues = [f"mail.{number}" for number in range(6)]
    for queue in queues:
        app.send_task("tasks.add", (1, 2), countdown=0.1, queue=queue)
    delayq = DelayQ.of(app)
    wait_until(
        lambda: all(each.oldest_age > 0.3 for each in delayq.stats().queues if each.name in queues),
        what="all are late",
    )

    found = [each for each in findings(app) if each["check"] == "dispatchers"]

    assert sorted(each["what"].partition(":")[0] for each in found) == queues
