"""The app of the fault tests: its tasks write into the ledger when they start and end."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from celery_delayq import DelayQ
from tests.support.faults.ledger import Ledger

app = Celery("faults")
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    **json.loads(os.environ.get("FAULTS_SETTINGS", "{}")),
)
DelayQ(app, at_least_once=True)

ledger = Ledger(os.environ.get("FAULTS_LEDGER", "redis://127.0.0.1:1"))


def key_of(request: Any) -> str:
    """Return the key under which the ledger has this attempt."""
    return f"{request.id}~{request.retries}" if request.retries else str(request.id)


@app.task(bind=True, name="faults.work", shared=False)
def work(self: Any, seconds: float = 0.0) -> None:
    """Take some time, idle."""
    key = key_of(self.request)
    number = ledger.started(key)
    time.sleep(seconds)
    ledger.ended(key, number)


@app.task(bind=True, name="faults.burn", shared=False)
def burn(self: Any, seconds: float) -> None:
    """Take some time, computing: no greenlet runs meanwhile."""
    key = key_of(self.request)
    number = ledger.started(key)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    ledger.ended(key, number)


@app.task(bind=True, name="faults.hang", shared=False)
def hang(self: Any) -> None:
    """Take long in a worker that is told so by its environment, and no time elsewhere."""
    key = key_of(self.request)
    number = ledger.started(key)
    time.sleep(float(os.environ.get("FAULTS_HANG", "0")))
    ledger.ended(key, number)


@app.task(bind=True, name="faults.flaky", shared=False)
def flaky(self: Any, countdown: float) -> None:
    """Fail the first time, so that it is retried.

    The promise of the retry is written first: whatever happens then, the retry must come, or this
    attempt again.
    """
    request = self.request
    key = key_of(request)
    number = ledger.started(key)
    if not request.retries:
        ledger.promised(f"{request.id}~1", countdown)
    ledger.ended(key, number)
    if not request.retries:
        raise self.retry(countdown=countdown)


@app.task(bind=True, name="faults.relay", shared=False)
def relay(self: Any, countdown: float) -> None:
    """Send another task, each run one of its own.

    One without a countdown could be sent twice by a second attempt, so there is only one.
    """
    key = key_of(self.request)
    number = ledger.started(key)
    child = f"{key}-{number}"
    ledger.promised(child, countdown, certain=False)
    with suppress(OperationalError):
        work.apply_async(countdown=countdown or None, task_id=child, retry=countdown > 0)
        ledger.promised(child, countdown)
    ledger.ended(key, number)


@app.task(bind=True, name="faults.tell_clock", shared=False)
def tell_clock(self: Any, seconds: float) -> None:
    """Print this process' clock, and how long a sleep takes by its monotonic clock."""
    key = key_of(self.request)
    number = ledger.started(key)
    clock, begin = time.time(), time.monotonic()
    time.sleep(seconds)
    print(f"clock {clock:.3f} slept {time.monotonic() - begin:.3f}", flush=True)
    ledger.ended(key, number)
