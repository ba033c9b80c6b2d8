"""Rate of sending: one by one, in batches, and by ``schedule_many``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..bench import DAY_MS, Bench, Side, Station, now_ms
from ..model import BenchError, Better, Figure, Published, Row, measurement, ratio_at_least
from ..processes import Publisher
from ..publisher import Order

BATCH = 500
#: Factor of tasks that are scheduled together, so that both ways take about the same time.
TIMES = 10

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
MANY = Row(
    "schedule-many",
    "`schedule_many`, ETA; stock: one by one",
    "tasks/s",
    Better.HIGHER,
    ratio_at_least(4),
)


def _compare(bench: Bench, row: Row, order: Callable[[Side], Order]) -> Figure:
    def publish(station: Station, publisher: Publisher) -> Published:
        published = publisher.publish(order(station.side))
        there = station.client.zcard("{celery}:due") + station.client.llen("celery")
        if there != published.count:
            raise BenchError(f"{there} of {published.count} tasks are in Redis")
        return published

    stock, ours = bench.in_rounds(row.title, bench.size.rounds, publish, warm_up=True)
    cpu = {"stock": [p.cpu_microseconds for p in stock], "ours": [p.cpu_microseconds for p in ours]}
    rates = [p.rate for p in stock], [p.rate for p in ours]
    return row.figure(*rates, {"cpu_microseconds_per_task": cpu})


def _tomorrow() -> int:
    return now_ms() + DAY_MS


@measurement("publish", order=10)
def publish(bench: Bench) -> Iterator[Figure]:
    """Publishing one by one, with and without a far ETA."""
    count = bench.size.publish_count
    yield _compare(bench, NOW, lambda _: Order(count))
    yield _compare(bench, ETA, lambda _: Order(count, _tomorrow()))


@measurement("batch", order=20)
def batch(bench: Bench) -> Iterator[Figure]:
    """Publishing in batches, with and without a far ETA."""
    count = bench.size.batch_count
    yield _compare(bench, BATCH_NOW, lambda _: Order(count, batch=BATCH))
    yield _compare(bench, BATCH_ETA, lambda _: Order(count, _tomorrow(), batch=BATCH))


@measurement("many", order=30)
def many(bench: Bench) -> Iterator[Figure]:
    """Scheduling many tasks in one call, beside stock's one by one."""

    def order(side: Side) -> Order:
        count = bench.size.publish_count * (TIMES if side.delayq else 1)
        return Order(count, _tomorrow(), many=side.delayq)

    yield _compare(bench, MANY, order)
