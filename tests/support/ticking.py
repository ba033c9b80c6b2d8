"""Periodic runners inside the test process, and their ticks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.runner import PeriodicRunner
from celery_delayq.store.periodic import EntryWrite
from tests.support import TIMEOUT


def write_entries(delayq: DelayQ, *entries: Periodic, before: str = "") -> None:
    """Store entries unchanged; *before* is the first line of the stored ones."""
    writings = [EntryWrite(each.name, before, each.pack(), each.next_look_ms) for each in entries]
    assert {*delayq.store.periodic.write(writings)} == {"done"}


@contextmanager
def ticking(app: Celery, count: int = 1) -> Iterator[list[PeriodicRunner]]:
    """Run *count* runners during the ``with`` block."""
    runners = [PeriodicRunner(app, deploy=False) for _ in range(count)]
    for runner in runners:
        runner.start()
    try:
        yield runners
    finally:
        for runner in runners:
            runner.stop()
        for runner in runners:  # on a busy machine the last call takes longer than `stop` waits
            runner._thread.join(TIMEOUT)


def stored_ticks(client: Redis, queue: str = "celery") -> dict[str, list[int]]:
    """Return the ticks of each entry in a queue's schedule and ready list, sorted.

    The result keeps duplicates.
    """
    records = client.hvals(f"{{{queue}}}:entries")
    messages = [record.partition(b"\n")[2] for record in records] + client.lrange(queue, 0, -1)
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        name, _, tick = json.loads(message)["headers"]["id"].rpartition(":")
        found[name].append(int(tick))
    return {name: sorted(ticks) for name, ticks in found.items()}
