"""An app whose tasks never run: what their senders and its workers report of them."""

from __future__ import annotations

import json
from typing import Any

from celery import Celery, signals
from redis import Redis

from tests.apps.settings import new_app

#: The list to which receivers of ``task_revoked`` write.
REVOKED = "revoked"


def run(*_: Any) -> None:
    """Take no time."""


def body(results: list[Any]) -> int:
    """Stand for the body of a chord."""
    return len(results)


def failed(*_: Any) -> None:
    """Stand for what is called when a task fails."""


def tasks_of(app: Celery) -> Celery:
    """Give *app* the tasks and the receivers."""
    add = {"shared": False, "typing": False}
    app.task(name="run", **add)(run)
    app.task(name="brief", skip_after=0.001, **add)(run)
    for policy in ("replace", "keep"):
        unique: dict[str, Any] = {"unique_key": "{0}", "on_conflict": policy}
        app.task(name=policy, unique_scope="done", **unique, **add)(run)
    app.task(name="body", **add)(body)
    app.task(name="failed", **add)(failed)

    def note(sender: Any, request: Any, **_: Any) -> None:
        told = {"id": request.id, "task": request.task, "args": request.args}
        with Redis.from_url(app.conf.broker_url.removeprefix("delayq+")) as client:
            client.rpush(REVOKED, json.dumps(told))

    for name in ("run", "brief", "replace", "keep"):
        signals.task_revoked.connect(note, sender=app.tasks[name], weak=False)
    return app


app = tasks_of(
    new_app("not_run", at_least_once=True, result_extended=True, worker_send_task_events=True)
)
