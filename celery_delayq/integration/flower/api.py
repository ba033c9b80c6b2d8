"""Flower's API for publishing: answer with the error text instead of an empty status 500."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.exceptions import OperationalError

from celery_delayq.errors import DelayQError, UniqueConflict
from celery_delayq.integration.replace import Promise, Replace


def status_of(error: DelayQError) -> int:
    """Return the HTTP status for an error of ours."""
    if isinstance(error, UniqueConflict):
        return 409
    if isinstance(error, OperationalError):
        return 503
    return 400 if isinstance(error, ValueError) else 500


def name_errors(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``send_error``, which gets our error, or an error that Flower raised from ours."""

    def send_error(handler: Any, status_code: int = 500, **options: Any) -> Any:
        exc = (options.get("exc_info") or (None, None))[1]
        while exc is not None and not isinstance(exc, DelayQError):
            exc = exc.__cause__
        if exc is None:
            return stock(handler, status_code, **options)
        handler.clear()
        handler.set_status(status_of(exc))
        handler.set_header("Content-Type", "text/plain; charset=UTF-8")
        return handler.finish(str(exc))

    return send_error


CHANGES = (
    Replace(
        target="flower_api.BaseApiHandler.send_error",
        by=name_errors,
        without="Flower answers an error of ours, such as a taken unique key, with an empty 500.",
        promise=Promise.REMOTE_CONTROL,
        upstream="flower: answer with the text of the exception.",
    ),
)
