"""Publish tasks, and record the promise of each call."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from amqp.exceptions import AMQPError
from celery import Celery
from kombu import pools
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from celery_delayq import DelayQ, Limit
from tests.support.faults.checker import Promise
from tests.support.faults.ledger import Ledger

_UTC = dt.timezone.utc
#: Errors of a call that loses its broker.
BROKEN = (OperationalError, KombuError, RedisError, AMQPError, OSError)


class Producer:
    """An app that sends the tasks of ``tests.apps.fault_tasks``.

    Parameters
    ----------
    url
        Broker URL.
    ledger
        Gives Redis' clock.
    stock
        Whether the app does not use this package; the URL is then a stock one.
    limits
        The limits that the app knows, by pattern.
    """

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        *,
        stock: bool = False,
        limits: Mapping[str, Limit] | None = None,
    ) -> None:
        self.app = Celery("faults-producer", broker=url, set_as_current=False)
        self.promises: list[Promise] = []
        #: Whether the broker recognizes a delayed task that it already has.
        self.recognizes = True
        self._delayq = None if stock else DelayQ(self.app, limits=limits)
        self._ledger = ledger

    def close(self) -> None:
        """Close all connections."""
        if self._delayq is not None:
            self._delayq.close()
        self.app.close()
        pools.reset()

    def send(
        self,
        task: str,
        *args: Any,
        after: float | None = None,
        countdown: float | None = None,
        **options: Any,
    ) -> str:
        """Send a task, with an absolute ETA or a countdown if one is given; return its key.

        kombu repeats a failed call only if it has an ETA: without one the task could be sent twice.
        A call that was repeated after its ETA is recorded as repeated. A call that fails finally is
        recorded as uncertain, and raises nothing.

        Parameters
        ----------
        after, countdown
            Seconds.
        """
        key: str = options.setdefault("task_id", str(uuid.uuid4()))
        due_us = 0
        if after is not None:
            eta = dt.datetime.now(_UTC) + dt.timedelta(seconds=after)
            due_us = round(eta.timestamp() * 1_000_000)
            options["eta"] = eta
        elif countdown is not None:
            due_us = self._ledger.now_us() + round(countdown * 1_000_000)
            options["countdown"] = countdown
        certain, failures = False, []
        policy = {
            **self.app.conf.task_publish_retry_policy,
            "errback": lambda *e: failures.append(e),
        }
        with suppress(*BROKEN):
            self.app.send_task(task, args, retry=due_us > 0, retry_policy=policy, **options)
            certain = True
        passed = time.time() * 1_000_000 >= due_us
        repeated = bool(failures) and (passed or not self.recognizes)
        self.promises.append(Promise(key, due_us, certain, repeated))
        return key

    def send_many(self, count: int, task: str, *args: Any, **options: Any) -> list[str]:
        """Send a task *count* times; return the keys."""
        return [self.send(task, *args, **options) for _ in range(count)]

    def send_spread(self, count: int, task: str, first: float, last: float) -> list[str]:
        """Send a task *count* times in batches, due from *first* to *last* seconds from now."""
        keys = []
        start = time.time()
        with self.app.producer_pool.acquire(block=True) as producer:
            batches = getattr(producer, "supports_batch_publish", False)
            with producer.batch(max_size=500) if batches else nullcontext():
                for n in range(count):
                    due = start + first + (last - first) * n / count
                    eta = dt.datetime.fromtimestamp(due, _UTC)
                    key = str(uuid.uuid4())
                    self.app.send_task(task, task_id=key, eta=eta, producer=producer)
                    self.promises.append(Promise(key, round(eta.timestamp() * 1_000_000)))
                    keys.append(key)
        return keys

    @contextmanager
    def sending(self, rate: float, send: Callable[[int], object]) -> Iterator[None]:
        """Call *send* with 0, 1, 2, … *rate* times a second during the ``with`` block."""
        stop = threading.Event()
        errors: list[BaseException] = []

        def loop() -> None:
            number = 0
            try:
                while not stop.wait(1 / rate):
                    send(number)
                    number += 1
            except BaseException as exc:
                errors.append(exc)

        thread = threading.Thread(target=loop, name="producer")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            # Also if the test has failed: it may have waited for tasks that were not sent.
            if errors:
                raise errors[0]
