"""What a worker learns about a task's end that the message itself does not tell."""

from __future__ import annotations

from functools import cache
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Reject
from kombu.utils.imports import symbol_by_name


class RequestMixin:
    """Tells the channel why a task's message is about to come back or to be rejected."""

    _is_killed = False

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Take note, and do what Celery does."""
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        message = self.message  # type: ignore[attr-defined]
        note = getattr(message.channel, "note_failure", None)
        if note is not None and isinstance(exc, (WorkerLostError, SystemExit, Reject)):
            reason = _text(exc.reason) if isinstance(exc, Reject) else None
            note(message.delivery_tag, crashed=not isinstance(exc, Reject), reason=reason)
        return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> Any:
        """End the task, whose message then goes back when the channel has gone."""
        # First of all, since it may die at any moment: to Celery, a greenlet that was killed looks
        # like one that has succeeded, and a solo task like one that has failed.
        self._is_killed = pool.is_green or isinstance(pool, SoloPool)
        result = super().cancel(pool, *args, **kwargs)  # type: ignore[misc]
        message = self.message  # type: ignore[attr-defined]
        note = getattr(message.channel, "note_cancelled", None)
        if note is not None:
            note(message.delivery_tag)
        return result

    def acknowledge(self) -> None:
        """Acknowledge the message, unless it goes back."""
        if not self._is_killed:
            super().acknowledge()  # type: ignore[misc]


def _text(reason: Any) -> str | None:
    """Return a reason of any type as a text."""
    if isinstance(reason, BaseException):
        return f"{type(reason).__name__}: {reason}"
    return None if reason is None else str(reason)


def hook(tasks: Any) -> None:
    """Have all *tasks* of a worker use the mixin, whatever class of request they have."""
    for task in tasks.values():
        base = symbol_by_name(task.Request)
        if not issubclass(base, RequestMixin):
            task.Request = _mixed(base)


@cache
def _mixed(base: type) -> type:
    return type("Request", (RequestMixin, base), {})
