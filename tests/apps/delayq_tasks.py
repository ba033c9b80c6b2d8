"""An app with the extension, whose tasks write down when they ran by Redis' clock."""

from __future__ import annotations

import json
from typing import Any

from redis import Redis

from celery_delayq import DelayQ
from tests.apps.settings import new_app
from tests.support.keyspace import now_of

app = new_app("delayed", task_acks_late=True, accept_content=["json", "yaml", "msgpack"])
delayq = DelayQ.of(app)


def note(request: Any, **more: Any) -> None:
    """Write down one run: task, attempt, ETA, and the moment by Redis' clock in seconds."""
    with Redis.from_url(app.conf.result_backend) as client:
        run = {
            "id": request.id,
            "task": request.task,
            "retries": request.retries,
            "eta": request.eta,
            "at": now_of(client),
            **more,
        }
        client.rpush("log", json.dumps(run))


@app.task(bind=True, name="add", shared=False)
def add(self: Any, x: Any, y: Any) -> Any:
    note(self.request, args=[x, y])
    return x + y


@app.task(bind=True, name="size", shared=False)
def size(self: Any, text: str) -> int:
    note(self.request)
    return len(text)


@app.task(bind=True, name="total", shared=False)
def total(self: Any, numbers: list[int]) -> int:
    note(self.request)
    return sum(numbers)


@app.task(bind=True, name="flaky", max_retries=2, shared=False)
def flaky(self: Any, countdown: float) -> str:
    note(self.request)
    if self.request.retries < 2:
        raise self.retry(countdown=countdown)
    return "at last"


@app.task(
    bind=True,
    name="backoff",
    autoretry_for=(ValueError,),
    retry_backoff=True,
    retry_jitter=False,
    max_retries=1,
    shared=False,
)
def backoff(self: Any) -> str:
    note(self.request)
    if not self.request.retries:
        raise ValueError("once")
    return "at last"


@app.task(bind=True, name="replacing", shared=False)
def replacing(self: Any, x: int) -> Any:
    note(self.request)
    return self.replace(add.s(x, 1).set(countdown=0.3))
