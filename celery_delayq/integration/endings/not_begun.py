"""A worker cannot begin a task: the place in the pool is released, and the worker continues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_delayq.integration.endings.request_state import RequestState
from celery_delayq.utils.text import described

logger = logging.getLogger(__name__)


def give_up_on_error(controller: Any, process_task: Callable[..., Any]) -> Callable[[Any], None]:
    """Wrap ``_process_task``, which gives a request to the pool: an error ends only this request.

    The caller may be the semaphore of the pool while another task ends. An exception would lose
    the end of that other task.
    """

    def process(request: Any) -> None:
        if not hasattr(request, "delayq_state"):  # the app got this task after the worker started
            process_task(request)
            return
        try:
            if request.delayq_state is RequestState.REFUSED:
                _release_place(controller)
                return
            request.change_state(RequestState.GIVEN)
            process_task(request)
        except MemoryError:  # the worker ends, and its messages are requeued
            raise
        except Exception as exc:
            if _give_up(controller, request, exc):
                _release_place(controller)

    return process


def keep_other_requests(_owner: type, move: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``_limit_move_to_pool``, which gives a request to the pool after its rate limit.

    The caller is a timer, or is about to handle another message.
    """

    def move_to_pool(consumer: Any, request: Any) -> None:
        if getattr(request, "delayq_state", None) is RequestState.REFUSED:
            return
        try:
            move(consumer, request)
        except MemoryError:  # the worker ends, and its messages are requeued
            raise
        except Exception as exc:
            if not hasattr(request, "delayq_state"):
                raise
            _give_up(consumer.controller, request, exc)

    return move_to_pool


def _give_up(controller: Any, request: Any, exc: Exception) -> bool:
    """Make a dead letter of a request that cannot be given to the pool.

    Return False, without a dead letter, if the pool has the request despite the error.
    """
    logger.exception("Giving %s[%r] to the pool has failed", request.name, request.id)
    if _has_taken(controller.pool, request):
        request.change_state(RequestState.GIVEN)
        return False
    if not request.change_state(RequestState.REFUSED):  # the task has begun in another thread
        return False
    state.task_ready(request)
    # A worker that ends requeues its messages; a cold shutdown stops the pool first.
    is_ending = state.should_terminate or controller.blueprint.state != bootsteps.RUN
    if not is_ending:
        request.make_dead_letter(f"not given to the pool: {described(exc)}")
    return True


def refuse(message: Any) -> bool:
    """Refuse the request of a message, if there is one. Return False if the pool has it."""
    request = getattr(message, "delayq_request", _no_request)()
    if request is None:
        return True
    if request.delayq_state is RequestState.GIVEN or not request.change_state(RequestState.REFUSED):
        return False
    state.task_ready(request)
    return True


def _no_request() -> None:
    """Replace the weak reference of a message without a request."""


def _has_taken(pool: Any, request: Any) -> bool:
    """Return whether a prefork pool gives a request to a child despite an error.

    If not, remove the request from the pool.
    """
    jobs = getattr(getattr(pool, "_pool", None), "_cache", {})
    for job in [*jobs.values()]:
        if getattr(job._accept_callback, "__self__", None) is request:
            if hasattr(job, "_payload"):
                return True
            job.discard()
    return False


def _release_place(controller: Any) -> None:
    """Release the place of a request in a prefork pool, if there is a semaphore.

    The event loop calls the release: the next request may fail too, and would recurse.
    """
    release = getattr(controller, "_quick_release", None)
    if release is not None and controller.hub is not None:
        controller.hub.call_soon(release)
