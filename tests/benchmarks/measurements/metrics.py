"""Time of a scrape of the exporter, with few and with very many entries.

Stock has no exporter, so the two columns are the two sizes.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection

from celery_delayq.schedule.items import Item
from celery_delayq.testing import ManagedProcess, wait_until

from ..bench import OURS, Bench, Station, percentile
from ..model import Better, Figure, Row, at_most, measurement
from ..processes import APP, ROOT

QUEUES, TASKS = 50, 200

#: Scrapes of a round, and seconds between two of them. Each round also reads the slower metrics.
SCRAPES, PAUSE, ROUNDS = 250, 0.05, 3

SCRAPE = Row(
    "metrics-scrape",
    "a scrape, p99, 50 queues, 200 tasks ({:,} and {:,} entries)",
    "ms",
    Better.LOWER,
    at_most(20, "ms"),
    1,
)


def _fill(station: Station, number: int) -> None:
    each = number // QUEUES
    with station.delayq() as delayq:
        for queue in range(QUEUES):
            delayq.schedule_many(
                Item(
                    args=(place,),
                    task=f"shop.task{queue + QUEUES * (place % (TASKS // QUEUES))}",
                    queue=f"queue{queue}",
                    countdown=50_000 + random.random() * 86_400,
                )
                for place in range(each)
            )


def _scrapes(port: int) -> Iterator[float]:
    """Yield the time of each scrape in ms, after a first one with all metrics."""
    connection = HTTPConnection("127.0.0.1", port)

    def scrape() -> bytes:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()

    wait_until(
        lambda: scrape().count(b"\ndelayq_scheduled_entries{") == TASKS, 60, "numbers by task"
    )
    for _ in range(SCRAPES):
        time.sleep(PAUSE)
        began = time.perf_counter()
        scrape()
        yield (time.perf_counter() - began) * 1000


@measurement("metrics", order=99)
def metrics(bench: Bench) -> Iterator[Figure]:
    """A scrape of the exporter, beside few entries and very many."""
    seen: list[list[float]] = [[], []]
    for place, number in enumerate(bench.size.entries):
        with bench.station(OURS) as station:
            bench.note(f"{number:,} entries")
            _fill(station, number)
            command = [sys.executable, "-m", *APP, "delayq", "metrics", "--port", "0"]
            env = station.settings.to_environment()
            with ManagedProcess(command, env=env, cwd=ROOT) as process:
                port = int(process.wait_log(r":(\d+)/metrics")[1])
                for turn in range(ROUNDS):
                    bench.note(f"{number:,} entries: round {turn + 1} of {ROUNDS}")
                    seen[place].append(percentile([*_scrapes(port)], 99))
    yield SCRAPE.titled(*bench.size.entries).figure(seen[0], seen[1])
