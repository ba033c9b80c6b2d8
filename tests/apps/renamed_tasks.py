"""Versions of an app whose tasks are renamed from ``shop.*`` to ``mail.*``."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Limit
from tests.apps.settings import new_app

#: The tasks by their names without the first part.
TASKS = ("remind", "unique", "failed", "retried", "total")

#: By version of the code, in the order of deployment: the first part of the names of its tasks, and
#: that of their other names.
VERSIONS = {
    "before": ("shop", None),
    "prepared": ("shop", "mail"),
    "renamed": ("mail", "shop"),
    "after": ("mail", None),
}

VERSION = os.environ.get("CODE_VERSION", "after")


def renamed_in(version: str) -> dict[str, str]:
    """Return ``renamed`` of a version of the code."""
    own, other = VERSIONS[version]
    return {} if other is None else {f"{other}.{task}": f"{own}.{task}" for task in TASKS}


def note(task: Any, **values: Any) -> None:
    """Record a run."""
    with Redis.from_url(task.app.conf.result_backend) as client:
        request = task.request
        run = {"id": request.id, "task": task.name, "in_request": request.get("task"), **values}
        client.rpush("log", json.dumps(run))


def tasks_of(app: Celery, version: str) -> Celery:
    """Give *app* the tasks of a version of the code."""
    first, _ = VERSIONS[version]

    def remind(self: Any, key: Any, more: Any = "") -> Any:
        note(self, key=key, version=VERSION)
        if key == "fails":
            raise ValueError("as told")
        return key

    def unique(self: Any, key: str) -> str:
        note(self, key=key, version=VERSION)
        return key

    def failed(request: Any, exc: Any, traceback: Any) -> None:
        note(app.tasks[f"{first}.failed"], key=str(exc), version=VERSION)

    def retried(self: Any, key: str) -> str:
        note(self, key=key, version=VERSION, retries=self.request.retries)
        if not self.request.retries:
            raise self.retry(countdown=3600)
        return key

    def total(self: Any, numbers: list[Any]) -> int:
        note(self, key="total", version=VERSION)
        return len(numbers)

    limit = os.environ.get("CODE_RATE")
    limits = {"limit": Limit("one", rate=limit)} if limit else {}
    of_key = {"unique_key": "{key}", "unique_scope": "done"}
    app.task(name=f"{first}.remind", bind=True, shared=False, **limits)(remind)
    app.task(name=f"{first}.unique", bind=True, shared=False, **of_key)(unique)
    app.task(name=f"{first}.failed", shared=False)(failed)
    app.task(name=f"{first}.retried", bind=True, shared=False, **of_key)(retried)
    app.task(name=f"{first}.total", bind=True, shared=False)(total)
    return app


def extend(app: Celery, version: str) -> DelayQ:
    """Make a client of an app: a version of the code."""
    delayq = DelayQ(app, renamed=renamed_in(version))
    tasks_of(app, version)
    return delayq


app = new_app("renamed", at_least_once=True, renamed=renamed_in(VERSION))
tasks_of(app, VERSION)
