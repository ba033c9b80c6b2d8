"""Cost of many far ETAs for a worker: its memory, and the wait of an immediate task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..bench import DAY_MS, Bench, Side, now_ms
from ..model import Better, Figure, Row, at_most, measurement
from ..processes import probe
from ..publisher import Order

#: Seconds that stock may need for 100,000 ETAs before its first immediate task starts.
PATIENCE = 180.0
FURTHER_PROBES = 20


@dataclass(frozen=True)
class Seen:
    """One worker that was started while ETAs waited."""

    rss: float
    wait: float
    further_waits: list[float]


def _observe(bench: Bench, side: Side, count: int) -> Seen:
    with bench.station(side) as station, station.publisher() as publisher:
        bench.note(f"{count:,} far ETAs: publishing, {side.name}")
        if count:
            due = now_ms() + DAY_MS
            publisher.publish(Order(count=count, due_ms=due, step_ms=100, batch=500))
        bench.note(f"{count:,} far ETAs: immediate task and memory, {side.name}")
        with station.worker() as worker:
            wait = probe(worker, publisher, station.records, PATIENCE)
            rss = worker.settled_rss()
            further = [
                probe(worker, publisher, station.records, 10.0) for _ in range(FURTHER_PROBES)
            ]
    return Seen(rss, wait, further)


@measurement("far", order=30)
def far(bench: Bench) -> Iterator[Figure]:
    """Worker memory and the wait of an immediate task, behind far ETAs."""
    most = max(bench.size.far)
    seen = {n: [_observe(bench, side, n) for side in bench.sides] for n in bench.size.far}
    for n, (stock, ours) in seen.items():
        row = Row(f"rss-{n}", f"worker RSS with {n:,} far ETAs", "MiB", Better.LOWER, digits=1)
        yield row.figure([stock.rss], [ours.rss])
    base_stock, base_ours = seen[min(bench.size.far)]
    stock, ours = seen[most]
    growth = Row(
        "rss-growth",
        f"worker RSS growth at {most:,} far ETAs",
        "MiB",
        Better.LOWER,
        at_most(2, "MiB"),
        digits=1,
    )
    yield growth.figure([stock.rss - base_stock.rss], [ours.rss - base_ours.rss])
    for n, (stock, ours) in seen.items():
        target = at_most(50, "ms") if n == most else None
        title = f"an immediate task sent behind {n:,} far ETAs starts after"
        row = Row(f"wait-{n}", title, "ms", Better.LOWER, target, digits=1)
        yield row.figure(
            [stock.wait],
            [ours.wait],
            {"further_waits_ms": {"stock": stock.further_waits, "ours": ours.further_waits}},
        )
