"""Settles the message of a task that has ended, beyond what Celery does.

A task that has failed for good is a dead letter. Where it acknowledges late that takes the place of
the acknowledgement, in one step; else the message is gone already, and a copy is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import celery
from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Ignore, Reject, Retry
from celery.worker import state
from kombu.utils.imports import symbol_by_name

from celery_delayq.integration.pauses_and_revokes import REVOKED_CANVASES
from celery_delayq.integration.retries import attempts_of, hold_chord
from celery_delayq.integration.run_history import RequestBase, RunMixin
from celery_delayq.model import delivery
from celery_delayq.model.broker import Delivery
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.dead_letter import details_of, pack_details
from celery_delayq.model.envelope import own_of
from celery_delayq.model.task_options import check_body, check_received
from celery_delayq.utils.text import described

logger = logging.getLogger(__name__)

#: Whether Celery tells chords of a task that rejects its message: before, they waited for ever.
TELLS_OF_REJECTS = celery.VERSION >= (5, 7)


class Ending(NamedTuple):
    """Why a task's message becomes a dead letter."""

    reason: str
    details: dict[str, Any]


class RequestMixin(RequestBase):
    """Tells the channel why a task's message is about to be requeued or rejected."""

    acknowledged: bool
    _is_killed = False
    #: Why the message becomes a dead letter at its acknowledgement.
    _ending: Ending | None = None
    _is_dead_lettered = False
    #: Whether the pool has the task, or had it.
    _is_given_to_pool = False

    def __init__(self, message: Any, **kwargs: Any) -> None:
        if not kwargs.get("decoded") and kwargs.get("body") is message.body:
            # It is decoded already; whoever runs the task would do it once more.
            kwargs.update(body=message.payload, decoded=True)
        super().__init__(message, **kwargs)
        # Whatever protocol and producer it came from: here all of it has been read.
        check_received(self._request_dict)
        check_body(*self._payload)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Take note, and do what Celery does."""
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        self._end(exc, exc_info.traceback)
        channel = self._delivery
        if channel is not None and isinstance(exc, (WorkerLostError, SystemExit)):
            told = {} if self._ending is None else self._ending.details
            # A message that comes back has not ended, and no chord was notified.
            details = {name: value for name, value in told.items() if name != "told"}
            channel.note_failure(
                self.message.delivery_tag, crashed=True, details=pack_details(details)
            )
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        except Exception:
            # Celery raises a task's MemoryError anew, to end a worker that has no memory left, and
            # what tells chords and the result backend may fail on a message with wrong headers:
            # that is not to be held for ever where the worker lives on.
            self.acknowledge()
            raise
        finally:
            self._after_failure()

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Take note of a hard time limit, and do what Celery does."""
        if not soft:
            self._end(TimeLimitExceeded(timeout), None)
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft:
                self._after_failure()

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        """Take note, and do what Celery does."""
        self._is_given_to_pool = True
        return super().execute_using_pool(pool, **kwargs)

    def revoked(self) -> Any:
        """Return whether the task must not run: it is revoked, or its canvas was cancelled."""
        if len(REVOKED_CANVASES) and not self.acknowledged:
            own = own_of(self.message.properties)
            canvases = Canvas.all_of(self._request_dict, own)
            if any(canvas in REVOKED_CANVASES for canvas in canvases):
                state.revoked.add(self.id)
        return super().revoked()

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> Any:
        """End the task; its message goes back when the channel closes."""
        # First of all, since it may die at any moment: to Celery, a greenlet that was killed looks
        # like one that has succeeded, and a solo task like one that has failed.
        self._is_killed = pool.is_green or isinstance(pool, SoloPool)
        result = super().cancel(pool, *args, **kwargs)
        if self._delivery is not None:
            self._delivery.note_cancelled(self.message.delivery_tag)
        return result

    def acknowledge(self) -> None:
        """Acknowledge the message, or dead-letter it, unless it goes back."""
        if self._is_killed:
            return
        if self._ending is None or self.acknowledged:
            super().acknowledge()
            return
        # Not `reject`, which sends an event: to those who watch, the task has failed.
        self._note_ending()
        self._on_reject(logger, self.connection_errors, False)
        self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:
        """Reject the message; what goes back is no dead letter.

        With early acks nothing goes back: there the message was acknowledged before.
        """
        if requeue and self.task.acks_late:
            self._ending = None
        else:
            self._note_ending()
        super().reject(requeue=requeue)

    def _retry_worker_lost(self, *args: Any) -> Any:
        """Forget the failure: the task is retried (Celery 5.7's ``retry_on_worker_lost``)."""
        ending, self._ending = self._ending, None
        retried = super()._retry_worker_lost(*args)
        if not retried:
            self._ending = ending
        return retried

    def _success_was_stored(self) -> Any:
        """Forget the failure: the task had succeeded before its process was lost."""
        stored = super()._success_was_stored()
        if stored:
            self._ending = None
        return stored

    def _announce_revoked(self, *args: Any) -> Any:
        """Forget the failure: the task was terminated."""
        self._ending = None
        return super()._announce_revoked(*args)

    @property
    def _delivery(self) -> Delivery | None:
        """The channel of the message, or None for another transport."""
        channel = self.message.channel
        return channel if hasattr(channel, "note_failure") else None

    def _end(self, exc: BaseException, traceback: str | None) -> None:
        """Note the last failure; errors here must not stop Celery."""
        try:
            self._note_last(exc, traceback)
        except Exception:
            logger.exception("A failure of %s[%r] is kept without details", self.name, self.id)
            self._ending = Ending(f"failed: {type(exc).__name__}", {})

    def _note_last(self, exc: BaseException, traceback: str | None) -> None:
        message = self.message
        channel = self._delivery
        task = self.task
        if (
            channel is None
            or self._is_dead_lettered
            or self._is_killed
            or getattr(self, "_already_revoked", False)
            or getattr(self, "_already_cancelled", False)
            or isinstance(exc, (Retry, Ignore, Terminated, KeyboardInterrupt))
            or (isinstance(exc, Reject) and exc.requeue and task.acks_late)
        ):
            return
        if isinstance(exc, Reject):
            reason = "rejected" if exc.reason is None else described(exc.reason)
        elif (
            channel.settings.dead_letters
            and getattr(task, "dead_letter", True)
            and "queue" in own_of(message.properties)  # else it was not leased
        ):
            reason = None
        else:
            return
        context = self._context
        retries = context.retries or 0
        host, started = str(self.hostname), self.time_start
        details = details_of(exc, traceback, worker=host, retries=retries, started=started)
        details["deliveries"] = own_of(message.properties).get("deliveries", 1)
        attempts = attempts_of(task)
        if attempts is not None and attempts.policy_of(context) is not None:
            hold_chord(context)
        elif not isinstance(exc, Reject) or (TELLS_OF_REJECTS and not exc.requeue):
            details["told"] = True
        if reason is None:
            after = f" after {retries} {'retry' if retries == 1 else 'retries'}" if retries else ""
            reason = f"failed{after}: {details['exception']}: {details['message']}"
        self._ending = Ending(reason, details)

    def _note_ending(self) -> None:
        if self._ending is None or self.acknowledged:
            return
        ending, self._ending = self._ending, None
        self._is_dead_lettered = True
        if self._delivery is not None:
            tag, details = self.message.delivery_tag, pack_details(ending.details)
            self._delivery.note_failure(tag, reason=ending.reason, details=details)

    def _after_failure(self) -> None:
        """Make a dead letter of an early acknowledged message."""
        ending, self._ending = self._ending, None
        if ending is None or not self.acknowledged or self._is_dead_lettered:
            return
        self._is_dead_lettered = True
        message = self.message
        channel, tag = self._delivery, message.delivery_tag
        queue = own_of(message.properties).get("queue")
        if queue is None or channel is None:
            return
        data = delivery.packed(message._raw)
        channel.add_dead_letter_copy(
            tag, queue, str(self.id), ending.reason, data, pack_details(ending.details)
        )


def refuse_reserved() -> None:
    """Refuse revoked tasks that wait in this worker for a place in its pool.

    Celery refuses them when their turn comes. Until then they would have their unique keys, and
    another call would be kept back for a task that never runs.
    """
    for request in [*state.reserved_requests]:
        if isinstance(request, RequestMixin) and not request._is_given_to_pool:
            request.revoked()


def with_endings(task: Any, request_cls: Any) -> type:
    """Return a class of requests for ``Task.Request`` that dead-letters, and with the setting
    ``history`` also notes runs.
    """
    own = (task.app.conf.broker_transport_options or {}).get("delayq")
    history = isinstance(own, Mapping) and bool(own.get("history"))  # it is checked elsewhere
    mixins = (RunMixin, RequestMixin) if history else (RequestMixin,)
    return _mixed(mixins, symbol_by_name(request_cls))


@cache
def _mixed(mixins: tuple[type, ...], base: type) -> type:
    return type(base.__name__, (*mixins, base), {"__doc__": base.__doc__})
