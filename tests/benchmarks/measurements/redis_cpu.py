"""Cost of a delayed task for Redis, from its publish to its ack: CPU and commands.

Commands are those of ``INFO commandstats``, including commands in scripts. One more round reads the
time of each command and script from the slow log. Its CPU does not count.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from celery_delayq.store.scripting import scripts

from ..bench import Bench, Side, Station, now_ms
from ..model import BenchError, Better, Figure, Row, measurement, ratio_at_most
from ..processes import Publisher
from ..publisher import Order
from .due import MARGIN, MIN_RATE, PATIENCE, Load

#: Tasks due at one instant, and seconds of the streams.
INSTANT, SECONDS = 6_000, 8

#: Loads by the name of their rows, with the highest cost of ours relative to stock.
LOADS = {
    "instant": (Load(INSTANT, 0.0), f"{INSTANT:,} due at one instant", 1.0),
    "500": (Load(500 * SECONDS, 1000 / 500), "500 due/s", 1.2),
    "50": (Load(50 * SECONDS, 1000 / 50), "50 due/s", 2.0),
}


class Cost(NamedTuple):
    """CPU of Redis in µs, and its commands, for each task."""

    cpu: float
    commands: float


def used(client: Any) -> tuple[float, int]:
    """Return seconds of CPU and number of commands of a Redis so far."""
    cpu, commands = client.info("cpu"), client.info("commandstats")
    calls = sum(each["calls"] for each in commands.values())
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"]), calls


def _run(bench: Bench, station: Station, publisher: Publisher, load: Load) -> Cost:
    """Publish tasks one by one, and let a worker run them when they are due."""
    with station.worker(bench.pool) as worker:
        publisher.publish(Order(5, recorded=True))
        station.records.wait_for(5, PATIENCE, worker.check)
        time.sleep(0.5)
        cpu, commands = used(bench.server.client())
        due = now_ms() + round(1000 * (8 * load.count / MIN_RATE + MARGIN))
        publisher.publish(Order(load.count, due, load.step_ms, recorded=True))
        if time.time() * 1000 > due:
            raise BenchError(f"{load.count} tasks were not published before their time")
        last = due / 1000 + load.count * load.step_ms / 1000 - time.time()
        station.records.wait_for(5 + load.count, last + PATIENCE, worker.check)
        time.sleep(0.1)  # the last acknowledgements
        cpu_then, commands_then = used(bench.server.client())
    return Cost((cpu_then - cpu) / load.count * 1e6, (commands_then - commands) / load.count)


def _traced(bench: Bench, side: Side, load: Load) -> dict[str, tuple[float, float]]:
    """Return calls of each command and script for each task, and their time in µs."""
    client = bench.server.client()
    calls: Counter[str] = Counter()
    micros: defaultdict[str, int] = defaultdict(int)
    names = {scripts.load(name).sha: name for name in scripts.names_with_variants()}
    with bench.station(side) as station, station.publisher() as publisher:
        options = {"slowlog-log-slower-than": "0", "slowlog-max-len": "2000000"}
        before = {name: client.config_get(name)[name] for name in options}
        client.slowlog_reset()
        for name, value in options.items():
            client.config_set(name, value)
        try:
            _run(bench, station, publisher, load)
            for each in client.slowlog_get(2_000_000):
                command, *args = each["command"].decode("utf-8", "replace").split(" ", 2)
                name = names.get(args[0] if args else "", command.upper())
                calls[name] += 1
                micros[name] += each["duration"]
        finally:
            for name, value in before.items():
                client.config_set(name, value)
            client.slowlog_reset()
    return {
        name: (round(number / load.count, 3), round(micros[name] / load.count, 1))
        for name, number in calls.most_common()
    }


@measurement("redis-cpu", order=42)
def redis_cpu(bench: Bench) -> Iterator[Figure]:
    """CPU and commands of Redis for a delayed task, from its publish to its ack."""
    for name, (load, title, most) in LOADS.items():

        def measure(station: Station, publisher: Publisher, load: Load = load) -> Cost:
            return _run(bench, station, publisher, load)

        stock, ours = bench.in_rounds(title, bench.size.load_rounds, measure)
        raw = {"calls and µs": {side.name: _traced(bench, side, load) for side in bench.sides}}
        yield Row(
            f"redis-cpu-{name}", f"{title}: CPU of Redis from publish to ack", "µs/task",
            Better.LOWER, ratio_at_most(most),
        ).figure([each.cpu for each in stock], [each.cpu for each in ours], raw)  # fmt: skip
        yield Row(
            f"redis-commands-{name}", f"{title}: commands of Redis, with those inside scripts",
            "a task", Better.LOWER, digits=1,
        ).figure([each.commands for each in stock], [each.commands for each in ours])  # fmt: skip
