"""An app that knows nothing of this package; broker and backend come from the environment."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

app = Celery("stock")
app.conf.broker_connection_retry_on_startup = True


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
