"""Lateness of tasks in the queues of other shards while one shard of a cluster is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.cluster_tags import slot_of
from tests.support.cluster import place_of
from tests.support.stopped import stopped

from ..bench import Bench, now_ms, percentile
from ..model import BenchError, Better, Figure, Row, Target, measurement
from ..publisher import Order
from .cluster import CLUSTER, EASY, queue_of_each_tag, station
from .due import MARGIN, MIN_RATE, PATIENCE

#: Two periods of one stream without a fault differ by this much on two cores and ten processes: p99
#: is the tenth worst of a thousand tasks, and these include the pauses of the machine.
FACTOR, SLACK = 1.5, 10.0
USUAL = Target(
    f"≤ {FACTOR:g} times usual or + {SLACK:g} ms",
    lambda f: f.ours <= max(FACTOR * f.stock, f.stock + SLACK),
)
AGAIN = Row(
    "shard-none", "no shard goes: first span, second span, p99", "ms", Better.LOWER, digits=1
)
AWAY = Row(
    "shard-{}", "a shard is {}: lateness of the others' queues, p99", "ms",
    Better.LOWER, USUAL, digits=1,
)  # fmt: skip
MOST = Row("shard-{}-max", "the same, max", "ms", Better.LOWER, digits=1)

#: The number of the shard that goes away.
GONE = 1


class Seen(NamedTuple):
    """Lateness in ms of tasks in the queues of the other shards, before and after the fault."""

    before: list[float]
    after: list[float]


def _killed(stack: ExitStack, server: EmbeddedRedis) -> None:
    server.kill()


def _stopped(stack: ExitStack, server: EmbeddedRedis) -> None:
    stack.enter_context(stopped(server.pid))


def _nothing(stack: ExitStack, server: EmbeddedRedis) -> None:
    pass


def _stream(bench: Bench, harm: Callable[[ExitStack, EmbeddedRedis], None]) -> Seen:
    """Let tasks be due in all queues in turn; at half time a master and its replica go away."""
    tags = queue_of_each_tag()
    queues = tuple(tags.values())
    stays = [place_of(slot_of(tag)) != GONE for tag in tags]
    number, step = EASY * 2 * bench.size.lateness_seconds, 1000 / EASY
    awaited = sum(stays[each % len(stays)] for each in range(number))
    with (
        station(bench, CLUSTER) as (here, servers),
        here.publisher() as publisher,
        here.worker(bench.pool, queues) as worker,
        ExitStack() as stack,
    ):
        due = now_ms() + round((number / MIN_RATE + MARGIN) * 1000)
        publisher.publish(Order(number, due, step, batch=500, queues=queues, recorded=True))
        half = due + number * step / 2
        time.sleep(max(0.0, half / 1000 - time.time()))
        for each in (servers.masters[GONE], servers.replicas[GONE]):
            harm(stack, each)

        def ran() -> list[tuple[int, float]]:
            """Return number and lateness of each task in a queue of the other shards."""
            found = [
                (round((each.due * 1000 - due) / step), each.lateness_ms)
                for each in here.records.read()
            ]
            return [(place, late) for place, late in found if stays[place % len(stays)]]

        deadline = time.monotonic() + number * step / 2000 + PATIENCE
        while len(seen := ran()) < awaited:
            worker.check()
            if time.monotonic() > deadline:
                raise BenchError(f"only {len(seen)} of {awaited} tasks of the others ran")
            time.sleep(0.1)
        stack.close()
        if harm is not _killed:  # tasks that waited run now
            here.records.wait_for(number, PATIENCE, worker.check)
    return Seen(
        [late for place, late in seen if place < number / 2],
        [late for place, late in seen if place >= number / 2],
    )


@measurement("cluster-away", order=81)
def cluster_away(bench: Bench) -> Iterator[Figure]:
    """The queues of other shards while one is away: killed, and silent."""
    for name, harm in (("none", _nothing), ("killed", _killed), ("stopped", _stopped)):
        seen = []
        for each in range(bench.size.load_rounds):
            bench.note(f"a shard of a cluster: {name}, round {each + 1}")
            seen.append(_stream(bench, harm))
        rows = (AGAIN,) if harm is _nothing else (AWAY, MOST)
        for row, percent in zip(rows, (99, 100), strict=False):
            named = replace(row.titled(name), name=row.name.format(name))
            yield named.figure(
                [percentile(each.before, percent) for each in seen],
                [percentile(each.after, percent) for each in seen],
            )
