"""An app with the transport alone, and tasks with options that need the extension."""

from __future__ import annotations

from celery import Celery

app = Celery("typos")


@app.task(unique_key="{0}", dead_letter=False, max_retries=3, retry_jitter=True)
def first(number: int) -> int:
    """Stand for any task."""
    return number


@app.task(unique_key="{0}")
def second(number: int) -> int:
    """Stand for another one."""
    return number
