"""Punctuality of due tasks: a steady stream, fast or slow, and very many at one instant."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..bench import Bench, Side, now_ms, percentile
from ..model import (
    BenchError,
    Better,
    Figure,
    Row,
    at_most,
    at_most_above_stock,
    measurement,
    ratio_at_most,
)
from ..processes import Pool
from ..publisher import Order

#: Lowest rate at which a stock worker reads tasks into its memory, in tasks a second.
MIN_RATE = 1_000
#: Seconds between a stock worker's read of all tasks and the first due one.
MARGIN = 2.0
#: Tasks of a burst in a solo worker. Stock starts about 20 a second: its event loop fires ten
#: timers in each turn and then waits.
SOLO_BURST = 300
PATIENCE = 60.0

#: Tasks a second of a stream in which each task finds the worker idle.
SLOW = 10

P50 = Row(
    "lateness-p50",
    "lateness at {} due/s: p50",
    "ms",
    Better.LOWER,
    at_most_above_stock(2, "ms"),
    digits=1,
)
SLOW_P50 = replace(P50, name="lateness-slow-p50")
SLOW_P99 = Row("lateness-slow-p99", "lateness at {} due/s: p99", "ms", Better.LOWER, digits=1)
P99 = Row(
    "lateness-p99", "lateness at {} due/s: p99", "ms", Better.LOWER, at_most(25, "ms"), digits=1
)
MOST = Row("lateness-max", "lateness at {} due/s: max", "ms", Better.LOWER, digits=1)
EARLY = Row("early", "started before their time", "tasks", Better.LOWER, at_most(0))
BURST = Row(
    "burst",
    "{} due at one instant: time until all have started",
    "s",
    Better.LOWER,
    ratio_at_most(0.5),
    digits=2,
)


@dataclass(frozen=True)
class Load:
    """A load of tasks; ``step_ms`` is the time between two dues."""

    count: int
    step_ms: float


@dataclass(frozen=True)
class Outcome:
    """The lateness of each task (ms, in the order of the starts) and the state before the first."""

    lateness: list[float]
    clock_offset_ms: float
    still_in_queue: int
    published_seconds: float

    @property
    def early(self) -> int:
        """Tasks that started before their ETA by Redis' clock."""
        return sum(1 for late in self.lateness if late < -0.001)


def _clock_offset(client: Any) -> float:
    """Return Redis' clock minus ours in seconds; 0 if the difference is within the error."""
    best, offset = float("inf"), 0.0
    for _ in range(50):
        before = time.time()
        seconds, microseconds = client.time()
        after = time.time()
        if after - before < best:
            best = after - before
            offset = seconds + microseconds / 1e6 - (before + after) / 2
    return offset if abs(offset) > best / 2 + 1e-6 else 0.0


def _run(bench: Bench, side: Side, load: Load) -> Outcome:
    with bench.warmed_up(side) as (station, publisher, worker):
        probes = len(station.records)
        lead = load.count / MIN_RATE + MARGIN
        due = now_ms() + round(lead * 1000)
        order = Order(load.count, due, load.step_ms, batch=500, recorded=True)
        published = publisher.publish(order)
        pause = due / 1000 - 0.5 - time.time()
        if pause < 0:
            raise BenchError(f"{load.count} tasks were not published before their time")
        time.sleep(pause)  # until half a second before the first due
        waiting = station.client.llen("celery")
        offset = _clock_offset(station.client)
        last = load.count * load.step_ms / 1000
        station.records.wait_for(probes + load.count, 0.5 + last + PATIENCE, worker.check)
        records = station.records.read(probes)
    lateness = [record.lateness_ms + offset * 1000 for record in records]
    return Outcome(lateness, offset * 1000, waiting, published.seconds)


def _rounds(bench: Bench, load: Load, title: str) -> tuple[list[Outcome], list[Outcome]]:
    return bench.in_turns(
        title, bench.size.load_rounds, bench.sides, lambda side: _run(bench, side, load)
    )


def _raw(stock: list[Outcome], ours: list[Outcome]) -> dict[str, Any]:
    def one(outcome: Outcome) -> dict[str, Any]:
        marks = (1, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
        return {
            "clock_offset_ms": outcome.clock_offset_ms,
            "still_in_queue_half_a_second_before": outcome.still_in_queue,
            "published_seconds": outcome.published_seconds,
            "first_ms": min(outcome.lateness),
            "percentiles_ms": {str(m): percentile(outcome.lateness, m) for m in marks},
        }

    return {"stock": [one(o) for o in stock], "ours": [one(o) for o in ours]}


@measurement("lateness", order=40)
def lateness(bench: Bench) -> Iterator[Figure]:
    """Start minus ETA while a fixed number of tasks falls due each second."""
    rate = bench.size.per_second
    load = Load(rate * bench.size.lateness_seconds, 1000 / rate)
    stock, ours = _rounds(bench, load, f"{rate:,} due per second")
    raw = _raw(stock, ours)
    for row, percent in ((P50, 50), (P99, 99), (MOST, 100)):
        yield row.titled(f"{rate:,}").figure(
            [percentile(outcome.lateness, percent) for outcome in stock],
            [percentile(outcome.lateness, percent) for outcome in ours],
            raw,
        )
    yield EARLY.figure([float(o.early) for o in stock], [float(o.early) for o in ours])


@measurement("lateness-slow", order=41)
def lateness_slow(bench: Bench) -> Iterator[Figure]:
    """The same where each task finds the worker idle: the way of one task, in ms."""
    load = Load(SLOW * bench.size.lateness_seconds, 1000 / SLOW)
    stock, ours = _rounds(bench, load, f"{SLOW} due per second")
    for row, percent in ((SLOW_P50, 50), (SLOW_P99, 99)):
        yield row.titled(SLOW).figure(
            [percentile(outcome.lateness, percent) for outcome in stock],
            [percentile(outcome.lateness, percent) for outcome in ours],
            _raw(stock, ours),
        )


@measurement("burst", order=50)
def burst(bench: Bench) -> Iterator[Figure]:
    """Very many tasks due at the same instant."""
    yield _burst(bench, BURST, bench.size.burst)


@measurement("burst-pools", order=51)
def burst_pools(bench: Bench) -> Iterator[Figure]:
    """The same in workers of other kinds."""
    for pool, count in ((Pool.THREADS, bench.size.burst), (Pool.SOLO, SOLO_BURST)):
        row = replace(
            BURST, name=f"burst-{pool.name.lower()}", title=f"{BURST.title}, {pool} worker"
        )
        yield _burst(replace(bench, pool=pool), row, count)


def _burst(bench: Bench, row: Row, count: int) -> Figure:
    stock, ours = _rounds(bench, Load(count, 0.0), f"{count:,} due at one instant, {bench.pool}")
    return row.titled(f"{count:,}").figure(
        [max(outcome.lateness) / 1000 for outcome in stock],
        [max(outcome.lateness) / 1000 for outcome in ours],
        _raw(stock, ours),
    )
