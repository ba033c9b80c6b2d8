"""A Redis Cluster beside a single Redis with a replica, both with workers of ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, NamedTuple

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.cluster import find_cluster_server
from celery_delayq.model.cluster_tags import cluster_tags, tag_of
from celery_delayq.settings import Settings
from celery_delayq.testing import wait_until
from tests.support.cluster import Cluster

from ..bench import Bench, Side, Station, now_ms, percentile
from ..model import Better, Figure, Row, at_most, measurement, ratio_at_least
from ..publisher import Order
from .due import INTAKE, MARGIN, PATIENCE
from .immediate import SLOWEST, Drained

SPEED = Row(
    "cluster-immediate", "immediate tasks through one worker: a single Redis, a cluster", "tasks/s",
    Better.HIGHER, ratio_at_least(0.8),
)  # fmt: skip
LATE = Row(
    "cluster-lateness-p99", "{} due/s in 12 queues: a single Redis, a cluster, lateness p99", "ms",
    Better.LOWER, at_most(30, "ms"), digits=1,
)  # fmt: skip
BUSIEST = Row(
    "cluster-busiest", "calls of the busiest master, where one is the mean of all", "",
    Better.LOWER, digits=2,
)  # fmt: skip

#: Both of our side.
SINGLE = Side("single", "delayq+redis", delayq=True)
CLUSTER = Side("cluster", "delayq+rediscluster", delayq=True)


class Seen(NamedTuple):
    """Lateness of each task in ms, and how many calls each master got."""

    lateness: list[float]
    calls: list[int]


class _Servers:
    """Masters with a replica each, in the place of the one server of a station."""

    def __init__(self, masters: list[EmbeddedRedis]) -> None:
        self.masters = masters

    def client(self, **options: Any) -> Any:
        """Return a client of the first master; a cluster has no other database than 0."""
        return self.masters[0].client(**{**options, "db": 0})

    def url_for(self, scheme: str, _database: int, /) -> str:
        """Return the URL of all masters."""
        return ";".join(each.url_for(scheme) for each in self.masters)

    def calls(self) -> list[int]:
        """Return how many scripts each master has run."""
        found = []
        for each in self.masters:
            with each.client() as client:
                found.append(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0}))
        return [stats["calls"] for stats in found]


@contextmanager
def _station(bench: Bench, side: Side) -> Iterator[tuple[Station, _Servers]]:
    """Yield a station on new servers, of the same program for both sides."""
    program = find_cluster_server()
    with ExitStack() as stack:

        def start(**options: Any) -> EmbeddedRedis:
            return stack.enter_context(EmbeddedRedis(**options))

        if side is CLUSTER:
            servers = _Servers(Cluster.start(start).masters)
        else:
            master = start(executable=program, appendonly=False)
            replica = start(executable=program, appendonly=False)
            with replica.client() as client:
                client.replicaof(master.host, str(master.port))
                wait_until(lambda: client.info("replication")["master_link_status"] == "up")
            servers = _Servers([master])
        station = Station(side, servers, 0, bench.folder, bench.at_least_once)
        try:
            yield station, servers
        finally:
            station.client.close()
            station.records.path.unlink(missing_ok=True)


def _drain(bench: Bench, side: Side) -> float:
    """Return how many tasks a second a worker starts that finds a full queue."""
    count = bench.size.immediate
    with _station(bench, side) as (station, _):
        with station.publisher() as publisher:
            publisher.publish(Order(count, batch=500, recorded=True))
        with station.worker(bench.pool) as worker:
            station.records.wait_for(count, count / SLOWEST, worker.check)
            return Drained.of(station.records.read()).per_second


def _queues() -> tuple[str, ...]:
    """Return a queue of each hash tag."""
    tags = cluster_tags(Settings().cluster_tags)
    found: dict[str, str] = {}
    for name in map("mail.{}".format, count()):
        found.setdefault(tag_of(name, tags), name)
        if len(found) == len(tags):
            return tuple(found.values())
    raise AssertionError("names do not end")


def _stream(bench: Bench, side: Side) -> Seen:
    """Let tasks be due in all queues in turn."""
    rate, queues = bench.size.per_second, _queues()
    number = rate * bench.size.lateness_seconds
    with (
        _station(bench, side) as (station, servers),
        station.publisher() as publisher,
        station.worker(bench.pool, queues) as worker,
    ):
        lead = number / INTAKE + MARGIN
        due = now_ms() + round(lead * 1000)
        publisher.publish(Order(number, due, 1000 / rate, batch=500, queues=queues, recorded=True))
        before = servers.calls()
        time.sleep(max(0.0, due / 1000 - 0.5 - time.time()))
        station.records.wait_for(number, 0.5 + number / rate + PATIENCE, worker.check)
        calls = [now - then for now, then in zip(servers.calls(), before, strict=True)]
        return Seen([record.lateness_ms for record in station.records.read()], calls)


@measurement("cluster", order=80)
def cluster(bench: Bench) -> Iterator[Figure]:
    """A Redis Cluster of three masters beside a single Redis, each with replicas."""
    kinds = (SINGLE, CLUSTER)
    single, spread = bench.in_turns(
        SPEED.title, bench.size.worker_rounds, kinds, lambda side: _drain(bench, side)
    )
    yield SPEED.figure(single, spread)
    one, many = bench.in_turns(
        LATE.title, bench.size.load_rounds, kinds, lambda side: _stream(bench, side)
    )
    yield LATE.titled(f"{bench.size.per_second:,}").figure(
        [percentile(seen.lateness, 99) for seen in one],
        [percentile(seen.lateness, 99) for seen in many],
        {"calls_by_master": [seen.calls for seen in many]},
    )
    yield BUSIEST.figure(
        [max(seen.calls) / (sum(seen.calls) / len(seen.calls)) for seen in one],
        [max(seen.calls) / (sum(seen.calls) / len(seen.calls)) for seen in many],
    )
