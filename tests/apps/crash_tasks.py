"""An app whose tasks raise what is no `Exception`, in every way that there is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from importlib import import_module
from typing import Any
from uuid import uuid4

from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker.control import inspect_command
from redis import Redis

from tests.apps.settings import new_app
from tests.support.epolls import registered

app = new_app("crashes", task_reject_on_worker_lost=True)


class Own(BaseException):
    """What an application may define."""


class Unreadable(BaseException):
    """What can be pickled, and then not read."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


def _raising(make: Callable[[], BaseException]) -> Callable[[], None]:
    def end() -> None:
        raise make()

    return end


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _of(module: str, name: str, *args: Any) -> Callable[[], None]:
    """Return what raises an exception of a library that is imported only for this."""
    return _raising(lambda: getattr(import_module(module), name)(*args))


def _kill_greenlet() -> None:
    import_module("gevent").getcurrent().kill()


#: How a task may end its process or thread, by name.
ENDS: dict[str, Callable[[], None]] = {
    "KeyboardInterrupt": _raising(KeyboardInterrupt),
    "SystemExit": _raising(lambda: SystemExit(3)),
    "exit well": _raising(SystemExit),
    "GeneratorExit": _raising(GeneratorExit),
    "BaseException": _raising(lambda: BaseException("the root of them")),
    "BaseExceptionGroup": _raising(lambda: _group(KeyboardInterrupt())),
    "CancelledError": _raising(asyncio.CancelledError),
    "GreenletExit": _of("greenlet", "GreenletExit"),
    "Timeout of gevent": _of("gevent", "Timeout", None),
    "Timeout of eventlet": _of("eventlet", "Timeout", None),
    "WorkerShutdown": _raising(lambda: WorkerShutdown(0)),
    "WorkerTerminate": _raising(lambda: WorkerTerminate(1)),
    "own": _raising(lambda: Own("an application's")),
    "unreadable": _raising(lambda: Unreadable(code=1)),
    "os._exit": lambda: os._exit(0),
    "os._exit badly": lambda: os._exit(3),
    "SIGKILL": _kill_itself,
    "kill of its greenlet": _kill_greenlet,
}


def _group(exc: BaseException) -> BaseException:
    try:
        return BaseExceptionGroup("several", [exc])  # type: ignore[name-defined,unused-ignore]
    except NameError:  # Python 3.10
        return BaseException("several")


def _run(request: Any, how: str) -> None:
    with Redis.from_url(app.conf.result_backend) as client:
        # A name for each run: the client repeats a command whose reply is late.
        client.hset("runs", f"{uuid4().hex} {request.id}", "")
    if how:
        ENDS[how]()


@app.task(bind=True, name="crash.late", acks_late=True, shared=False)
def late(self: Any, how: str = "") -> None:
    """End in some way; acknowledged after it."""
    _run(self.request, how)


@app.task(bind=True, name="crash.early", acks_late=False, shared=False)
def early(self: Any, how: str = "") -> None:
    """End in some way; acknowledged before it."""
    _run(self.request, how)


@inspect_command()
def unregistered(panel: Any) -> list[int]:
    """Return what the event loop reads and writes by its own book, and its epoll does not have."""
    hub = panel.consumer.hub
    known = registered(os.getpid(), hub.poller._epoll.fileno())
    return sorted({*hub.readers, *hub.writers} - known.keys())
