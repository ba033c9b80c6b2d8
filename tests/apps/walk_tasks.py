"""An app whose worker fails at any call that Celery makes on the way of a message to the pool.

The id of a task says where: ``<root>-<number>-<error>``, the number of a call below a root. Calls
are those of Celery and of the libraries below it, not those below the transport.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from celery.signals import celeryd_init
from celery.worker import WorkController, state
from celery.worker.consumer import Consumer
from celery.worker.control import inspect_command
from celery.worker.request import Request
from kombu.serialization import register

from tests.apps.ledgers import gates, ledger, wait_for
from tests.apps.settings import new_app

app = new_app("walk", task_reject_on_worker_lost=True, accept_content=["json", "by-value"])

#: What an error is, by name: to kombu the second one is a lost connection.
ERRORS: dict[str, type[Exception]] = {"plain": RuntimeError, "lost": ConnectionError}
_PACKAGES = ("celery.", "kombu.", "billiard.", "vine.", "concurrent.futures.")
_OWN = ("celery_delayq.transport.", "celery_delayq.dispatch.")
#: What runs the task: from there on it has begun.
_BEGINS = ("fast_trace_task", "trace_task_ret")


class _Walk:
    """Raises an error at one call of this thread or greenlet."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._root, number, self._error, _ = id.split("-")
        self._left = int(number)
        self._current = _current()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or _current() is not self._current:
            return
        if frame.f_code.co_name in _BEGINS:
            sys.settrace(None)
            return
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(_PACKAGES) or self._is_of_others(frame):
            return
        self._left -= 1
        if not self._left:
            site = f"{module}:{frame.f_code.co_name}"
            gates.hset("sites", f"{self._root} {site}", self._error)
            raise ERRORS[self._error](f"at {site}")

    def _is_of_others(self, frame: FrameType | None) -> bool:
        """Return whether a call is below the transport, or for all tasks of a rate."""
        while frame is not None and frame.f_code.co_name != "walked":
            if frame.f_code.co_name == "_limit_move_to_pool":
                return bool(frame.f_locals["request"].id != self._id)
            if frame.f_code.co_name == "_schedule_bucket_request":
                return True
            if str(frame.f_globals.get("__name__")).startswith(_OWN):
                return True
            frame = frame.f_back
        return False


def _current() -> Any:
    greenlet = sys.modules.get("greenlet")
    return greenlet.getcurrent() if greenlet is not None else None


def _walking(root: str, way: Callable[..., Any], id_of: Callable[..., str]) -> Callable[..., Any]:
    @wraps(way)
    def walked(*args: Any) -> Any:
        id = id_of(*args)
        if id.partition("-")[0] != root:
            return way(*args)
        sys.settrace(_Walk(id))
        try:
            return way(*args)
        finally:
            sys.settrace(None)

    return walked


_create = Consumer.create_task_handler


@wraps(_create)
def _create_walking(*args: Any, **kwargs: Any) -> Any:
    handle = _create(*args, **kwargs)
    return _walking("handler", handle, lambda message: str(message.headers["id"]))


@celeryd_init.connect
def _walk(**_: Any) -> None:
    """Change Celery in the worker alone: tests import this module too."""
    Consumer.create_task_handler = _create_walking
    WorkController._process_task = _walking(
        "process", WorkController._process_task, lambda _, request: str(request.id)
    )
    Request.on_accepted = _walking("accepted", Request.on_accepted, lambda request, *_: request.id)


@inspect_command()
def walk_left(panel: Any) -> dict[str, Any]:
    """Return what a worker still has of its tasks."""
    controller, qos = panel.consumer.controller, panel.consumer.task_consumer.channel.qos
    qos._flush()
    semaphore = getattr(controller, "semaphore", None)
    return {
        "requests": sorted(state.requests),
        "reserved": len(state.reserved_requests),
        "active": len(state.active_requests),
        "places": semaphore.initial_value - semaphore.value if semaphore is not None else 0,
        "jobs": len(getattr(controller.pool._pool, "_cache", ())),
        "held": len(qos._delivered),
    }


# -- arguments that no child can have

_MAIN = os.getpid()


class Unwritable:
    """An argument that pickle cannot write."""

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("not this one")


class Unreadable:
    """An argument that a child cannot read."""

    def __reduce__(self) -> Any:
        return _read, ()


def _read() -> Any:
    if os.getpid() != _MAIN:
        raise ImportError("no child can read it")
    return Unreadable()


_KINDS: dict[str, Callable[[], Any]] = {
    "unwritable": Unwritable,
    "unreadable": Unreadable,
    "recursive": lambda: _nested(700),
    "lambda": lambda: lambda: 1,
}


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def _load(data: Any) -> Any:
    args, kwargs, embed = pickle.load(io.BytesIO(data))
    return [_KINDS.get(each, lambda each=each: each)() for each in args], kwargs, embed


register(
    "by-value",
    pickle.dumps,
    _load,
    content_type="application/x-by-value",
    content_encoding="binary",
)


def _run(request: Any, gate: str) -> None:
    number = ledger.started(request.id)
    wait_for(gate)
    ledger.ended(request.id, number)


@app.task(bind=True, name="walk.late", acks_late=True, shared=False)
def late(self: Any, gate: str = "") -> None:
    """Run until a gate is open; acknowledged after it."""
    _run(self.request, gate)


@app.task(bind=True, name="walk.early", acks_late=False, shared=False)
def early(self: Any, gate: str = "") -> None:
    """Run until a gate is open; acknowledged before it."""
    _run(self.request, gate)


@app.task(bind=True, name="walk.rated", acks_late=True, rate_limit="10000/s", shared=False)
def rated(self: Any, gate: str = "") -> None:
    """Run when the worker's bucket of tokens lets it."""
    _run(self.request, gate)


@app.task(bind=True, name="walk.takes", acks_late=True, serializer="by-value", shared=False)
def takes(self: Any, _: Any) -> None:
    """Take an argument of one of those kinds."""
    _run(self.request, "")
