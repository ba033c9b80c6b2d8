"""Punctuality of retries, beside stock Celery's."""

from __future__ import annotations

from collections.abc import Iterator

from ..app import RETRIES, WAIT
from ..bench import Bench, Side, now_ms, percentile
from ..model import Better, Figure, Row, at_most, measurement
from ..publisher import Order

#: Tasks that fail, and ms between two of them: a light load for the machine.
TASKS = 60
STEP_MS = 50.0
PATIENCE = 60.0

P50 = Row("retry-p50", f"lateness of a retry after {WAIT:g} s: p50", "ms", Better.LOWER, digits=1)
P99 = Row(
    "retry-p99",
    f"lateness of a retry after {WAIT:g} s: p99",
    "ms",
    Better.LOWER,
    at_most(50, "ms"),
    digits=1,
)


def _run(bench: Bench, side: Side) -> list[float]:
    """Return the lateness of each retry, in ms."""
    with bench.warmed_up(side) as (station, publisher, worker):
        probes = len(station.records)
        publisher.publish(Order(TASKS, now_ms() + 1000, STEP_MS, failing=True))
        station.records.wait_for(probes + TASKS * RETRIES, PATIENCE, worker.check)
        return [record.lateness_ms for record in station.records.read(probes)]


@measurement("retries", order=95)
def retries(bench: Bench) -> Iterator[Figure]:
    """The wait from a failure to the start of the retry, beside what was asked for."""
    stock, ours = bench.in_turns(
        "retries", bench.size.load_rounds, bench.sides, lambda side: _run(bench, side)
    )
    for row, percent in ((P50, 50), (P99, 99)):
        yield row.figure(
            [percentile(late, percent) for late in stock],
            [percentile(late, percent) for late in ours],
        )
