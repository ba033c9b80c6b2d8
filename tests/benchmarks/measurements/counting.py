"""Cost of counting: the same worker and scripts without and with counting, in turns.

Without counting, ``include/totals.lua`` does nothing. Users see tasks a second, but that depends on
other programs of the machine. The CPU of Redis depends less on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import psutil

from ..bench import OURS, Bench, Station, now_ms
from ..model import Better, Figure, Row, measurement, ratio_at_least
from ..processes import Pool
from ..publisher import Order
from .history import MIN_RATE, TIMES
from .immediate import SLOWEST, Drained


class Rows(NamedTuple):
    """The rows of one kind of tasks."""

    speed: Row
    cpu: Row


def _rows(kind: str) -> Rows:
    name, title = f"counting-{kind}", f"{kind} tasks published and run: not counted, counted"
    return Rows(
        Row(name, title, "tasks/s", Better.HIGHER, ratio_at_least(0.98)),
        Row(f"{name}-cpu", f"{title}, CPU of Redis", "µs/task", Better.LOWER, digits=1),
    )


IMMEDIATE, DELAYED = _rows("immediate"), _rows("delayed")


class Cost(NamedTuple):
    """Tasks a second of one worker, and CPU of Redis per task in µs, including publishing."""

    speed: float
    cpu: float


def _run(bench: Bench, station: Station, *, delayed: bool) -> Cost:
    """Publish tasks one by one, then measure a worker with a full queue or with due tasks."""
    count = bench.size.immediate
    due = now_ms() + round(1000 * (1 + count / MIN_RATE)) if delayed else 0
    server = psutil.Process(bench.server.pid)
    times = server.cpu_times()
    with station.publisher() as publisher:
        publisher.publish(Order(count, due or None, step_ms=0.0, recorded=True))
    time.sleep(max(0.0, due / 1000 - time.time()))
    with station.worker(Pool.SOLO) as worker:
        station.records.wait_for(count, count / SLOWEST, worker.check)
        records = station.records.read()
    after = server.cpu_times()
    cpu = after.user + after.system - times.user - times.system
    if delayed:  # all have the same due
        records = [record._replace(due=float(number)) for number, record in enumerate(records)]
    return Cost(Drained.of(records).per_second, 1e6 * cpu / count)


def _compare(bench: Bench, rows: Rows, *, delayed: bool) -> Iterator[Figure]:
    def measure(counting: bool) -> Cost:
        with bench.station(OURS) as station:
            station.settings = replace(station.settings, counting=counting)
            return _run(bench, station, delayed=delayed)

    rounds = TIMES * bench.size.worker_rounds
    off, on = bench.in_turns(rows.speed.title, rounds, (False, True), measure)
    yield rows.speed.figure([cost.speed for cost in off], [cost.speed for cost in on])
    yield rows.cpu.figure([cost.cpu for cost in off], [cost.cpu for cost in on])


@measurement("counting", order=29)
def counting(bench: Bench) -> Iterator[Figure]:
    """Tasks a second and CPU of Redis with all counting, beside the same scripts without."""
    yield from _compare(bench, IMMEDIATE, delayed=False)
    yield from _compare(bench, DELAYED, delayed=True)
