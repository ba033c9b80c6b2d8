"""The Celery app, for the service and for workers: ``celery -A tasks worker``."""

from __future__ import annotations

import os

from celery import Celery

from celery_delayq import DelayQ

REDIS = os.environ.get("REDIS", "redis://localhost:6379/0")

app = Celery("reminders", broker=f"delayq+{REDIS}", backend=REDIS)
delayq = DelayQ(app, at_least_once=True)


@app.task
def remind(to: str, text: str) -> str:
    """Send a reminder; here it only says what it would send."""
    return f"Dear {to}: {text}"
