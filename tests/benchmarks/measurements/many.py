"""How fast ``schedule_many`` is, beside stock Celery that sends one by one."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any

from ..app import Settings, app, noop
from ..bench import DAY_MS, Bench, Station, now_ms
from ..model import BenchError, Better, Figure, Row, measurement, ratio_at_least
from ..processes import Publisher
from ..publisher import Order, Published

#: So many more are scheduled than are sent one by one, so that both take about as long.
TIMES = 10

MANY = Row(
    "schedule-many",
    "schedule_many, ETA; stock: one by one",
    "tasks/s",
    Better.HIGHER,
    ratio_at_least(4),
)


class ManyPublisher(Publisher):
    """A publishing process that uses ``schedule_many``: this module."""

    def _start(self, arguments: list[str], settings: Settings, **options: object) -> None:
        super()._start([__name__, *arguments[1:]], settings, **options)


def _publisher(station: Station) -> Publisher:
    plain = station.publisher()
    return ManyPublisher(plain._settings, plain._log) if station.side.delayq else plain


@measurement("many", order=30)
def many(bench: Bench) -> Iterator[Figure]:
    """Scheduling many tasks in one call, beside stock's one by one."""
    rates: dict[str, list[float]] = {side.name: [] for side in bench.sides}
    cpu: dict[str, list[float]] = {side.name: [] for side in bench.sides}
    with ExitStack() as stack:
        stations = {s.name: stack.enter_context(bench.station(s)) for s in bench.sides}
        publishers = {n: stack.enter_context(_publisher(s)) for n, s in stations.items()}
        for number in range(-1, bench.size.rounds):  # round -1 warms up
            bench.note(f"{MANY.title}: round {number + 1} of {bench.size.rounds}")
            for side in bench.in_turn(number):
                count = bench.size.publish_count * (TIMES if side.delayq else 1)
                order = Order(count=count, due_ms=now_ms() + DAY_MS)
                published = publishers[side.name].publish(order)
                client = stations[side.name].client
                there = client.zcard("{celery}:due") if side.delayq else client.llen("celery")
                if there != count:
                    raise BenchError(f"{side.name}: {there} of {count} tasks are in Redis")
                client.flushdb()
                if number >= 0:
                    rates[side.name].append(count / published.seconds)
                    cpu[side.name].append(published.cpu_seconds / count * 1e6)
    stock, ours = (side.name for side in bench.sides)
    yield MANY.figure(
        rates[stock],
        rates[ours],
        {"cpu_microseconds_per_task": {"stock": cpu[stock], "ours": cpu[ours]}},
    )


def schedule(order: Order) -> Published:
    """Schedule what an order asks for; the items are made while the clock runs."""
    from celery_delayq import DelayQ
    from celery_delayq.schedule.schedule_many import Item

    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)

    def items() -> Iterator[Item]:
        for number in range(order.count):
            if order.due_ms is None:
                yield Item()
            else:
                due = order.due_ms + round(number * order.step_ms)
                yield Item(eta=epoch + timedelta(milliseconds=due))

    options: dict[str, Any] = {"queue": order.queues[0]} if order.queues else {}
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    DelayQ.of(app).schedule_many(items(), task=noop, **options)
    return Published(time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
    """Answer each order with one line until standard input ends."""
    for line in sys.stdin:
        fields = json.loads(line)
        fields["queues"] = tuple(fields["queues"])
        print(json.dumps(asdict(schedule(Order(**fields)))), flush=True)


if __name__ == "__main__":
    main()
