"""The result backend may be unavailable when a worker reports to it.

A failed report of a start, a retry, a revoke or a failure is logged, and the task ends as usual:
the state of the message does not depend on the result backend. A failed report of a success is
different, because the caller waits for the result: Celery turns it into a failure, and the task
is kept as a dead letter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from celery import states
from celery.exceptions import BackendGetMetaError

logger = logging.getLogger(__name__)


def log_backend_errors(_owner: type, mark: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method ``mark_as_…`` of a result backend: an error is logged.

    After an error the method returns False, and the exception to store is marked as unreported.
    """

    def mark_or_log(backend: Any, task_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return mark(backend, task_id, *args, **kwargs)
        except Exception:
            logger.exception("The result backend does not take %s(%r)", mark.__name__, task_id)
            with suppress(Exception):
                args[0].delayq_unreported = True
            return False

    return mark_or_log


def log_revoke_errors(owner: type, mark: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``mark_as_revoked`` like :func:`log_backend_errors`, for a call with a request.

    Remote control calls it without a request, and handles the errors itself.
    """
    mark_and_log = log_backend_errors(owner, mark)

    def mark_as_revoked(
        backend: Any, task_id: str, reason: str = "", request: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = backend, task_id, reason, request, *args
        if request is None:  # called by Celery's remote control
            return mark(*given, **kwargs)
        return mark_and_log(*given, **kwargs)

    return mark_as_revoked


def is_reported(exc: BaseException) -> bool:
    """Return False if storing a failure, or notifying its chord, is known to have failed."""
    return not getattr(exc, "delayq_unreported", False)


def start_despite_error(_owner: type, store: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``store_result`` of a result backend: an error for the state STARTED is logged."""

    def store_result(
        backend: Any, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any
    ) -> Any:
        try:
            return store(backend, task_id, result, state, *args, **kwargs)
        except Exception:
            if state != states.STARTED:
                raise
            logger.exception("The result backend does not take the start of %r", task_id)
            return result

    return store_result


def make_state_unknown(_owner: ModuleType, result_cls: type) -> type:
    """Return a result class whose state is unknown while the result backend is unavailable.

    With ``worker_deduplicate_successful_tasks`` Celery reads the state before it repeats a task.
    """

    class Result(result_cls):
        """A result as Celery's ``trace_task`` reads it."""

        @property
        def state(self) -> Any:
            """The state of the task."""
            try:
                return super().state
            except Exception as exc:
                raise BackendGetMetaError(str(exc), task_id=self.id) from exc

    return Result
