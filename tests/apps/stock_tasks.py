"""An app that knows nothing of this package; broker and backend come from the environment."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from tests.support import TIMEOUT

app = Celery("stock")
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_proc_alive_timeout = TIMEOUT  # Celery kills a child that is slower to report


@app.task(name="stock.add", shared=False)
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="stock.pid", shared=False)
def pid() -> int:
    return os.getpid()


@app.task(name="stock.nap", acks_late=True, shared=False)
def nap(seconds: float) -> str:
    print("napping", flush=True)
    time.sleep(seconds)
    return "rested"


@app.task(name="stock.eta", bind=True, shared=False)
def eta(self: Any) -> str | None:
    told: str | None = self.request.eta
    return told
