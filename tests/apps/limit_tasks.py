"""Tasks with a limit, which return the mark of their own message."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_delayq import DelayQ, Limit

app = Celery("limits")
app.conf.task_acks_late = True
DelayQ(app, limits={"limits.by_pattern": Limit("pattern", rate=1000)})


def mark_of(request: Any) -> Any:
    """Return the mark of a limit in a message."""
    return request.properties["delayq"].get("limit")


@app.task(bind=True, name="limits.own", limit=Limit("own", rate=1000, burst=9, key="{customer}"))
def own(self: Any, customer: str, retry: bool = False) -> Any:
    """Return the mark, or retry later with another customer."""
    if retry:
        raise self.retry(args=["other"], kwargs={}, countdown=60, expires=600)
    return mark_of(self.request)


@app.task(bind=True, name="limits.by_pattern")
def by_pattern(self: Any) -> Any:
    """Return the mark."""
    return mark_of(self.request)


@app.task(bind=True, name="limits.early", limit=Limit("early", concurrency=1), acks_late=False)
def early(self: Any) -> Any:
    """Return the mark."""
    return mark_of(self.request)


@app.task(bind=True, name="limits.none")
def none(self: Any) -> Any:
    """Return the mark."""
    return mark_of(self.request)
