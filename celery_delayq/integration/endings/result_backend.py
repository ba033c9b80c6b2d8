"""The result backend may be away whenever a worker reports to it.

A report of a retry, a revoke, a failure or a start that fails is logged, and the ending goes on:
what becomes of the message does not depend on the result backend. The report of a success is
another matter: it is what the caller waits for. Celery makes a failure of it, and a dead letter
keeps the task.
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


def logging_errors(_owner: type, mark: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a ``mark_as_…`` of a result backend: an error is logged.

    It then returns False, and an exception that was to be stored is marked as not reported.
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


def logging_errors_of_requests(owner: type, mark: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``mark_as_revoked`` in this way for the end of a request.

    Remote control, which has no request, takes an error for what it is.
    """
    mark_and_log = logging_errors(owner, mark)

    def mark_as_revoked(
        backend: Any, task_id: str, reason: str = "", request: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = backend, task_id, reason, request, *args
        if request is None:  # Celery's remote control expects the errors of the backend
            return mark(*given, **kwargs)
        return mark_and_log(*given, **kwargs)

    return mark_as_revoked


def is_reported(exc: BaseException) -> bool:
    """Return whether a failure was stored, and the chord was notified, as far as is known."""
    return not getattr(exc, "delayq_unreported", False)


def starting_anyway(_owner: type, store: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``store_result`` of a result backend: an error for a start is logged."""

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


def unknown_when_away(_owner: ModuleType, result_cls: type) -> type:
    """Return a class of results whose state is unknown where the result backend is away.

    With ``worker_deduplicate_successful_tasks`` Celery asks for it before it runs a task again.
    """

    class Result(result_cls):
        """A result as Celery's trace reads it."""

        @property
        def state(self) -> Any:
            """The state of the task."""
            try:
                return super().state
            except Exception as exc:
                raise BackendGetMetaError(str(exc), task_id=self.id) from exc

    return Result
