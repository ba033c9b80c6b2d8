"""Warn of options that need ``DelayQ(app)`` in apps that have the transport alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from celery import signals

from celery_delayq.model import envelope, retry_options, unique
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: Those of one call. ``DelayQ(app)`` takes them out of the message's properties.
_OF_CALLS = frozenset({*unique.OPTIONS, *retry_options.OPTIONS, *retry_options.TASK_OPTIONS})

#: Those of a task that Celery does not know itself.
_OF_TASKS = _OF_CALLS - {"max_retries", "retry_jitter"}


def warn_of_call(message: Mapping[str, Any]) -> None:
    """Warn, once for each option, when a task was sent with one that nobody has read."""
    if not _OF_CALLS.isdisjoint(message["properties"]) and envelope.is_task(message):
        _warn(_OF_CALLS.intersection(message["properties"]), "apply_async")


def _check_tasks(sender: Any, **_: Any) -> None:
    """Warn, once for each option, of those that tasks of this worker have."""
    app = sender.app
    transport = getattr(getattr(sender, "connection", None), "transport", None)
    if hasattr(transport, "settings") and getattr(app, "_delayq", None) is None:
        tasks = app.tasks.values()
        _warn(
            {name for name in _OF_TASKS for task in tasks if getattr(task, name, None) is not None},
            "tasks",
        )


def _warn(names: Iterable[str], where: str) -> None:
    for name in sorted(names):
        warn_once(
            logger,
            f"The option {name} of {where} has no effect: it needs DelayQ(app), and this app has "
            "the transport alone",
        )


signals.worker_ready.connect(_check_tasks)
