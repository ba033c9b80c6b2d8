"""The settings that a test gives to the app of a worker, by the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery
from kombu import Queue

from celery_delayq import DelayQ, Limit
from tests.apps.shared_locks import watch
from tests.support import TIMEOUT

SETTINGS: dict[str, Any] = json.loads(os.environ.get("APP_SETTINGS", "{}"))


def limits_of(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Limit]:
    """Return limits by pattern."""
    return {pattern: Limit(**limit) for pattern, limit in given.items()}


def new_app(
    name: str,
    *,
    at_least_once: bool = False,
    renamed: Mapping[str, str] | None = None,
    **conf: Any,
) -> Celery:
    """Return an app with the extension, these settings, and those of the environment.

    Of the environment, ``at_least_once``, ``retry`` and ``renamed`` are arguments of `DelayQ`,
    ``limits`` are arguments of `Limit` by pattern, ``undeclared_queue`` is one that the worker
    consumes and does not declare, and ``watched`` is the package whose locks are watched.
    """
    if watched := SETTINGS.pop("watched", None):
        watch(watched)
    app = Celery(name)
    # By default, Celery kills a child of its pool that does not report within 4 s.
    defaults = {"broker_connection_retry_on_startup": True, "worker_proc_alive_timeout": TIMEOUT}
    app.conf.update(defaults, **conf)
    own = {"at_least_once": at_least_once, "retry": None, "renamed": renamed}
    options = {name: SETTINGS.pop(name, default) for name, default in own.items()}
    DelayQ(app, limits=limits_of(SETTINGS.pop("limits", {})), **options)
    if queue := SETTINGS.pop("undeclared_queue", None):
        app.conf.task_queues = [Queue(queue, no_declare=True)]
    app.conf.update(SETTINGS)
    return app
