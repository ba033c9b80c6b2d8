"""How fast an application can send: one by one and in batches, with and without ETA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from ..bench import DAY_MS, Bench, now_ms
from ..model import Better, Figure, Row, measurement, ratio_at_least
from ..publisher import Order, Published

BATCH = 500

NOW = Row("publish-now", "publish one by one, no ETA", "tasks/s", Better.HIGHER)
ETA = Row("publish-eta", "publish one by one, ETA", "tasks/s", Better.HIGHER, ratio_at_least(0.95))
BATCH_NOW = Row(
    "publish-batch-now", f"publish in a batch of {BATCH}, no ETA", "tasks/s", Better.HIGHER
)
BATCH_ETA = Row(
    "publish-batch-eta",
    f"publish in a batch of {BATCH}, ETA",
    "tasks/s",
    Better.HIGHER,
    ratio_at_least(1.5),
)


def _compare(bench: Bench, row: Row, count: int, batch: int, eta: bool) -> Figure:
    seen: dict[str, list[Published]] = {side.name: [] for side in bench.sides}
    with ExitStack() as stack:
        stations = {s.name: stack.enter_context(bench.station(s)) for s in bench.sides}
        publishers = {n: stack.enter_context(s.publisher()) for n, s in stations.items()}
        for number in range(-1, bench.size.rounds):  # round -1 warms up
            bench.note(f"{row.title}: round {number + 1} of {bench.size.rounds}")
            for side in bench.in_turn(number):
                due = now_ms() + DAY_MS if eta else None
                order = Order(count=count, due_ms=due, batch=batch)
                published = publishers[side.name].publish(order)
                stations[side.name].client.flushdb()
                if number >= 0:
                    seen[side.name].append(published)
    stock, ours = (seen[side.name] for side in bench.sides)
    return row.figure(
        [count / p.seconds for p in stock],
        [count / p.seconds for p in ours],
        {
            "cpu_microseconds_per_task": {
                "stock": [p.cpu_seconds / count * 1e6 for p in stock],
                "ours": [p.cpu_seconds / count * 1e6 for p in ours],
            }
        },
    )


@measurement("publish", order=10)
def publish(bench: Bench) -> Iterator[Figure]:
    """Publishing one by one, with and without a far ETA."""
    yield _compare(bench, NOW, bench.size.publish_count, batch=0, eta=False)
    yield _compare(bench, ETA, bench.size.publish_count, batch=0, eta=True)


@measurement("batch", order=20)
def batch(bench: Bench) -> Iterator[Figure]:
    """Publishing in batches, with and without a far ETA."""
    yield _compare(bench, BATCH_NOW, bench.size.batch_count, batch=BATCH, eta=False)
    yield _compare(bench, BATCH_ETA, bench.size.batch_count, batch=BATCH, eta=True)
