"""Publish in one event loop and, beside it, with threads; measure how long callbacks block."""

from __future__ import annotations

from collections.abc import Iterator

from ..bench import DAY_MS, OURS, Bench, now_ms
from ..model import BenchError, Better, Figure, Published, Row, at_most, measurement, ratio_at_least
from ..publisher import Order

COUNT = 1_000
THREADS = 16

RATE = Row(
    "aio-publish",
    f"{COUNT:,} publishes at once with an ETA: sync client in {THREADS} threads, asyncio",
    "tasks/s",
    Better.HIGHER,
    ratio_at_least(1.3),
)
LONGEST = Row(
    "aio-callback",
    "longest callback meanwhile: as it is, after `gc.freeze()`",
    "ms",
    Better.LOWER,
    at_most(10, "ms"),
    digits=1,
)


@measurement("asyncio", order=25)
def aio(bench: Bench) -> Iterator[Figure]:
    """Many publishes at once: in threads, and in an event loop, which must not be held."""
    with bench.station(OURS) as station, station.publisher() as publisher:

        def publish(how: dict[str, int | bool]) -> Published:
            station.clear()
            published = publisher.publish(Order(COUNT, now_ms() + DAY_MS, **how))  # type: ignore[arg-type]
            there = station.client.zcard("{celery}:due")
            if there != COUNT:
                raise BenchError(f"{there} of {COUNT} tasks are in Redis")
            return published

        rounds, title = bench.size.rounds, "asyncio"
        kinds: tuple[dict[str, int | bool], ...] = ({"threads": THREADS}, {"loop": True})
        threads, loop = bench.in_turns(title, rounds, (kinds[0], kinds[1]), publish, warm_up=True)
        cpu = {
            "threads": [each.cpu_microseconds for each in threads],
            "asyncio": [each.cpu_microseconds for each in loop],
        }
        yield RATE.figure([p.rate for p in threads], [p.rate for p in loop], {"cpu": cpu})
        kinds = {"loop": True}, {"loop": True, "frozen": True}
        plain, frozen = bench.in_turns(title, rounds, (kinds[0], kinds[1]), publish, warm_up=True)
        yield LONGEST.figure(
            [each.longest * 1000 for each in plain], [each.longest * 1000 for each in frozen]
        )
