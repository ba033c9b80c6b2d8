"""80 messages of 6 MB block Redis no longer at a time than one of them does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.admin.stock_migration import to_stock
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.store.session import Session
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import start_worker
from tests.support.slow_log import longest_calls

#: The test measures the time of calls.
pytestmark = pytest.mark.nightly


#: Number of messages, and characters of each: in base64 they have 6 MB.
COUNT, SIZE = 80, 4_500_000

#: Most time of a call, relative to the longest call with one message. A call that takes all
#: messages takes 80 times as long. A call that takes one may wait for a busy processor.
FACTOR = 16

#: Number of repeats before a call counts as long.
TRIES = 3

#: Seconds.
LEASE = 2.0

#: A worker with waiting tasks asks for more when half of this is free.
PREFETCH = 8 * COUNT

StartWorker = Callable[..., WorkerProcess]


class Way:
    """All steps of some messages, with real workers.

    Parameters
    ----------
    start : Callable
        Starts a worker.
    """

    def __init__(self, app: Celery, client: Redis, start: StartWorker, count: int) -> None:
        self.app, self.client, self.count = app, client, count
        self.delayq = DelayQ.of(app)
        self._start = start

    def go(self) -> None:
        """Schedule, export, promote, acquire, reclaim, dead-letter, export, replay, requeue."""
        items = ({"args": ("x" * SIZE,), "countdown": 0.1} for _ in range(self.count))
        assert self.delayq.schedule_many(items, task="large.task").stored == self.count
        with Path(os.devnull).open("wb") as file:
            assert self.delayq.export_to(file).entries == self.count
        with self.holding() as killed:
            killed.kill()
        with self.worker():
            wait_until(
                lambda: self.dead_letters() == self.count, timeout=TIMEOUT, what="all have failed"
            )
        with Path(os.devnull).open("wb") as file:
            assert self.delayq.export_dead(file).dead_letters == self.count
        assert self.delayq.replay_all(DeadFilter("celery")).done == self.count
        with self.holding() as killed:
            killed.kill()
        # Messages of an ended process go back by leases/requeue.lua.
        assert [*to_stock(Session(self.app))][-1].ready == self.count
        assert self.ready() == self.count

    def dead_letters(self) -> int:
        return int(self.client.zcard("{celery}:dead_at"))

    def ready(self) -> int:
        return int(self.client.llen("celery"))

    def held(self) -> int:
        return sum(self.client.hlen(key) for key in self.client.scan_iter("{celery}:leased:*"))

    @contextmanager
    def holding(self) -> Iterator[WorkerProcess]:
        """Yield a worker that has leased all messages, and runs the first one."""
        with self.worker(HOLD="1") as worker:
            wait_until(lambda: self.held() == self.count, timeout=TIMEOUT, what="it holds all")
            yield worker

    @contextmanager
    def worker(self, **env: str) -> Iterator[WorkerProcess]:
        worker = start_worker(
            self._start,
            "large_tasks",
            "threads",
            concurrency=1,
            conf={"worker_prefetch_multiplier": PREFETCH},
            delayq={"lease": LEASE},
            env=env,
        )
        yield worker
        if worker.running:
            worker.term()
            worker.wait(timeout=TIMEOUT)


def test_no_call_takes_much_longer_than_with_one_message(
    make_app: MakeApp, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    client = delayq_redis.client
    client.config_set("slowlog-max-len", 1_000_000)
    client.config_set("slowlog-log-slower-than", 500)  # µs
    app = make_app()

    def longest(count: int) -> Counter[str]:
        client.flushall()
        longest_calls(client)  # drops the calls so far
        Way(app, client, delayq_worker, count).go()
        return longest_calls(client)

    one, many = longest(1), longest(COUNT)
    assert {
        "dispatch/promote",
        "leases/acquire",
        "leases/reclaim_expired",
        "leases/requeue",
        "leases/dead_letter",
        "deadletters/page",
        "scan/range",
    } <= many.keys()
    for _ in range(TRIES - 1):
        if max(many.values()) > FACTOR * max(one.values()):
            # A long call waited for a processor, or takes too many messages, which would happen
            # again.
            many &= longest(COUNT)
    assert max(many.values()) <= FACTOR * max(one.values()), (one, many)
