"""An app whose tasks are revoked, paused, replaced and held back."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from redis import Redis

from tests.apps.settings import new_app
from tests.support import TIMEOUT
from tests.support.keyspace import now_of

#: Seconds until a retry: a test makes it due.
RETRY = 3600


class TryAgain(Exception):
    """What a task is retried for by itself."""


def work(self: Any, key: Any = "", do: str = "", gate: str = "") -> Any:
    """Write down that it runs, wait until *gate* opens, and *do* what comes to mind.

    Retries are for the first attempt only, death for the first delivery.
    """
    request = self.request
    with Redis.from_url(self.app.conf.result_backend, socket_timeout=None) as client:
        run = {
            "id": request.id,
            "key": key,
            "task": self.name,
            "retries": request.retries,
            "deliveries": request.deliveries,
            "eta": request.eta,
            "at": now_of(client),
        }
        client.rpush("log", json.dumps(run))
        if gate and not client.exists(f"open:{gate}"):
            client.blpop([f"gate:{gate}"], timeout=TIMEOUT)
    if do == "fail":
        raise RuntimeError("as told")
    if do == "reject":
        raise Reject("as told", requeue=False)
    if do == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "retry" and not request.retries:
        raise self.retry(countdown=RETRY)
    if do == "autoretry" and not request.retries:
        raise TryAgain()
    return key


def total(self: Any, numbers: list[int]) -> int:
    """Stand for the body of a chord."""
    with Redis.from_url(self.app.conf.result_backend) as client:
        client.rpush("log", json.dumps({"id": self.request.id, "task": self.name}))
    return sum(numbers)


def tick(key: Any = "") -> None:
    """Take no time."""


def parent(self: Any, name: str, key: str) -> str:
    """Call another task, and return the id of what is to run."""
    return str(self.app.tasks[name].apply_async((key,), countdown=RETRY).id)


def tasks_of(app: Celery) -> Celery:
    """Give *app* the tasks: ``work``, and one for each policy and scope of a unique key."""
    again: dict[str, Any] = {
        "bind": True,
        "autoretry_for": (TryAgain,),
        "retry_kwargs": {"max_retries": 1, "countdown": RETRY},
    }
    app.task(name="work", **again, shared=False)(work)
    app.task(name="other", **again, shared=False)(work)
    app.task(name="total", bind=True, shared=False)(total)
    app.task(name="parent", bind=True, shared=False)(parent)
    app.task(name="tick", ignore_result=True, shared=False)(tick)
    for policy in ("replace", "error", "keep", "later"):
        for scope in ("scheduled", "done"):
            unique: dict[str, Any] = {"unique_key": "{key}", "on_conflict": policy}
            app.task(name=f"{policy}.{scope}", unique_scope=scope, **unique, **again, shared=False)(
                work
            )
    return app


app = tasks_of(new_app("control", at_least_once=True, worker_send_task_events=True))
