"""Workers of ``tests.apps.context_tasks``, and what their tasks wrote down.

Apart from that app, whose tasks would become those of all apps of a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest

#: Seconds to wait for what is about to happen.
TIMEOUT = 60

StartWorker = Callable[..., WorkerProcess]


def starter(delayq_worker: StartWorker) -> StartWorker:
    """Return what starts workers; *conf* are Celery's settings."""

    def start(pool: str = "threads", **options: Any) -> WorkerProcess:
        env = {"CONTEXT_SETTINGS": json.dumps(options.pop("conf", {})), **options.pop("env", {})}
        options = {"concurrency": 1, "extra_args": FAST_START, "env": env, **options}
        return delayq_worker("tests.apps.context_tasks:app", pool=pool, **options)

    return start


class Scene:
    """What tests see of tasks."""

    def __init__(self, redis: RedisUnderTest) -> None:
        self.client = redis.client

    def read(self, key: str = "log") -> list[dict[str, Any]]:
        """Return what was written down."""
        return [json.loads(item) for item in self.client.lrange(key, 0, -1)]

    def wait(self, count: int, key: str = "log") -> list[dict[str, Any]]:
        """Wait until so much is written down, and return it."""
        wait_until(
            lambda: self.client.llen(key) >= count, TIMEOUT, lambda: f"{count}: {self.read(key)}"
        )
        return self.read(key)

    def contexts(self, count: int) -> dict[str, Any]:
        """Wait for so many runs, and return what was bound in each."""
        return {run["name"]: run["context"] for run in self.wait(count)}
