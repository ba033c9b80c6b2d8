"""The publishing process of one side, controlled by JSON lines on its standard input.

Each side has its own process. So changes of this package cannot affect the stock side, and both
interpreters are equally warm.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from . import concurrent
from .app import app, fail, noop, record, work
from .model import Published


@dataclass(frozen=True)
class Order:
    """The messages to publish.

    :param count: number of messages.
    :param due_ms: ETA of the first in whole milliseconds since the epoch; None for no ETA.
    :param step_ms: milliseconds from one ETA to the next.
    :param batch: messages in a flush of ``Producer.batch``; 0 publishes one by one.
    :param queues: queues to use in turn; empty for the default queue.
    :param recorded: send the task that records its start instead of the one that does nothing.
    :param working: send the task that works for some milliseconds.
    :param failing: send the task that fails until it has no retry left.
    :param many: schedule all in one call of ``schedule_many``; for our side, with ETAs.
    :param threads: number of threads that publish.
    :param loop: publish all at once in an event loop; for our side.
    :param frozen: exclude existing objects from garbage collection (``gc.freeze``).
    """

    count: int
    due_ms: int | None = None
    step_ms: float = 1.0
    batch: int = 0
    queues: tuple[str, ...] = ()
    recorded: bool = False
    working: bool = False
    failing: bool = False
    many: bool = False
    threads: int = 0
    loop: bool = False
    frozen: bool = False


@contextmanager
def _batch(size: int) -> Iterator[Any]:
    with app.producer_pool.acquire(block=True) as producer, producer.batch(max_size=size):
        yield producer


def _calls(order: Order) -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments of each ``apply_async``."""
    for number in range(order.count):
        call: dict[str, Any] = {}
        due = None
        if order.due_ms is not None:
            due = order.due_ms + round(number * order.step_ms)
            epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
            call["eta"] = epoch + timedelta(milliseconds=due)
        if order.queues:
            call["queue"] = order.queues[number % len(order.queues)]
        if order.recorded and due is not None:
            call["args"] = (due / 1000,)
        yield call


def publish(order: Order) -> Published:
    """Publish as an application does. All arguments are made before the clock starts.

    The items of ``schedule_many`` are made while it runs: it takes a generator.
    """
    task = fail if order.failing else work if order.working else record if order.recorded else noop
    calls = [] if order.many else [*_calls(order)]
    gc.collect()
    if order.loop or order.threads:
        return concurrent.publish(task, calls, order.threads, frozen=order.frozen)
    wall, cpu, user = time.perf_counter(), time.process_time(), _user_seconds()
    if order.many:
        _schedule_many(order)
    with _batch(order.batch) if order.batch else nullcontext() as producer:
        for call in calls:
            if order.recorded and order.due_ms is None:
                call["args"] = (time.time(),)
            task.apply_async(producer=producer, **call)
    return Published(
        order.count,
        time.perf_counter() - wall,
        time.process_time() - cpu,
        user_seconds=_user_seconds() - user,
    )


def _user_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def _schedule_many(order: Order) -> None:
    from celery_delayq import DelayQ, Item

    DelayQ.of(app).schedule_many((Item(**call) for call in _calls(order)), task=noop)


def main() -> None:
    """Answer each order with one line until standard input ends."""
    for line in sys.stdin:
        fields = json.loads(line)
        fields["queues"] = tuple(fields["queues"])
        print(json.dumps(asdict(publish(Order(**fields)))), flush=True)


if __name__ == "__main__":
    main()
