"""Warnings of a worker when it is ready, and of a producer at its first message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from celery_delayq.model import envelope, retry_options, unique
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: Options of one call. ``DelayQ(app)`` takes them out of the message's properties.
OPTIONS = frozenset({*unique.OPTIONS, *retry_options.OPTIONS, *retry_options.TASK_OPTIONS})

#: Options of a task that Celery does not know itself.
_OF_TASKS = OPTIONS - {"max_retries", "retry_jitter"}


def check_worker(sender: Any, **_: Any) -> None:
    """Warn when a worker with the extension consumes by a stock transport, acknowledges early
    although it was told to run each task at least once, has no end for tasks that kill it, or
    cannot send webhooks; and when one without it has task options or periodic entries that need it.
    """
    app, transport = sender.app, getattr(getattr(sender, "connection", None), "transport", None)
    delayq = getattr(app, "_delayq", None)
    on_rabbitmq = hasattr(transport, "dead_letter_connection")
    if app.conf.beat_schedule and hasattr(transport, "settings") and (on_rabbitmq or not delayq):
        logger.warning(
            "beat_schedule has entries (%d): workers fire them only where there is DelayQ(app) and "
            "a broker delayq+redis://. Here celery beat has to run",
            len(app.conf.beat_schedule),
        )
    if delayq is None:
        _check_without_extension(app, transport)
        return
    warn_of_stock(sender.connection)
    if on_rabbitmq:
        _warn_of_classic_queues(app, sender.connection.transport.settings)
    if delayq.webhook is not None and find_spec("httpx") is None:
        warn_once(
            logger,
            "DelayQ(app, webhook=…) is set, but httpx is not installed: webhooks that this worker "
            'takes are dead letters. pip install "celery-delayq[webhook]"',
        )
    wanted = ("task_acks_late", "task_reject_on_worker_lost")
    if delayq.at_least_once:
        for setting in (name for name in wanted if not app.conf[name]):
            warn_once(
                logger,
                f"DelayQ(app, at_least_once=True) was followed by {setting}=False, which wins: a "
                "task whose process is killed does not run again. Remove one of them",
            )


def warn_of_stock(connection: Any) -> None:
    """Warn, once, when an app with the extension uses kombu's transport for Redis or RabbitMQ."""
    transport = connection.transport
    if transport.driver_type in ("redis", "amqp") and not hasattr(transport, "settings"):
        warn_once(
            logger,
            f"DelayQ(app) is set up, but the broker is {connection.as_uri()}: delays, retries and "
            "failures are those of stock Celery. Let the URL begin with "
            f"delayq+{transport.driver_type}://",
        )


def _warn_of_classic_queues(app: Any, settings: Any) -> None:
    """Warn when a task that kills its process would be redelivered by RabbitMQ for ever."""
    conf = app.conf
    if not (settings.max_deliveries and conf.task_acks_late and conf.task_reject_on_worker_lost):
        return
    for name, queue in app.amqp.queues.consume_from.items():
        if (queue.queue_arguments or {}).get("x-queue-type") != "quorum":
            warn_once(
                logger,
                f"Queue {name!r} is no quorum queue: RabbitMQ does not count its deliveries, so a "
                "task that kills its process comes back again and again. Use a new queue with "
                "task_default_queue_type='quorum'",
            )


def _check_without_extension(app: Any, transport: Any) -> None:
    """Warn of task options that have no effect without ``DelayQ(app)``."""
    if not hasattr(transport, "settings"):
        return
    tasks = app.tasks.values()
    _warn_of_options(
        {name for name in _OF_TASKS for task in tasks if getattr(task, name, None) is not None},
        "tasks",
    )


def warn_of_call(message: Mapping[str, Any]) -> None:
    """Warn, once for each option, when a task was sent with one that had no effect."""
    if not OPTIONS.isdisjoint(message["properties"]) and envelope.is_task(message):
        _warn_of_options(OPTIONS.intersection(message["properties"]), "apply_async")


def _warn_of_options(names: Iterable[str], where: str) -> None:
    for name in sorted(names):
        warn_once(
            logger,
            f"The option {name} of {where} has no effect: it needs DelayQ(app), and this app has "
            "the transport alone",
        )
