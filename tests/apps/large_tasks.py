"""An app whose workers hold large messages until they are killed, or fail at once."""

from __future__ import annotations

import os
from threading import Event

from celery_delayq import DelayQ
from tests.apps.settings import new_app

app = new_app("large", at_least_once=True, task_ignore_result=True)
delayq = DelayQ.of(app)


@app.task(name="large.task", shared=False)
def task(text: str) -> None:
    if os.environ.get("HOLD"):
        Event().wait()  # until the worker is killed
    raise ValueError(f"{len(text)} characters are too many")
