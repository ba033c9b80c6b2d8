"""``app.send_task`` where unique keys decide which task is sent, and on an event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from celery import Celery
from celery._state import get_current_task
from celery.app.task import Context

from celery_delayq.integration import not_run
from celery_delayq.model import publish_outcome, task_options
from celery_delayq.model.scheduled import ScheduledTask
from celery_delayq.utils import bridge

logger = logging.getLogger(__name__)

#: Import paths of our tasks by which they may be sent, to the names that their messages have.
OTHER_NAMES = {"celery_delayq.webhook.post": "celery_delayq.webhook"}


def returning_kept(app: Celery, send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``send_task``: if a unique key keeps an older task, return that one's result; if the new
    task replaces it, report the old one.
    """

    @wraps(send)
    def send_task(name: str, *args: Any, **kwargs: Any) -> Any:
        task_options.check_expires(kwargs.get("expires"))
        with publish_outcome.collecting() as collected:
            result = send(OTHER_NAMES.get(name, name), *args, **kwargs)
        for task_id, put, queue, record in collected:
            if put.state == "kept" and task_id == result.id and put.other != task_id:
                if kwargs.get("task_id"):
                    _note_not_sent(app, task_id, put.other, kwargs)
                result = _in_its_place(result, type(result)(put.other, app=app))
            elif put.state == "superseded":
                _running_request().superseded = True
            elif put.state == "replaced" and put.other != task_id:
                entries = []
                if record:
                    entry = ScheduledTask.of_record(queue, put.other, "scheduled", 0, record)
                    entries.append(entry)
                not_run.note_cancelled(app, [put.other], entries, f"replaced by {task_id}")
        return result

    return send_task


def not_subscribing(_backend: Any, on_task_call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a result backend's ``on_task_call`` for clients for asyncio, which ask for a result when
    it is awaited.
    """

    @wraps(on_task_call)
    def call(*args: Any, **kwargs: Any) -> Any:
        if bridge.is_running() or bridge.is_in_thread():
            return {}
        return on_task_call(*args, **kwargs)

    return call


def note_superseded(sender: Any, request: Any, **_: Any) -> None:
    """Report a task whose retry was dropped, since another one has taken its unique key."""
    if getattr(request, "superseded", False):
        not_run.note_revoked(sender.app, [request.id], "replaced while it ran", request)


def _running_request() -> Any:
    """Return the request of the running task, or an empty one."""
    task = get_current_task()
    return Context() if task is None else task.request


def _in_its_place(result: Any, other: Any) -> Any:
    """Return the other result, by which the running task knows its child too."""
    children = _running_request().children
    if children and children[-1] is result:
        children[-1] = other
    return other


def _note_not_sent(app: Celery, task_id: str, other: str, options: Mapping[str, Any]) -> None:
    """Store in the result of a task that it is not sent: whoever chose its id may wait for it, as
    groups, chains and chords do.
    """
    chord = {name: options.get(name) for name in ("group_id", "group_index", "chord")}
    request = Context(id=task_id, group=chord.pop("group_id"), **chord)
    try:
        app.backend.mark_as_revoked(task_id, f"not sent, {other} has its unique key", request)
    except Exception:
        logger.exception("Storing in the result backend that task %r is not sent failed", task_id)
