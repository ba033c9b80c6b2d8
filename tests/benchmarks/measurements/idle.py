"""Cost of an idle worker for Redis: the commands that it sends."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from ..bench import DAY_MS, Bench, Station, now_ms
from ..model import Better, Figure, Row, at_most, measurement
from ..processes import probe
from ..publisher import Order

QUEUES = 50
WORKED = "queue-0"

ONE, MANY = (
    Row(
        f"idle-{queues}",
        f"idle worker, far ETAs on {queues} queue{'s' * (queues > 1)}",
        "commands/s",
        Better.LOWER,
        at_most(3, "/s"),
        digits=2,
    )
    for queues in (1, QUEUES)
)
#: A window cuts at most two commands at its edges, which is 0.1/s in twenty seconds.
MORE = Row(
    "idle-more",
    f"idle worker, difference of {QUEUES} queues and 1",
    "commands/s",
    Better.LOWER,
    at_most(0.1, "/s"),
    digits=2,
)


def _commands(client: Any, seconds: float) -> dict[int, Counter[str]]:
    """Return the commands that clients send in ``seconds``, by database.

    MONITOR separates commands of clients from commands of scripts; INFO's counters do not. This
    function itself sends its commands to database 0, which is left out.
    """
    seen: dict[int, Counter[str]] = {}
    last = uuid.uuid4().hex
    with client.monitor() as watcher:
        time.sleep(seconds)
        client.echo(last)
        while True:
            entry = watcher.next_command()
            if last in entry["command"]:
                return seen
            if entry["client_type"] != "lua" and entry["db"] != 0:
                name = entry["command"].split(" ", 1)[0].upper()
                seen.setdefault(entry["db"], Counter())[name] += 1


def _prepare(station: Station, stack: ExitStack, queues: int) -> None:
    """Schedule one far task on each queue, and start a worker that consumes the first queue."""
    publisher = stack.enter_context(station.publisher())
    names = tuple(f"queue-{number}" for number in range(queues))
    publisher.publish(Order(count=queues, due_ms=now_ms() + DAY_MS, queues=names))
    worker = stack.enter_context(station.worker(queues=(WORKED,)))
    probe(worker, publisher, station.records, 10.0, queue=WORKED)


@measurement("idle", order=60)
def idle(bench: Bench) -> Iterator[Figure]:
    """Commands that one idle worker sends each second, with 1 and with many queues."""
    stations: dict[tuple[str, int], Station] = {}
    seconds = float(bench.size.idle_seconds)
    with ExitStack() as stack:
        for queues in (1, QUEUES):
            for side in bench.sides:
                bench.note(f"idle: starting {side.name} with {queues} queues")
                station = stack.enter_context(bench.station(side))
                _prepare(station, stack, queues)
                stations[side.name, queues] = station
        bench.note("idle: letting the workers come to rest")
        client = stack.enter_context(bench.server.client(decode_responses=True))
        _commands(client, 3.0)
        bench.note(f"idle: counting for {seconds:g} s")
        counted = _commands(client, seconds)
    seen = {key: counted.get(s.database, Counter()) for key, s in stations.items()}
    stock, ours = bench.sides

    def rate(side: str, queues: int) -> float:
        return seen[side, queues].total() / seconds

    for row, queues in ((ONE, 1), (MANY, QUEUES)):
        yield row.figure(
            [rate(stock.name, queues)],
            [rate(ours.name, queues)],
            {
                "commands": {"stock": seen[stock.name, queues], "ours": seen[ours.name, queues]},
                "seconds": seconds,
            },
        )
    yield MORE.figure(
        [rate(stock.name, QUEUES) - rate(stock.name, 1)],
        [rate(ours.name, QUEUES) - rate(ours.name, 1)],
    )
