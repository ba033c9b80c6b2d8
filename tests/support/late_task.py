"""Send a delayed task through any broker; a real worker must run it."""

from __future__ import annotations

from typing import Any

from celery import Celery
from redis import Redis

from celery_delayq.testing import WorkerProcess
from tests.support import TIMEOUT, scene
from tests.support.scene import StartWorker

#: Settings with which plain URLs select our transport.
OUR_TRANSPORT = {"broker_transport": "celery_delayq.transport:Transport"}


def start_worker(
    workers: StartWorker, broker: str, settings: dict[str, Any], **options: Any
) -> WorkerProcess:
    """Start a worker of ``url_tasks`` with the given settings."""
    options = {"broker_url": broker, "pool": "solo", **options}
    return scene.start_worker(workers, "url_tasks", conf=settings, **options)


def send_late(app: Celery, seen_by: Redis) -> Any:
    """Send a task with a countdown, look for it in the schedule, and return its result."""
    result = app.send_task("url.add", (2, 3), countdown=0.5)
    assert seen_by.zcard("{celery}:due") == 1
    assert seen_by.llen("celery") == 0
    return result


def check_it_runs(result: Any, seen_by: Redis) -> None:
    """Wait until a worker has run the task; check that nothing of it is left."""
    assert result.get(timeout=TIMEOUT) == 5
    assert seen_by.zcard("{celery}:due") == seen_by.llen("celery") == 0
