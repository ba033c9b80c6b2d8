"""Compare a Redis Cluster with a single Redis and replica, both with our workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.cluster import find_cluster_server
from celery_delayq.model.cluster_tags import cluster_tags, slot_of, tag_of
from celery_delayq.settings import Settings
from celery_delayq.testing import wait_until
from tests.support.cluster import MASTERS, Cluster

from ..bench import Bench, Side, Station, now_ms, percentile
from ..model import Better, Figure, Row, at_most, measurement, ratio_at_least
from ..publisher import Order
from .due import MARGIN, MIN_RATE, PATIENCE
from .immediate import SLOWEST, Drained

SPEED = Row(
    "cluster-immediate", "immediate tasks through one worker", "tasks/s",
    Better.HIGHER, ratio_at_least(0.8),
)  # fmt: skip
#: A rate that two cores reach beside the servers, and the rate of the target.
EASY = 200
LATE = Row(
    "cluster-lateness-p99", "{} due/s in 12 queues, lateness p99", "ms",
    Better.LOWER, at_most(30, "ms"), digits=1,
)  # fmt: skip
SPREAD = Row(
    "cluster-slots", "slots of hash tags by master, furthest from the mean", "%",
    Better.LOWER, at_most(10, "%"), digits=1,
)  # fmt: skip
COMMANDS = Row(
    "cluster-commands", "{} due/s in 12 queues, commands of master {} of 3", "commands/s",
    Better.LOWER,
)  # fmt: skip
BUSIEST = Row(
    "cluster-busiest", "commands of the busiest master, where one is the mean", "",
    Better.LOWER, at_most(1.1), digits=2,
)  # fmt: skip

#: Both sides are ours.
SINGLE = Side("single", "delayq+redis", delayq=True)
CLUSTER = Side("cluster", "delayq+rediscluster", delayq=True)


class Seen(NamedTuple):
    """Lateness of each task in ms, and commands a second of each master."""

    lateness: list[float]
    commands: list[float]


class Servers:
    """Masters with a replica each, instead of the one server of a station."""

    def __init__(self, masters: list[EmbeddedRedis], replicas: list[EmbeddedRedis]) -> None:
        self.masters, self.replicas = masters, replicas

    def client(self, **options: Any) -> Any:
        """Return a client of the first master; a cluster has only database 0."""
        return self.masters[0].client(**{**options, "db": 0})

    def url_for(self, scheme: str, _database: int, /) -> str:
        """Return the URL of all masters."""
        return ";".join(each.url_for(scheme) for each in self.masters)

    def commands(self) -> list[int]:
        """Return the number of commands of each master, including those of scripts."""
        found = []
        for each in self.masters:
            with each.client() as client:
                found.append(client.info("stats")["total_commands_processed"])
        return found


@contextmanager
def station(bench: Bench, side: Side) -> Iterator[tuple[Station, Servers]]:
    """Yield a station on new servers; both sides use the same program."""
    program = find_cluster_server()
    with ExitStack() as stack:

        def start(**options: Any) -> EmbeddedRedis:
            return stack.enter_context(EmbeddedRedis(**options))

        if side is CLUSTER:
            cluster = Cluster.start(start)
            servers = Servers(cluster.masters, cluster.replicas)
        else:
            master = start(executable=program, appendonly=False)
            replica = start(executable=program, appendonly=False)
            with replica.client() as client:
                client.replicaof(master.host, str(master.port))
                wait_until(lambda: client.info("replication")["master_link_status"] == "up")
            servers = Servers([master], [replica])
        station = Station(side, servers, 0, bench.folder, bench.at_least_once)
        try:
            yield station, servers
        finally:
            station.client.close()
            station.records.path.unlink(missing_ok=True)


def _drain(bench: Bench, side: Side) -> float:
    """Return the tasks a second that a worker starts from a full queue."""
    count = bench.size.immediate
    with station(bench, side) as (here, _):
        with here.publisher() as publisher:
            publisher.publish(Order(count, batch=500, recorded=True))
        with here.worker(bench.pool) as worker:
            here.records.wait_for(count, count / SLOWEST, worker.check)
            return Drained.of(here.records.read()).per_second


def queue_of_each_tag() -> dict[str, str]:
    """Return a queue of each hash tag, by the tag."""
    tags = cluster_tags(Settings().cluster_tags)
    found: dict[str, str] = {}
    for name in map("mail.{}".format, count()):
        found.setdefault(tag_of(name, tags), name)
        if len(found) == len(tags):
            return found
    raise AssertionError("names do not end")


def _stream(bench: Bench, side: Side, rate: int) -> Seen:
    """Let tasks be due in all queues in turn."""
    queues = tuple(queue_of_each_tag().values())
    number = rate * bench.size.lateness_seconds
    with (
        station(bench, side) as (here, servers),
        here.publisher() as publisher,
        here.worker(bench.pool, queues) as worker,
    ):
        lead = number / MIN_RATE + MARGIN
        due = now_ms() + round(lead * 1000)
        publisher.publish(Order(number, due, 1000 / rate, batch=500, queues=queues, recorded=True))
        time.sleep(max(0.0, due / 1000 - 0.5 - time.time()))
        before, began = servers.commands(), time.monotonic()
        here.records.wait_for(number, 0.5 + number / rate + PATIENCE, worker.check)
        seconds = time.monotonic() - began
        commands = zip(servers.commands(), before, strict=True)
        return Seen(
            [record.lateness_ms for record in here.records.read()],
            [(now - then) / seconds for now, then in commands],
        )


def _distance(bench: Bench) -> float:
    """Return the largest difference of a master's share of tags from the mean, in percent."""
    with station(bench, CLUSTER) as (here, _):
        slots = [slot_of(tag) for tag in queue_of_each_tag()]
        ranges = here.client.execute_command("CLUSTER", "SLOTS")
        found: list[int] = [sum(low <= slot <= high for slot in slots) for low, high, *_ in ranges]
    mean = len(slots) / len(found)
    return max(abs(each - mean) for each in found) / mean * 100.0


def _busiest(seen: Seen) -> float:
    return max(seen.commands) / (sum(seen.commands) / len(seen.commands))


@measurement("cluster", order=80)
def cluster(bench: Bench) -> Iterator[Figure]:
    """A Redis Cluster of three masters beside a single Redis, each with replicas."""
    kinds = (SINGLE, CLUSTER)
    single, spread = bench.in_turns(
        SPEED.title, bench.size.worker_rounds, kinds, lambda side: _drain(bench, side)
    )
    yield SPEED.figure(single, spread)
    yield SPREAD.figure([0.0], [_distance(bench)])
    for rate in (EASY, bench.size.per_second):
        late = LATE.titled(f"{rate:,}")
        one, many = bench.in_turns(
            late.title, bench.size.load_rounds, kinds, partial(_stream, bench, rate=rate)
        )
        name = late.name if rate == bench.size.per_second else f"{late.name}-{rate}"
        yield replace(late, name=name).figure(
            [percentile(seen.lateness, 99) for seen in one],
            [percentile(seen.lateness, 99) for seen in many],
        )
    for place in range(MASTERS):
        row = COMMANDS.titled(f"{rate:,}", place + 1)
        yield replace(row, name=f"{row.name}-{place + 1}").figure(
            [seen.commands[0] for seen in one], [seen.commands[place] for seen in many]
        )
    yield BUSIEST.figure([_busiest(seen) for seen in one], [_busiest(seen) for seen in many])
