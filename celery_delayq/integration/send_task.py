"""``app.send_task`` with unique keys and former names of tasks, and on an event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import celery.app
from celery import Celery
from celery._state import _on_app_finalizers, get_current_task
from celery.app import base
from celery.app.task import Context
from celery.local import PromiseProxy, maybe_evaluate

from celery_delayq.errors import ConfigError
from celery_delayq.model import publish_outcome, task_options
from celery_delayq.model.names import renames_of
from celery_delayq.utils import bridge
from celery_delayq.utils.lazy import LazyName
from celery_delayq.utils.once import warn_once

if TYPE_CHECKING:
    from celery_delayq.integration import not_run
else:
    not_run = LazyName("celery_delayq.integration.not_run")

logger = logging.getLogger(__name__)

#: Attribute of an app: how many functions for its finalization are already known.
_FINALIZERS_ATTRIBUTE = "_delayq_registered"

#: Import path of a task of ours, under which it may be sent, to the name in its messages.
TASK_ALIASES = {"celery_delayq.webhook.post": "celery_delayq.webhook"}


def return_kept_result(owner: Celery, send: Callable[..., Any]) -> MethodType:
    """Wrap ``send_task`` for unique keys and for former names of tasks.

    If an older task keeps the key, return the result of the older task. If the new task replaces
    an older task, report the older task.
    """

    report = partial(not_run.note_outcomes, owner, kept=True)

    def send_task(app: Celery, /, name: str, *args: Any, **kwargs: Any) -> Any:
        task_options.check_expires(kwargs.get("expires"))
        name = renames_of(app).of(TASK_ALIASES.get(name, name))
        register(app, name)
        with publish_outcome.OutcomeCollector(report) as collected:
            result = send(name, *args, **kwargs)
        if not collected:  # as of nearly all messages
            return result
        # A caller that chose the task id may wait for it, as groups, chains and chords do.
        not_run.note_outcomes(app, collected, kept=bool(kwargs.get("task_id")))
        for task_id, put, *_ in collected:
            if put.state == "kept" and task_id == result.id and put.other != task_id:
                result = _in_its_place(result, type(result)(put.other, app=app))
            elif put.state == "superseded":
                _running_request().superseded = True
        return result

    # Bind the method to the app here: otherwise `Replace` would add a function in between.
    return MethodType(send_task, owner)


#: Modules with the functions that register a task when an app is finalized (``shared_task``,
#: ``app.task``).
_DECORATOR_MODULES = (celery.app.__name__, base.__name__)


def register(app: Any, name: str) -> None:
    """Register a task by its name in an app that is not finalized, to know the task's options.

    The app is not finalized here, because handlers of ``on_after_finalize`` that are connected
    later would not be called. A task is registered in the same way as by a use of its proxy.
    """
    if app.finalized or name in app._tasks:
        return
    if not app.autofinalize:  # using a task fails too
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
                pending.append(task)  # `finalize` raises the error
                warn_once(logger, f"A task of {app!r} cannot be made: {exc!r}")


def task_of(app: Any, name: str) -> Any:
    """Return a task by its name; None if the app does not know it. See :func:`register`."""
    register(app, name)
    return app._tasks.get(name)


def imported_tasks(app: Any) -> Mapping[str, Any]:
    """Return the tasks of an app by name, after an import of all modules that its workers import.

    Raises
    ------
    ConfigError
        A module cannot be imported, or a task cannot be made.
    """
    try:
        app.loader.import_default_modules()
        app.finalize(auto=True)
        return cast("Mapping[str, Any]", app.tasks)
    except Exception as exc:  # a module may raise anything
        raise ConfigError(f"a module cannot be imported: {type(exc).__name__}: {exc}") from exc


def importable_tasks(app: Any) -> Mapping[str, Any]:
    """Return :func:`imported_tasks`. If a module cannot be imported here, log a warning and return
    the tasks that the app knows.
    """
    try:
        return imported_tasks(app)
    except ConfigError as exc:
        warn_once(logger, f"Tasks of {app!r} may be missing: {exc}")
        return cast("Mapping[str, Any]", app.tasks)


def skip_subscription(_backend: Any, on_task_call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``on_task_call`` of a result backend, for clients for asyncio: do not subscribe.

    These clients query a result when it is awaited.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if bridge.is_running() or bridge.is_in_thread():
            return {}
        return on_task_call(*args, **kwargs)

    return call


def note_superseded(sender: Any, request: Any, **_: Any) -> None:
    """Report a task whose retry was dropped because another task has taken its unique key."""
    if getattr(request, "superseded", False):
        not_run.note_revoked(sender.app, [not_run.NotRun(request, "replaced while it ran")])


def _running_request() -> Any:
    """Return the request of the running task, or an empty request."""
    task = get_current_task()
    return Context() if task is None else task.request


def _in_its_place(result: Any, other: Any) -> Any:
    """Return *other*, and make it the running task's child in place of *result*."""
    children = _running_request().children
    if children and children[-1] is result:
        children[-1] = other
    return other
