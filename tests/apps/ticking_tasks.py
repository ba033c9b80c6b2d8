"""More tasks for workers of ``tests.apps.periodic_tasks``, which have to import this."""

from __future__ import annotations

import json
from typing import Any

from celery import shared_task
from redis import Redis

IMPORTED = {"imports": ["tests.apps.ticking_tasks"]}

#: Seconds until a retry.
RETRY = 1.0


def _write(task: Any, **said: Any) -> None:
    with Redis.from_url(task.app.conf.result_backend) as client:
        client.rpush("log", json.dumps({"id": task.request.id, **said}))


@shared_task(name="tell", bind=True, ignore_result=True)
def tell(self: Any) -> None:
    """Write down what the message says that it runs for."""
    request = self.request
    _write(
        self,
        headers={
            name: value for name, value in (request.headers or {}).items() if name[:2] == "x-"
        },
        expires=request.expires,
        eta=request.eta,
        queue=request.delivery_info["routing_key"],
        priority=request.delivery_info["priority"],
    )


@shared_task(name="again", bind=True, ignore_result=True)
def again(self: Any) -> None:
    """Write down which attempt runs, and try again once."""
    _write(self, retries=self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=RETRY)
