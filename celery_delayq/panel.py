"""What a worker with the extension answers to remote control in its own way."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

from celery.worker import control
from kombu.utils.functional import maybe_list

from celery_delayq import revoking
from celery_delayq.app import DelayQ
from celery_delayq.entries import ScheduledTask

logger = logging.getLogger(__name__)

#: Most entries of the schedule that a worker tells.
MOST = 100

#: Characters of a message body beyond which the arguments are told as their short text.
LONGEST_BODY = 10_000


def install() -> None:
    """Take the place of Celery's commands in this process; other apps get Celery's answers."""
    data = control.Panel.data
    if not hasattr(data["scheduled"], "delayq"):
        data["scheduled"] = data["dump_schedule"] = _scheduled(data["scheduled"])
        data["revoke"] = _remembering(data["revoke"], _remember_ids)
        data["revoke_by_stamped_headers"] = _remembering(
            data["revoke_by_stamped_headers"], _remember_stamps
        )


def _delayq_of(state: Any) -> DelayQ | None:
    delayq: DelayQ | None = getattr(state.app, "_delayq", None)
    return delayq if delayq is not None and delayq.has_store else None


def _scheduled(stock: Callable[..., Any]) -> Callable[..., Any]:
    def scheduled(state: Any, **kwargs: Any) -> Any:
        """Answer with the schedule of the worker's queues, nearest first."""
        held = stock(state, **kwargs)  # what has less than min_delay to go, or another broker
        delayq = _delayq_of(state)
        if delayq is None:
            return held
        queues = state.consumer.task_consumer.queues if state.consumer.task_consumer else ()
        try:
            pages = [delayq.list(queue=queue.name, limit=MOST).entries for queue in queues]
        except Exception:
            logger.exception("The schedule could not be read")
            return held
        nearest = heapq.nsmallest(MOST, chain(*pages), key=lambda entry: entry.due)
        return [*held, *map(_as_request, nearest)]

    scheduled.delayq = True  # type: ignore[attr-defined]
    return scheduled


def _as_request(entry: ScheduledTask) -> dict[str, Any]:
    """Return an entry in the form of Celery's own answer."""
    message = entry.message or {}
    properties = message.get("properties", {})
    args: Any = None
    kwargs: Any = None
    if len(message.get("body", "")) <= LONGEST_BODY:
        args, kwargs = entry.args, entry.kwargs
    if args is None or kwargs is None:
        args, kwargs = entry.headers.get("argsrepr"), entry.headers.get("kwargsrepr")
    return {
        "eta": entry.due.isoformat(),
        "priority": entry.priority,
        "request": {
            "id": entry.id,
            "name": entry.task,
            "type": entry.task,
            "args": args,
            "kwargs": kwargs,
            "hostname": None,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                **properties.get("delivery_info", {}),
                "priority": properties.get("priority"),
                "redelivered": False,
            },
            "worker_pid": None,
        },
    }


def _remembering(
    stock: Callable[..., Any], remember: Callable[[DelayQ, dict[str, Any]], None]
) -> Callable[..., Any]:
    """Make revoking last that a client without the extension has asked for."""

    def revoke(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(state, *args, **kwargs)
        delayq = _delayq_of(state)
        if delayq is not None:
            try:
                remember(delayq, kwargs)
            except Exception:
                logger.exception("Only running workers know what was revoked")
        return result

    revoke.__doc__ = stock.__doc__
    return revoke


def _remember_ids(delayq: DelayQ, given: dict[str, Any]) -> None:
    ids = [str(id) for id in maybe_list(given.get("task_id")) or []]
    new = delayq._ask(lambda store: store.control.not_revoked(ids))
    if new:
        revoking.revoke(delayq, new)


def _remember_stamps(delayq: DelayQ, given: dict[str, Any]) -> None:
    stamps = revoking.stamps_of(given.get("headers"))
    if delayq._ask(lambda store: store.control.not_revoked((), stamps)):
        revoking.revoke_by_stamps(delayq, stamps)
