"""``app.send_task``: with unique keys, on an event loop, and faster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import celery.app
from celery import Celery
from celery._state import _on_app_finalizers, _task_stack, get_current_task
from celery.app import base
from celery.app.task import Context
from celery.local import PromiseProxy, maybe_evaluate
from celery.utils.collections import ConfigurationView
from celery.utils.threads import Local

from celery_delayq.integration import not_run
from celery_delayq.integration.replace import Replace
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


# -- faster sending -------------------------------------------------------------------------------

#: Whether Celery looks for all names of a setting in one place before the next place: since 5.7.
CELERY_LOOKS_BY_PLACE: bool = ConfigurationView({"a": True}, [{"x_a": False}], prefix="x")["a"]


def finding_settings(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the lookup of a setting, for which Celery raises an exception for each place without it,
    and works out the other names of a setting each time.
    """

    def find(settings: Any, key: str) -> Any:
        if settings.key_t is None:
            known = vars(settings).setdefault("_delayq_names", {})
            asked = key, settings.prefix  # the first lookup loads the settings, and their prefix
            names = known.get(asked) or known.setdefault(asked, settings._to_keys(key))
            for place in settings.maps:
                for name in names:
                    if name in place:
                        return place[name]
        return stock(settings, key)

    return find


def making_ids(_owner: Any, _stock: Callable[..., str]) -> Callable[..., str]:
    """Make ids as Celery does, without an object for each."""

    def uuid(*_: Any) -> str:
        return new_id()

    return uuid


def new_id() -> str:
    """Return a random UUID, version 4, at a third of the cost of ``str(uuid4())``."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def finding_parent(_owner: Any, stock: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap the look for the running task, for which Celery raises two exceptions where none runs.

    It has a stack of tasks for each thread, or greenlet, in which one runs.
    """
    stacks: Any = vars(_task_stack)["_local"]

    def find() -> Any:
        return stock() if stacks.__ident_func__() in stacks.__storage__ else None

    return find


def has_local_stack(_owner: Any) -> bool:
    """Return whether Celery keeps the running tasks itself, not by ``threading.local``."""
    return isinstance(vars(_task_stack).get("_local"), Local)


class WithoutLock:
    """Stands for a cached property of kombu, which takes a lock at each read.

    The first read goes to kombu. As there is no ``__set__`` here, Python finds the value in the
    object later on. A setter is not called, to delete a value that is not there is an error, and an
    assignment does not wait for a first read in another thread.
    """

    def __init__(self, _owner: Any, stock: Any) -> None:
        self._stock = stock
        self.__doc__ = stock.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._stock.__get__(instance, owner)


#: What Celery does for each task that it sends, with the same results.
FASTER_SENDING = (
    Replace(
        target="celery.utils.collections:ConfigurationView.__getitem__",
        by=finding_settings,
        versions="celery>=5.7",
        is_needed=CELERY_LOOKS_BY_PLACE,
        why="Celery looks five settings up for each task that it sends, in a third of the time",
    ),
    Replace(
        target="celery.app.base:uuid",
        by=making_ids,
        why="Celery makes an object of each id, which takes three times as long",
    ),
    Replace(
        target="celery.app.base:get_current_worker_task",
        by=finding_parent,
        condition="without USE_FAST_LOCALS in the environment",
        when=has_local_stack,
        why="Celery looks twice for the parent of each task that it sends, by two exceptions",
    ),
    *(
        Replace(
            target=target,
            by=WithoutLock,
            why="Celery takes a lock to read it for each task that it sends",
        )
        for target in (
            "celery.app.base:Celery.amqp",
            "celery.app.amqp:AMQP.router",
            "celery.app.amqp:AMQP.create_task_message",
            "celery.app.amqp:AMQP.send_task_message",
        )
    ),
)
