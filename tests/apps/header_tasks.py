"""An app whose tasks write down that they ran, for messages that nobody should send."""

from __future__ import annotations

from typing import Any

from celery.exceptions import Reject
from celery.signals import task_revoked
from celery.worker.request import Request
from redis import Redis

from tests.apps.settings import new_app

app = new_app("headers", at_least_once=True, task_track_started=True, worker_send_task_events=True)


def note(request: Any) -> None:
    with Redis.from_url(app.conf.result_backend) as client:
        client.rpush("ran", str(request.id))
        client.rpush("marks", str(request.get("mark")))


@task_revoked.connect
def note_expired(request: Any, **_: Any) -> None:
    """Write down a task that expired: that is an outcome, too."""
    with Redis.from_url(app.conf.result_backend) as client:
        client.rpush("marks", str(request.get("mark")))


@app.task(bind=True, name="header.ok", shared=False)
def ok(self: Any, *_: Any, **__: Any) -> int:
    note(self.request)
    return 1


@app.task(bind=True, name="header.rated", rate_limit="10000/s", shared=False)
def rated(self: Any, *_: Any, **__: Any) -> int:
    """A timer of the worker starts this, not the one who hands it out."""
    note(self.request)
    return 1


@app.task(bind=True, name="header.fails", shared=False)
def fails(self: Any, *_: Any, **__: Any) -> None:
    note(self.request)
    raise ValueError("as it does each time")


@app.task(bind=True, name="header.rejects", shared=False)
def rejects(self: Any, *_: Any, **__: Any) -> None:
    note(self.request)
    raise Reject("not this one", requeue=False)


class Poison(Request):
    """A request that ends any worker that makes it, as a bug in Celery would."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise MemoryError("this worker cannot go on")


@app.task(name="header.poison", Request=Poison, shared=False)
def poison() -> None:
    """Never run."""
