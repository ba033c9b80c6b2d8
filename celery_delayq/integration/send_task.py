"""``app.send_task``: with unique keys, and on an event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import celery.app
from celery import Celery
from celery._state import _on_app_finalizers, get_current_task
from celery.app import base
from celery.app.task import Context
from celery.local import PromiseProxy, maybe_evaluate

from celery_delayq.integration import not_run
from celery_delayq.model import publish_outcome, task_options
from celery_delayq.utils import bridge
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: Where an app keeps how many functions for its finalization are known.
_FINALIZERS_ATTRIBUTE = "_delayq_registered"

#: Import paths of our tasks by which they may be sent, to the names that their messages have.
TASK_ALIASES = {"celery_delayq.webhook.post": "celery_delayq.webhook"}


def returning_kept(owner: Celery, send: Callable[..., Any]) -> MethodType:
    """Wrap ``send_task``: if a unique key keeps an older task, return that one's result; if the new
    task replaces it, report the old one.
    """

    report = partial(not_run.note_outcomes, owner, kept=True)

    def send_task(app: Celery, /, name: str, *args: Any, **kwargs: Any) -> Any:
        task_options.check_expires(kwargs.get("expires"))
        name = TASK_ALIASES.get(name, name)
        register(app, name)
        with publish_outcome.OutcomeCollector(report) as collected:
            result = send(name, *args, **kwargs)
        # Whoever chose the id of a task may wait for it, as groups, chains and chords do.
        not_run.note_outcomes(app, collected, kept=bool(kwargs.get("task_id")))
        for task_id, put, *_ in collected:
            if put.state == "kept" and task_id == result.id and put.other != task_id:
                result = _in_its_place(result, type(result)(put.other, app=app))
            elif put.state == "superseded":
                _running_request().superseded = True
        return result

    # A method of the app by itself: `Replace` would put a function between.
    return MethodType(send_task, owner)


#: The modules whose functions register a task when an app is finalized: ``shared_task``,
#: ``app.task``.
_DECORATOR_MODULES = (celery.app.__name__, base.__name__)


def register(app: Any, name: str) -> None:
    """Have an app that is not finalized know a task by its name, and so the task's options.

    The app is not finalized, lest it calls no handler of ``on_after_finalize`` that is connected
    later. Each task is registered as it is when its proxy is used.
    """
    if app.finalized or name in app._tasks:
        return
    if not app.autofinalize:  # a task cannot be used either
        warn_once(
            logger,
            f"send_task before {app!r} is finalized (autofinalize=False): options of its tasks, "
            "such as unique_key=, are not known. Call app.finalize() first",
        )
        return
    with app._finalize_mutex:
        pending = app._pending
        if len(_on_app_finalizers) > vars(app).get(_FINALIZERS_ATTRIBUTE, 0):
            shared = [*_on_app_finalizers]
            setattr(app, _FINALIZERS_ATTRIBUTE, len(shared))
            pending.extend(
                PromiseProxy(each, (app,))
                for each in shared
                if each.__module__ in _DECORATOR_MODULES
            )
        for _ in range(len(pending)):
            task = pending.popleft()
            try:
                maybe_evaluate(task)
            except Exception as exc:
                pending.append(task)  # for `finalize`, which raises the error
                warn_once(logger, f"A task of {app!r} cannot be made: {exc!r}")


def not_subscribing(_backend: Any, on_task_call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a result backend's ``on_task_call`` for clients for asyncio, which ask for a result when
    it is awaited.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if bridge.is_running() or bridge.is_in_thread():
            return {}
        return on_task_call(*args, **kwargs)

    return call


def note_superseded(sender: Any, request: Any, **_: Any) -> None:
    """Report a task whose retry was dropped, since another one has taken its unique key."""
    if getattr(request, "superseded", False):
        not_run.note_revoked(sender.app, [not_run.NotRun(request, "replaced while it ran")])


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
