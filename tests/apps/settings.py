"""The settings that a test gives to the app of a worker, by the environment."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from kombu import Queue

from celery_delayq import DelayQ

SETTINGS: dict[str, Any] = json.loads(os.environ.get("APP_SETTINGS", "{}"))


def new_app(name: str, *, at_least_once: bool = False, **conf: Any) -> Celery:
    """Return an app with the extension, these settings, and those of the environment.

    Of the environment, ``at_least_once`` and ``retry`` are arguments of `DelayQ`, and
    ``undeclared_queue`` is one that the worker consumes and does not declare.
    """
    app = Celery(name)
    app.conf.update(broker_connection_retry_on_startup=True, **conf)
    own = {"at_least_once": at_least_once, "retry": None}
    DelayQ(app, **{name: SETTINGS.pop(name, default) for name, default in own.items()})
    if queue := SETTINGS.pop("undeclared_queue", None):
        app.conf.task_queues = [Queue(queue, no_declare=True)]
    app.conf.update(SETTINGS)
    return app
