"""What the transport has to know of the Celery worker in whose process it is, if there is one."""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, ref

from celery import bootsteps, signals
from celery.worker import state

from celery_delayq.transport import request

_controller: ReferenceType[Any] | None = None


def _note(sender: Any, **_: Any) -> None:
    global _controller
    _controller = ref(sender)
    request.hook(sender.app.tasks)


signals.worker_init.connect(_note)


def consumes_tasks(channel: Any) -> bool:
    """Return whether the tasks of a worker come through *channel*."""
    controller = _controller() if _controller else None
    consumer = getattr(getattr(controller, "consumer", None), "task_consumer", None)
    return consumer is not None and consumer.channel is channel


def backlog() -> int:
    """Return how many tasks wait in the worker for each process of its pool that may take one."""
    controller = _controller() if _controller else None
    if controller is None or controller.pool is None:
        return 0
    waiting = len(state.reserved_requests) - len(state.active_requests)
    return waiting // max(1, int(controller.pool.num_processes))


def lost_connection(channel: Any) -> bool:
    """Return whether a worker closes *channel* only to connect again, while its tasks run on."""
    controller = _controller() if _controller else None
    return (
        consumes_tasks(channel)
        and controller is not None
        and controller.blueprint.state == bootsteps.RUN
    )
