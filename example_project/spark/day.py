"""One day of the year, run by ordinary workers."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console

from example_project import show
from example_project.plan import CompressedClock
from example_project.records import Waiting
from example_project.services import ServiceError, Services
from example_project.spark.app import app, delayq

_START_TIMEOUT_S = 60.0
_TIMEOUT_AFTER_LAST_DUE_S = 60.0
_POLL_INTERVAL_S = 0.2


def start_workers(console: Console, services: Services, number: int) -> None:
    """Start workers with two threads each, and wait until they answer.

    Raises
    ------
    ServiceError
        A worker has ended, or does not answer in time.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    with console.status("Starting workers"):
        for each in range(1, number + 1):
            services.start_worker(f"worker{each}", concurrency=2)
        while len(app.control.ping(timeout=1.0, limit=number)) < number:
            services.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"not all workers were ready after {_START_TIMEOUT_S:g} s")
    console.print(f"  {number} workers with 2 threads each are ready")


def run_day(
    console: Console, services: Services, clock: CompressedClock, flights: int, rest: int
) -> None:
    """Show the day as it runs, until only the `rest` of the year waits.

    A day that does not end is given up some time after its end. The sums then report it.
    """
    # The longest delay is 22 hours.
    give_up_ms = clock.real_ms(clock.begins + timedelta(days=2)) + _TIMEOUT_AFTER_LAST_DUE_S * 1000
    with show.running(console, clock) as update:
        while True:
            services.check()
            now, now_ms = waiting(), time.time() * 1000
            update(now_ms, flights + rest - now.total, flights, now)
            if now.total <= rest or now_ms > give_up_ms:
                return
            time.sleep(_POLL_INTERVAL_S)


def waiting() -> Waiting:
    """Count the tasks in the queue."""
    stats = delayq.stats()
    return Waiting(stats.scheduled, stats.ready, stats.leased, stats.dead)
