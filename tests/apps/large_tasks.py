"""An app whose workers hold large messages until they are killed, or fail at once."""

from __future__ import annotations

import json
import os
from threading import Event

from celery import Celery

from celery_delayq import DelayQ

app = Celery("large")
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    broker_transport_options=json.loads(os.environ.get("TRANSPORT_OPTIONS", "{}")),
)
delayq = DelayQ(app, at_least_once=True)


@app.task(name="large.task", shared=False)
def task(text: str) -> None:
    if os.environ.get("HOLD"):
        Event().wait()  # until the worker is killed
    raise ValueError(f"{len(text)} characters are too many")
