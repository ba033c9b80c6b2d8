"""Cost of the history of runs: the same worker without and with a history, in turns.

Users see tasks a second, but that depends on other programs of the machine. CPU depends less on
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import psutil

from ..bench import OURS, Bench, Station, now_ms
from ..model import Better, Figure, Row, measurement, ratio_at_least, ratio_at_most
from ..processes import Worker
from ..publisher import Order
from .immediate import SLOWEST, Drained

#: Size of the history: larger than the number of runs.
KEPT = 1_000_000

#: Factor of the number of rounds, compared with other throughput rows: the difference is small.
TIMES = 3

#: Lowest rate of publishing, in tasks a second.
MIN_RATE = 2_000


class Rows(NamedTuple):
    """The rows of one kind of tasks."""

    speed: Row
    cpu: Row


def _rows(kind: str) -> Rows:
    name, title = f"history-{kind}", f"{kind} tasks through one worker: history off, on"
    return Rows(
        Row(name, title, "tasks/s", Better.HIGHER, ratio_at_least(0.95)),
        Row(f"{name}-cpu", f"{title}, CPU", "µs/task", Better.LOWER, ratio_at_most(1.05)),
    )


IMMEDIATE, DELAYED = _rows("immediate"), _rows("delayed")


class Cost(NamedTuple):
    """Tasks a second of one worker, and its CPU per task in µs, including its children."""

    speed: float
    cpu: float


def _cpu(worker: Worker) -> float:
    """Return the seconds of CPU so far."""
    process = psutil.Process(worker.pid)
    times = [each.cpu_times() for each in (process, *process.children())]
    return float(sum(each.user + each.system for each in times))


def _drain(bench: Bench, station: Station, *, delayed: bool) -> Cost:
    """Measure a worker with a full queue, or with a due schedule."""
    count = bench.size.immediate
    due = now_ms() + round(1000 * (1 + count / MIN_RATE)) if delayed else 0
    with station.publisher() as publisher:
        publisher.publish(Order(count, due or None, step_ms=0.0, batch=500, recorded=True))
    time.sleep(max(0.0, due / 1000 - time.time()))
    with station.worker(bench.pool) as worker:
        before = _cpu(worker)
        station.records.wait_for(count, count / SLOWEST, worker.check)
        cpu = _cpu(worker) - before
        records = station.records.read()
    if delayed:  # all have the same due
        records = [record._replace(due=float(number)) for number, record in enumerate(records)]
    return Cost(Drained.of(records).per_second, 1e6 * cpu / count)


def _compare(bench: Bench, rows: Rows, *, delayed: bool) -> Iterator[Figure]:
    def measure(kept: int) -> Cost:
        with bench.station(OURS) as station:
            station.settings = replace(station.settings, history=kept)
            return _drain(bench, station, delayed=delayed)

    rounds = TIMES * bench.size.worker_rounds
    off, on = bench.in_turns(rows.speed.title, rounds, (0, KEPT), measure)
    yield rows.speed.figure([cost.speed for cost in off], [cost.speed for cost in on])
    yield rows.cpu.figure([cost.cpu for cost in off], [cost.cpu for cost in on])


@measurement("history", order=28)
def history(bench: Bench) -> Iterator[Figure]:
    """Tasks a second and CPU a task with a history of runs, beside the same without."""
    yield from _compare(bench, IMMEDIATE, delayed=False)
    yield from _compare(bench, DELAYED, delayed=True)
