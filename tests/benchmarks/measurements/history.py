"""What the history of runs costs: the same worker without it and with it, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from ..bench import OURS, Bench, Station, now_ms
from ..model import Better, Figure, Row, measurement, ratio_at_least
from ..publisher import Order
from .immediate import SLOWEST, Drained

#: Runs that are kept: more than there are.
KEPT = 1_000_000

#: Rounds for each that the other measurements of throughput have: it is a small difference.
TIMES = 3

#: Tasks a second that are published at least.
INTAKE = 2_000


def _row(name: str, title: str) -> Row:
    title = f"{title} tasks through one worker: history off, on"
    return Row(name, title, "tasks/s", Better.HIGHER, ratio_at_least(0.95))


IMMEDIATE = _row("history-immediate", "immediate")
DELAYED = _row("history-delayed", "delayed")


def _drain(bench: Bench, station: Station, *, delayed: bool) -> float:
    """Tasks a second of a worker that finds a full queue, or a schedule that is due."""
    count = bench.size.immediate
    due = now_ms() + round(1000 * (1 + count / INTAKE)) if delayed else 0
    with station.publisher() as publisher:
        publisher.publish(Order(count, due, batch=500, recorded=True))
    time.sleep(max(0.0, due / 1000 - time.time()))
    with station.worker(bench.pool) as worker:
        station.records.wait_for(count, count / SLOWEST, worker.check)
        records = station.records.read()
    if delayed:  # all have the same due
        records = [replace(record, due=float(number)) for number, record in enumerate(records)]
    return Drained.of(records).per_second


def _compare(bench: Bench, row: Row, *, delayed: bool) -> Figure:
    rounds = TIMES * bench.size.worker_rounds
    seen: dict[int, list[float]] = {0: [], KEPT: []}
    for number in range(rounds):
        for kept in (0, KEPT) if number % 2 == 0 else (KEPT, 0):
            bench.note(f"{row.title}: round {number + 1} of {rounds}, {kept} kept")
            with bench.station(OURS) as station:
                station.settings = replace(station.settings, history=kept)
                station.clear()
                seen[kept].append(_drain(bench, station, delayed=delayed))
    return row.figure(seen[0], seen[KEPT])


@measurement("history", order=28)
def history(bench: Bench) -> Iterator[Figure]:
    """Tasks a second with a history of runs, beside the same without."""
    yield _compare(bench, IMMEDIATE, delayed=False)
    yield _compare(bench, DELAYED, delayed=True)
