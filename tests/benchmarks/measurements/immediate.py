"""Number of immediate tasks that one worker starts in a second, on each pool.

The task only writes its record. This takes one to two microseconds of the 800 that a task takes on
stock and of the 150 to 400 that it takes on ours: at most one percent of the ratio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..bench import Bench, Station
from ..model import BenchError, Better, Figure, Row, measurement, ratio_at_least
from ..processes import Pool, Publisher
from ..publisher import Order
from ..records import Record

#: Tasks a second. A worker that starts none in the time for all at this rate is an error.
SLOWEST = 100

TARGETS = {Pool.SOLO: 5.0, Pool.PREFORK: 4.0, Pool.THREADS: 2.5}


@dataclass(frozen=True)
class Drained:
    """The starts of the tasks of a full queue: seconds after the first one, sorted."""

    starts: list[float]

    @classmethod
    def of(cls, records: list[Record]) -> Drained:
        """Sort the starts. Raise if a task ran twice: each was sent at its own time."""
        if len({record.due for record in records}) < len(records):
            raise BenchError("a task ran twice")
        first = min(record.start for record in records)
        return cls(sorted(record.start - first for record in records))

    @property
    def per_second(self) -> float:
        """Starts after the first, divided by the time until the last."""
        return (len(self.starts) - 1) / self.starts[-1]

    @property
    def tenths(self) -> list[float]:
        """The same for each tenth of the tasks: shows whether the worker became slower."""
        size = (len(self.starts) - 1) // 10
        marks = self.starts[:: size or 1]
        return [size / (b - a) for a, b in pairwise(marks) if b > a]


def _compare(bench: Bench, pool: Pool) -> Figure:
    row = Row(
        f"immediate-{pool.name.lower()}",
        f"immediate tasks through one {pool} worker",
        "tasks/s",
        Better.HIGHER,
        ratio_at_least(TARGETS[pool]),
    )
    count = bench.size.immediate

    def drain(station: Station, publisher: Publisher) -> Drained:
        publisher.publish(Order(count, batch=500, recorded=True))
        with station.worker(pool) as worker:
            station.records.wait_for(count, count / SLOWEST, worker.check)
            return Drained.of(station.records.read())

    stock, ours = bench.in_rounds(row.title, bench.size.worker_rounds, drain)
    raw: dict[str, Any] = {
        "tasks": count,
        "per_second_by_tenths": {
            "stock": [drained.tenths for drained in stock],
            "ours": [drained.tenths for drained in ours],
        },
    }
    return row.figure([d.per_second for d in stock], [d.per_second for d in ours], raw)


@measurement("immediate", order=24)
def immediate(bench: Bench) -> Iterator[Figure]:
    """Immediate tasks a second through one worker that finds a full queue, on each pool."""
    for pool in Pool:
        yield _compare(bench, pool)
