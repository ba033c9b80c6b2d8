"""The app of the fault tests: its tasks write into the ledger when they start and end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu.exceptions import OperationalError

from tests.apps.ledgers import ledger
from tests.apps.settings import new_app

app = new_app("faults", at_least_once=True, task_ignore_result=True)


@contextmanager
def running(request: Any) -> Iterator[tuple[str, int]]:
    """Write into the ledger when a run starts and ends; yield the key of the attempt, and which."""
    key = f"{request.id}~{request.retries}" if request.retries else str(request.id)
    number = ledger.started(key)
    yield key, number
    ledger.ended(key, number)


@app.task(bind=True, name="faults.work", shared=False)
def work(self: Any, seconds: float = 0.0) -> None:
    """Take some time, idle."""
    with running(self.request):
        time.sleep(seconds)


@app.task(bind=True, name="faults.burn", shared=False)
def burn(self: Any, seconds: float) -> None:
    """Take some time, computing: no greenlet runs meanwhile."""
    with running(self.request):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass


@app.task(bind=True, name="faults.hang", shared=False)
def hang(self: Any) -> None:
    """Take long in a worker whose environment says so, and no time elsewhere."""
    with running(self.request):
        time.sleep(float(os.environ.get("FAULTS_HANG", "0")))


@app.task(bind=True, name="faults.flaky", shared=False)
def flaky(self: Any, countdown: float, times: int = 1) -> None:
    """Fail so many times, so that it is retried.

    The promise of the retry is written first: whatever happens then, the retry must come, or this
    attempt again.
    """
    request = self.request
    fails = request.retries < times
    with running(request):
        if fails:
            ledger.promised(f"{request.id}~{request.retries + 1}", countdown)
    if fails:
        raise self.retry(countdown=countdown, max_retries=times)


@app.task(bind=True, name="faults.relay", shared=False)
def relay(self: Any, countdown: float) -> None:
    """Send another task, each run one of its own.

    One without a countdown could be sent twice by a second attempt, so there is only one.
    """
    with running(self.request) as (key, number):
        child = f"{key}-{number}"
        ledger.promised(child, countdown, certain=False)
        with suppress(OperationalError):
            work.apply_async(countdown=countdown or None, task_id=child, retry=countdown > 0)
            ledger.promised(child, countdown)


@app.task(bind=True, name="faults.tell_clock", shared=False)
def tell_clock(self: Any, seconds: float) -> None:
    """Print this process' clock, and how long a sleep takes by its monotonic clock."""
    with running(self.request):
        clock, begin = time.time(), time.monotonic()
        time.sleep(seconds)
        print(f"clock {clock:.3f} slept {time.monotonic() - begin:.3f}", flush=True)
