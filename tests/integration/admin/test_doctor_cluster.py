"""``delayq doctor`` on a Redis Cluster: it looks at each master once, and at each hash tag."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.admin.doctor import work
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.cluster_tags import cluster_tags, slot_of, tag_of
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


def test_a_fault_of_a_master_is_reported_once_and_of_which_shard(
    cluster: Cluster, app: Celery
) -> None:
    before = findings(app)
    tags = cluster_tags(12)
    with cluster.master_of(slot_of(tags[0])).client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")

    new = [each for each in findings(app) if each not in before]

    assert before == []
    assert [each["check"] for each in new] == ["eviction"]
    # All tags of a third of the slots are on that master.
    assert {tag for tag in tags if f"shard of {tag}: " in new[0]["what"]} <= {*tags[:4]}


def test_a_master_without_replica_and_one_that_stops_with_others_are_found(
    cluster: Cluster, app: Celery
) -> None:
    stops, alone = cluster.masters[1], cluster.masters[2]
    with stops.client() as client:
        client.config_set("cluster-require-full-coverage", "yes")
    cluster.replica_of(alone).kill()
    with alone.client() as client:
        wait_until(lambda: not client.info("replication")["connected_slaves"])

    found = [
        (each["check"], each["level"], each["what"].partition(": ")[0]) for each in findings(app)
    ]

    assert [each[:2] for each in found] == [
        ("cluster replicas", "warning"),
        ("cluster coverage", "warning"),
    ]
    for (*_, shard), master in zip(found, (alone, stops), strict=True):
        assert cluster.master_of(slot_of(shard.removeprefix("shard of "))) is master


def test_entries_of_any_hash_tag_that_nobody_moves_are_found(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_OVERDUE_SECONDS", 0.2)
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


def check_that_one_master_is_away(cluster: Cluster, app: Celery, *, of_tag: str) -> None:
    """Have doctor find the master away by one finding, and what is wrong elsewhere."""
    master = cluster.master_of(slot_of(of_tag))
    tags = [tag for tag in cluster_tags(12) if cluster.master_of(slot_of(tag)) is master]

    found = findings(app)

    [away] = [each for each in found if each["check"] == "shards"]
    assert f"the master at {master.host}:{master.port} is away" in away["what"]
    assert f"which has {', '.join(tags)}: " in away["what"]
    others = [each for each in found if each is not away]
    assert all(f"{master.port}" not in each["what"] for each in others)
    assert {each["check"] for each in others if each["level"] != "cannot tell"} <= {"eviction"}
    first = of_tag == cluster_tags(12)[0]
    assert {each["check"] for each in others if each["level"] == "cannot tell"} == (
        {"beat", "hash tags"} if first else set()
    )
    assert "eviction" in {each["check"] for each in others}


@pytest.mark.parametrize("place", [0, 11])
def test_a_master_that_is_away_is_one_finding_and_the_others_are_checked(
    cluster: Cluster, app: Celery, place: int
) -> None:
    tag, other = cluster_tags(12)[place], cluster_tags(12)[5]
    with cluster.master_of(slot_of(other)).client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    master = cluster.master_of(slot_of(tag))
    cluster.replica_of(master).kill()
    master.kill()

    check_that_one_master_is_away(cluster, app, of_tag=tag)


def test_stats_count_the_masters_that_are_there(cluster: Cluster, app: Celery) -> None:
    queues = [f"mail.{number}" for number in range(12)]
    for queue in queues:
        app.send_task("tasks.add", (1, 2), countdown=3600, queue=queue)
    cli, tags = CommandLine(app), cluster_tags(12)
    assert cli("stats", "--json").json["away"] == []
    master = cluster.masters[1]
    lost = [tag for tag in tags if cluster.master_of(slot_of(tag)) is master]
    there = [queue for queue in queues if tag_of(queue, tags) not in lost]
    cluster.replica_of(master).kill()
    master.kill()

    table, told = cli("stats"), cli("stats", "--json")

    assert (table.code, told.code) == (1, 1)
    assert {each["name"] for each in told.json["queues"]} - {"celery"} == {*there}
    assert told.json["scheduled"] == len(there)
    [away] = told.json["away"]
    assert (away["address"], away["tags"]) == (f"{master.host}:{master.port}", lost)
    assert f"not counted: the master at {away['address']} is away" in table.out


def test_the_entry_that_is_late_for_longest_is_named_over_all_hash_tags(app: Celery) -> None:
    delayq = DelayQ.of(app)
    hour = 3600
    late = {f"queue-{number}": (number + 1) * hour for number in range(24)}
    for name, seconds in late.items():
        delayq.periodic.add(name, 86_400, "add", queue=name)
        store = delayq.session.stores.of(name)
        at = store.now_ms() - seconds * 1000
        store.client.zadd(store.keys.periodic_at, {name: at})

    told = [each["what"] for each in findings(app) if each["check"] == "periodic"]

    assert len(told) == 1
    told_of = re.match(
        r"24 periodic entries are late and not fired, queue-23 for ([\d,]+) s", told[0]
    )
    assert told_of
    # A slow machine takes seconds until it looks.
    assert 24 * hour <= int(told_of[1].replace(",", "")) < 25 * hour
