"""Time from SIGTERM to a worker's end, with many waiting ETA tasks, and while busy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..bench import DAY_MS, Bench, Station, now_ms
from ..model import BenchError, Better, Figure, Row, below, measurement, not_above_stock
from ..processes import Publisher, probe
from ..publisher import Order

#: Seconds that stock may need to read the ETA tasks into its memory, and to return them.
PATIENCE = 180.0
#: Seconds from the worker's last task to TERM. An idle worker's loop has just begun to wait then,
#: on stock for a second, and a signal does not end this wait. So this is the worst moment for a
#: signal, and the same one in all rounds.
REST = 0.1

#: Tasks in the queue of the busy worker, and tasks that it has started when TERM comes.
BUSY = 5_000
STARTED = 1_000
#: Limit for the exit of a busy worker, compared with stock. The exit takes 0.1 to 0.2 s, mostly for
#: the end of the process. Two rounds of the same side differ by up to 0.08 s on a quiet machine, so
#: even stock beside stock would miss a factor of 1.2 alone.
FACTOR, SLACK = 1.2, 0.1

SCHEDULED = Row(
    "term-etas", "TERM with {} far ETAs: exit after", "s", Better.LOWER, below(1, "s"), digits=2
)
WORKING = Row(
    "term-busy",
    "TERM of a busy solo worker: exit after",
    "s",
    Better.LOWER,
    not_above_stock(FACTOR, SLACK, "s"),
    digits=2,
)


@dataclass(frozen=True)
class Ended:
    """The end of one worker."""

    seconds: float
    raw: dict[str, float]


def _figure(row: Row, stock: list[Ended], ours: list[Ended]) -> Figure:
    raw: dict[str, Any] = {"stock": [e.raw for e in stock], "ours": [e.raw for e in ours]}
    return row.figure([e.seconds for e in stock], [e.seconds for e in ours], raw)


@measurement("term-etas", order=54)
def term_etas(bench: Bench) -> Iterator[Figure]:
    """Seconds from SIGTERM to the exit of a solo worker for which far ETAs wait."""
    count = bench.size.term_etas

    def end(station: Station, publisher: Publisher) -> Ended:
        publisher.publish(Order(count, now_ms() + DAY_MS, step_ms=100, batch=500))
        with station.worker() as worker:
            # An immediate task starts after stock has read the earlier messages.
            wait = probe(worker, publisher, station.records, PATIENCE)
            held = station.client.hlen("unacked")
            time.sleep(REST)
            seconds = worker.terminate(PATIENCE)
        return Ended(seconds, {"wait_of_an_immediate_task_ms": wait, "in_unacked_at_term": held})

    row = SCHEDULED.titled(f"{count:,}")
    yield _figure(row, *bench.in_rounds(row.title, bench.size.worker_rounds, end))


@measurement("term-busy", order=55)
def term_busy(bench: Bench) -> Iterator[Figure]:
    """Seconds from SIGTERM to the exit of a solo worker in the middle of a full queue."""

    def end(station: Station, publisher: Publisher) -> Ended:
        publisher.publish(Order(BUSY, batch=500, recorded=True))
        with station.worker() as worker:
            station.records.wait_for(STARTED, PATIENCE, worker.check)
            before = len(station.records)
            seconds = worker.terminate(PATIENCE)
        ran, left = len(station.records), station.client.llen("celery")
        if not left:
            raise BenchError("the queue was empty before the worker ended")
        if ran + left < BUSY:
            raise BenchError(f"of {BUSY} tasks {ran} ran and {left} are in the queue after TERM")
        return Ended(seconds, {"ran_before_term": before, "ran_in_all": ran, "left": left})

    # Twice as many: the rounds are short, and a fault in every other round must be seen.
    rounds = 2 * bench.size.worker_rounds
    yield _figure(WORKING, *bench.in_rounds(WORKING.title, rounds, end))
