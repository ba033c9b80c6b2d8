"""A task that the worker cannot begin: what it has taken is given back, and the worker goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_delayq.integration.endings.turn import Turn
from celery_delayq.utils.text import described

logger = logging.getLogger(__name__)


def giving_back(controller: Any, process_task: Callable[..., Any]) -> Callable[[Any], None]:
    """Wrap what gives a request to the pool: an error ends this request and nothing else.

    The caller may be the semaphore of the pool, on behalf of a task that has just ended, and would
    lose the end of that task.
    """

    def process(request: Any) -> None:
        if not hasattr(request, "turn"):  # of a task that the app got since the worker began
            process_task(request)
            return
        try:
            if request.turn is Turn.REFUSED:
                _release_place(controller)
                return
            request.enter(Turn.GIVEN)
            process_task(request)
        except MemoryError:  # the worker ends, and its messages go back
            raise
        except Exception as exc:
            if _give_up(controller, request, exc):
                _release_place(controller)

    return process


def keeping_others(_owner: type, move: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what gives a request to the pool whose turn has come by its rate limit.

    The caller is about to handle another message, or is a timer.
    """

    def move_to_pool(consumer: Any, request: Any) -> None:
        if getattr(request, "turn", None) is Turn.REFUSED:
            return
        try:
            move(consumer, request)
        except MemoryError:  # the worker ends, and its messages go back
            raise
        except Exception as exc:
            if not hasattr(request, "turn"):
                raise
            _give_up(consumer.controller, request, exc)

    return move_to_pool


def _give_up(controller: Any, request: Any, exc: Exception) -> bool:
    """Make a dead letter of a request that cannot be given to the pool; return False if the pool
    has it all the same.
    """
    logger.exception("Giving %s[%r] to the pool has failed", request.name, request.id)
    if _has_taken(controller.pool, request):
        request.enter(Turn.GIVEN)
        return False
    if not request.enter(Turn.REFUSED):  # it has begun, in another thread
        return False
    state.task_ready(request)
    # A worker that ends gives its messages back; a cold shutdown stops the pool first.
    is_ending = state.should_terminate or controller.blueprint.state != bootsteps.RUN
    if not is_ending:
        request.make_dead_letter(f"not given to the pool: {described(exc)}")
    return True


def refuse(message: Any) -> bool:
    """Have the worker refuse the request of a message, if any; return False if the pool has it."""
    request = getattr(message, "delayq_request", _no_request)()
    if request is None:
        return True
    if request.turn is Turn.GIVEN or not request.enter(Turn.REFUSED):
        return False
    state.task_ready(request)
    return True


def _no_request() -> None:
    """Stand for the weak reference to a request that was never made."""


def _has_taken(pool: Any, request: Any) -> bool:
    """Return whether a prefork pool gives a request to a child all the same; if not, it forgets
    the request.
    """
    jobs = getattr(getattr(pool, "_pool", None), "_cache", {})
    for job in [*jobs.values()]:
        if getattr(job._accept_callback, "__self__", None) is request:
            if hasattr(job, "_payload"):
                return True
            job.discard()
    return False


def _release_place(controller: Any) -> None:
    """Give back the place in a prefork pool, if the request has one.

    By the event loop: the request that takes it may fail too, and so on.
    """
    release = getattr(controller, "_quick_release", None)
    if release is not None and controller.hub is not None:
        controller.hub.call_soon(release)
