"""Our delays in RabbitMQ beside Celery's own, on the same broker.

Celery's own delays need quorum queues and a topic exchange. Both sides use them, except for
immediate tasks, which use the default classic queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import ServerNotFound

from ..app import Settings
from ..bench import DAY_MS, Bench, Side, now_ms, percentile
from ..model import (
    BenchError,
    Better,
    Figure,
    Row,
    Target,
    at_most,
    measurement,
    ratio_at_least,
)
from ..processes import Pool, Publisher, Worker, probe
from ..publisher import Order
from ..records import Records
from .immediate import SLOWEST, Drained

BATCH = 500

#: Tasks due each second, and the limit for p99 in ms.
RATES = {100: 150, 500: 350}

#: Lowest rate at which Celery publishes one by one without confirms, in tasks a second; seconds
#: from the end of publishing to the first due task; extra seconds that a side may need.
PUBLISHED, MARGIN, PATIENCE = 400, 3.0, 120.0

POOLS = (Pool.SOLO, Pool.PREFORK)

PUBLISH = Row(
    "rabbitmq-publish-eta",
    "RabbitMQ: publish one by one with confirms, ETA",
    "tasks/s",
    Better.HIGHER,
    ratio_at_least(2),
)
PUBLISH_BATCH = Row(
    "rabbitmq-publish-batch-eta",
    f"RabbitMQ: publish in a batch of {BATCH} with confirms, ETA; Celery: one by one",
    "tasks/s",
    Better.HIGHER,
    ratio_at_least(8),
)
EARLY = Row(
    "rabbitmq-early", "RabbitMQ: started before their time", "tasks", Better.LOWER, at_most(0)
)

Outcome = TypeVar("Outcome")


@dataclass
class Place:
    """A virtual host for one side. Its publisher stays."""

    side: Side
    settings: Settings
    records: Records
    publisher: Publisher

    def worker(self, pool: Pool) -> Worker:
        """Return a worker of this side; it runs inside ``with``."""
        log = self.records.path.with_suffix(".worker.log")
        return Worker(self.settings, log, pool, ())


def _sides(bench: Bench) -> tuple[Side, Side]:
    stock, ours = bench.sides
    scheme = "delayq+amqp" if ours.delayq else "amqp"
    return replace(stock, scheme="amqp"), replace(ours, scheme=scheme)


@contextmanager
def _places(bench: Bench, **settings: Any) -> Iterator[list[Place]]:
    """Yield stock's and ours, on one broker."""
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(EmbeddedRabbitMQ())
        except ServerNotFound as error:
            raise BenchError(str(error)) from error
        places = []
        for side in _sides(bench):
            vhost = broker.new_vhost()
            records = Records(bench.folder / vhost)
            common = Settings(
                broker=broker.url(side.scheme, vhost=vhost),
                records=str(records.path),
                delayq=side.delayq,
                at_least_once=bench.at_least_once,
                **settings,
            )
            log = records.path.with_suffix(".publisher.log")
            publisher = stack.enter_context(Publisher(common, log))
            places.append(Place(side, common, records, publisher))
        yield places


def _in_turns(
    bench: Bench,
    title: str,
    rounds: int,
    places: list[Place],
    measure: Callable[[Place], Outcome],
    *,
    warm_up: bool = False,
) -> tuple[list[Outcome], list[Outcome]]:
    def measure_side(side: Side) -> Outcome:
        place = next(place for place in places if place.side is side)
        place.records.clear()
        return measure(place)

    stock, ours = (place.side for place in places)
    return bench.in_turns(
        f"RabbitMQ, {title}", rounds, (stock, ours), measure_side, warm_up=warm_up
    )


@measurement("rabbitmq-publish", order=200)
def publish(bench: Bench) -> Iterator[Figure]:
    """RabbitMQ: publishing delayed tasks with confirms, one by one and in batches."""
    size = bench.size
    with _places(bench, quorum=True, confirm=True) as places:
        for place in places:
            with place.worker(Pool.SOLO):
                pass  # Celery's worker declares the queues of its delays
        for row, count, batch in (
            (PUBLISH, size.publish_count, 0),
            (PUBLISH_BATCH, size.batch_count, BATCH),
        ):

            def rate(place: Place, count: int = count, batch: int = batch) -> float:
                ours = place.side.delayq
                order = Order(
                    count if ours else size.publish_count,
                    now_ms() + DAY_MS,
                    batch=batch if ours else 0,
                )
                return place.publisher.publish(order).rate

            rates = _in_turns(bench, row.title, size.rounds, places, rate, warm_up=True)
            yield row.figure(*rates)


@measurement("rabbitmq-lateness", order=210)
def lateness(bench: Bench) -> Iterator[Figure]:
    """RabbitMQ: start minus ETA while a fixed number of tasks falls due each second."""
    early: tuple[list[float], list[float]] = ([], [])
    with _places(bench, quorum=True) as places:
        for rate, most in RATES.items():
            count = rate * bench.size.lateness_seconds * 2

            def late(place: Place, rate: int = rate, count: int = count) -> list[float]:
                return _late(bench, place, rate, count)

            title = f"{rate} due per second"
            seen = _in_turns(bench, title, bench.size.load_rounds, places, late)
            yield from _figures(rate, most, seen)
            for all_early, lates in zip(early, seen, strict=True):
                all_early.extend(sum(ms < -0.001 for ms in one) for one in lates)
    yield EARLY.figure(*early)


def _late(bench: Bench, place: Place, rate: int, count: int) -> list[float]:
    """Return the lateness of each task in ms, in the order of due."""
    with place.worker(bench.pool) as worker:
        for _ in range(5):
            probe(worker, place.publisher, place.records, 10.0)
        probes = len(place.records)
        due = now_ms() + round((count / PUBLISHED + MARGIN) * 1000)
        order = Order(count, due, 1000 / rate, batch=BATCH, recorded=True)
        place.publisher.publish(order)
        if time.time() * 1000 > due:
            raise BenchError(f"{count} tasks were not published before their time")
        patience = due / 1000 - time.time() + count / rate + PATIENCE
        place.records.wait_for(probes + count, patience, worker.check)
        records = place.records.read(probes)
    return [record.lateness_ms for record in sorted(records)]


def _figures(
    rate: int, most: int, seen: tuple[list[list[float]], list[list[float]]]
) -> Iterator[Figure]:
    def row(name: str, title: str, target: Target | None = None) -> Row:
        name, title = (
            f"rabbitmq-lateness-{rate}-{name}",
            f"RabbitMQ: lateness at {rate} due/s: {title}",
        )
        return Row(name, title, "ms", Better.LOWER, target, digits=1)

    stock, ours = seen
    for percent, target in ((50, None), (99, at_most(most, "ms"))):
        yield row(f"p{percent}", f"p{percent}", target).figure(
            [percentile(late, percent) for late in stock],
            [percentile(late, percent) for late in ours],
        )
    steady = Target(
        "≤ 1.5 times that of the first third or + 50 ms",
        lambda f: f.ours <= max(first.ours * 1.5, first.ours + 50),
    )
    first, last = (
        row(f"p99-{name}", f"p99 of the {name} third", target).figure(
            [percentile(_third(late, place), 99) for late in stock],
            [percentile(_third(late, place), 99) for late in ours],
        )
        for name, place, target in (("first", 0, None), ("last", 2, steady))
    )
    yield first
    yield last


def _third(values: list[float], place: int) -> list[float]:
    size = len(values) // 3
    return values[place * size :][:size]


@measurement("rabbitmq-immediate", order=220)
def immediate(bench: Bench) -> Iterator[Figure]:
    """RabbitMQ: immediate tasks a second through one worker that finds a full queue."""
    count = bench.size.immediate
    with _places(bench) as places:
        for pool in POOLS:

            def drain(place: Place, pool: Pool = pool) -> float:
                place.publisher.publish(Order(count, batch=BATCH, recorded=True))
                with place.worker(pool) as worker:
                    place.records.wait_for(count, count / SLOWEST, worker.check)
                    return Drained.of(place.records.read()).per_second

            row = Row(
                f"rabbitmq-immediate-{pool.name.lower()}",
                f"RabbitMQ: immediate tasks through one {pool} worker",
                "tasks/s",
                Better.HIGHER,
                ratio_at_least(0.9),
            )
            rates = _in_turns(bench, row.title, bench.size.worker_rounds, places, drain)
            yield row.figure(*rates)
