"""An app with the URL alone, with ``DelayQ(app)``, or with ``at_least_once=True``."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery

from celery_delayq import DelayQ

#: Which of them: ``url``, ``extension`` or ``at_least_once``.
PARTS = os.environ.get("APP_PARTS", "url")

app = Celery("parts", set_as_current=False)
app.conf.update(json.loads(os.environ.get("APP_SETTINGS", "{}")))
if PARTS != "url":
    DelayQ(app, at_least_once=PARTS == "at_least_once")


@app.task(name="parts.look", bind=True, shared=False)
def look(self: Any) -> list[Any]:
    """Return what the request says of a delayed task."""
    return [self.request.eta, self.request.deliveries]


@app.task(name="parts.fail", shared=False, retry_intervals=(0.1,))
def fail() -> None:
    """Fail always."""
    raise ValueError("no")


@app.task(name="parts.run_long", bind=True, shared=False)
def run_long(self: Any) -> None:
    """Say so, and run for longer than the test looks at it."""
    self.update_state(state="RUNNING")
    time.sleep(30)


@app.task(name="parts.tick", shared=False)
def tick() -> None:
    """Stand for the task of a periodic entry, and for one that is paused."""
