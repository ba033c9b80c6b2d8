"""Settle the message of an ended task where Celery's own settling is not enough.

A task that has failed for good becomes a dead letter. With late acks the dead letter replaces the
acknowledgement in one step. With early acks the message is already deleted, and a copy is stored.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib import import_module
from typing import Any, NamedTuple
from weakref import ref

import celery
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Ignore, Reject, Retry
from celery.worker import state
from kombu.utils.imports import symbol_by_name

from celery_delayq.integration.endings.request_state import NEXT_STATES, EndedBy, RequestState
from celery_delayq.integration.endings.result_backend import is_reported
from celery_delayq.integration.endings.run_history import RequestBase, RunMixin
from celery_delayq.integration.interrupts import SHUTDOWN_GUARD
from celery_delayq.integration.pauses_and_revokes import REVOKED_CANVASES
from celery_delayq.integration.retries import attempts_of, hold_chord
from celery_delayq.model import delivery
from celery_delayq.model.broker import Deliveries, deliveries_of
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.dead_letter import CHORD_NOTIFIED_FIELD, details_of, pack_details
from celery_delayq.model.envelope import own_of
from celery_delayq.model.task_options import check_body, check_received
from celery_delayq.utils.text import described

logger = logging.getLogger(__name__)

#: Whether Celery notifies the chord of a task that rejects its message (from 5.7).
CELERY_NOTIFIES_CHORDS = celery.VERSION >= (5, 7)

#: Locked while a request changes its state.
_STATE_LOCK = threading.Lock()


class Ending(NamedTuple):
    """Why a task's message becomes a dead letter."""

    reason: str
    details: dict[str, Any]


class RequestMixin(RequestBase):
    """Reports to the deliveries why a task's message is about to be requeued or rejected."""

    acknowledged: bool
    _already_cancelled: bool
    #: Changed by :meth:`change_state`.
    delayq_state = RequestState.WAITING
    _ended_by: EndedBy | None = None
    #: Why the message becomes a dead letter at its acknowledgement.
    _ending: Ending | None = None
    _is_dead_lettered = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap ``on_success`` of Celery's own request classes, which do not call ``super()``."""
        super().__init_subclass__(**kwargs)
        if "on_success" in cls.__dict__:
            cls.on_success = _detect_crashes(cls.on_success)

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        # At this point everything in the message was read, for each protocol and producer.
        check_received(self._request_dict)
        check_body(*self._payload)
        message.delayq_request = ref(self)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Record the failure, and do what Celery does."""
        exc = _exception_of(exc_info)
        if self._was_ended_by_celery(exc):
            state.task_ready(self)
            return None
        self._record_failure(exc, exc_info.traceback)
        if not isinstance(exc, Exception):
            # For Celery, treat the exception as the loss of the process.
            crash = WorkerLostError(f"The task has raised {exc!r}, which would end its process")
            crash.__cause__ = exc
            exc_info = _info_of(crash)
            exc = crash
        deliveries = self._deliveries
        if deliveries is not None and isinstance(exc, WorkerLostError):
            known = {} if self._ending is None else self._ending.details
            # A requeued message has not ended, and no chord was notified.
            details = {name: value for name, value in known.items() if name != CHORD_NOTIFIED_FIELD}
            deliveries.note_failure(
                self.message.delivery_tag, crashed=True, details=pack_details(details)
            )
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        except Exception:
            # Celery raises a task's MemoryError again, to end a worker without memory. Notifying
            # chords and the result backend may also fail if headers are wrong. Without this
            # acknowledgement, a worker that goes on would keep the message leased for ever.
            self.acknowledge()
            raise
        finally:
            self._add_early_dead_letter()

    def on_accepted(self, *args: Any) -> None:
        """Do what Celery does, and log errors.

        An error raised here would keep threads and greenlets from running the task.
        """
        self.change_state(RequestState.BEGUN)
        if self.delayq_state is RequestState.REFUSED:
            raise RuntimeError(f"{self.name}[{self.id!r}] does not begin: the worker refused it")
        try:
            super().on_accepted(*args)
        except Exception:
            logger.exception("The start of %s[%r] is not reported", self.name, self.id)
            if not self.task.acks_late:
                self.acknowledge()

    def send_event(self, *args: Any, **fields: Any) -> None:
        """Send an event. An error is logged and does not change the state of the message."""
        try:
            super().send_event(*args, **fields)
        except Exception:
            logger.exception("An event of %s[%r] is not sent", self.name, self.id)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Record a hard time limit, and do what Celery does."""
        if not soft:
            self._record_failure(TimeLimitExceeded(timeout), None)
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft:
                self._add_early_dead_letter()

    def revoked(self) -> Any:
        """Return whether the task must not run: it is revoked, or its canvas is cancelled."""
        if len(REVOKED_CANVASES) and not self.acknowledged:
            own = own_of(self.message.properties)
            canvases = Canvas.all_of(self._request_dict, own)
            if any(canvas in REVOKED_CANVASES for canvas in canvases):
                state.revoked.add(self.id)
        return super().revoked()

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> Any:
        """End the task. Its message is requeued when the channel closes."""
        # Set first, because the task may die at any moment. To Celery a killed greenlet looks
        # successful, and a killed solo task looks failed.
        if pool.is_green or isinstance(pool, SoloPool):
            self._ended_by = EndedBy.CANCEL
        ends = True
        try:
            return super().cancel(pool, *args, **kwargs)
        except NotImplementedError:  # this pool cannot end the task, which continues to run
            ends = False
            raise
        finally:
            if ends:
                self._already_cancelled = self._already_cancelled or bool(self.time_start)
                if self._deliveries is not None:
                    self._deliveries.note_cancelled(self.message.delivery_tag)

    def terminate(self, *args: Any, **kwargs: Any) -> Any:
        """End the task because it is revoked."""
        self._ended_by = self._ended_by or EndedBy.REVOKE  # first: the greenlet may end at once
        return super().terminate(*args, **kwargs)

    def acknowledge(self) -> None:
        """Acknowledge or dead-letter the message. Do nothing if the message is requeued."""
        if self._ended_by is EndedBy.CANCEL:
            return
        if self._ending is None or self.acknowledged:
            super().acknowledge()
            return
        # Not `reject`, which sends `task-rejected`: for monitors the task has failed.
        self._send_ending()
        self._on_reject(logger, self.connection_errors, False)
        self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:
        """Reject the message. A requeued message does not become a dead letter.

        With early acks nothing is requeued, because the message is already acknowledged.
        """
        if requeue and self.task.acks_late:
            self._ending = None
        else:
            self._send_ending()
        super().reject(requeue=requeue)

    def change_state(self, state: RequestState) -> bool:
        """Change the state if the transition is allowed; return whether the task is in *state*.

        Any thread may call this.
        """
        with SHUTDOWN_GUARD, _STATE_LOCK:
            if state in NEXT_STATES[self.delayq_state]:
                self.delayq_state = state
            return self.delayq_state is state

    def make_dead_letter(self, reason: str) -> None:
        """Make a dead letter of the message."""
        if not self.acknowledged:
            self._ending = Ending(reason, {})
            self.reject()

    def _retry_worker_lost(self, *args: Any) -> Any:
        """Drop the failure if the task is retried (Celery 5.7's ``retry_on_worker_lost``)."""
        ending, self._ending = self._ending, None
        retried = super()._retry_worker_lost(*args)
        if not retried:
            self._ending = ending
        return retried

    def _success_was_stored(self) -> Any:
        """Drop the failure if the task succeeded before its process was lost."""
        stored = super()._success_was_stored()
        if stored:
            self._ending = None
        return stored

    def _announce_revoked(self, *args: Any) -> Any:
        """Drop the failure: the task was terminated."""
        self._ending = None
        return super()._announce_revoked(*args)

    def _was_ended_by_celery(self, exc: BaseException) -> bool:
        """Return whether a failure is only the end of a task that Celery cancelled or terminated.

        The message of such a task is requeued or acknowledged.
        """
        if not isinstance(exc, Exception):
            return bool(self._already_cancelled or self._already_revoked)
        goes_back = self._already_cancelled and self.task.acks_late
        return goes_back and not isinstance(exc, (Ignore, Reject, Retry))

    @property
    def _deliveries(self) -> Deliveries | None:
        """The object that ends the delivery of the message. None for another transport."""
        return deliveries_of(self.message.channel, self.message.delivery_tag)

    def _record_failure(self, exc: BaseException, traceback: str | None) -> None:
        """Record why the message becomes a dead letter, if it does. Errors are logged."""
        try:
            if self._becomes_dead_letter(exc):
                self._ending = self._ending_of(exc, traceback)
        except Exception:
            logger.exception("A failure of %s[%r] is kept without details", self.name, self.id)
            self._ending = Ending(f"failed: {type(exc).__name__}", {})

    def _becomes_dead_letter(self, exc: BaseException) -> bool:
        deliveries = self._deliveries
        if (
            deliveries is None
            or self._is_dead_lettered
            or self._ended_by is EndedBy.CANCEL
            or getattr(self, "_already_revoked", False)
            or getattr(self, "_already_cancelled", False)
            or isinstance(exc, (Retry, Ignore, Terminated))
        ):
            return False
        if isinstance(exc, Reject):
            return not (exc.requeue and self.task.acks_late)
        is_leased = "queue" in own_of(self.message.properties)
        wants_dead_letter = getattr(self.task, "dead_letter", True)
        return bool(deliveries.settings.dead_letters and wants_dead_letter and is_leased)

    def _ending_of(self, exc: BaseException, traceback: str | None) -> Ending:
        context = self._context
        retries = context.retries or 0
        host, started = str(self.hostname), self.time_start
        details = details_of(exc, traceback, worker=host, retries=retries, started=started)
        details["deliveries"] = own_of(self.message.properties).get("deliveries", 1)
        attempts = attempts_of(self.task)
        if attempts is not None and attempts.policy_of(context) is not None:
            hold_chord(context)
        elif _celery_notifies_chord(exc):
            details[CHORD_NOTIFIED_FIELD] = True
        if isinstance(exc, Reject):
            return Ending("rejected" if exc.reason is None else described(exc.reason), details)
        after = f" after {retries} {'retry' if retries == 1 else 'retries'}" if retries else ""
        return Ending(f"failed{after}: {details['exception']}: {details['message']}", details)

    def _send_ending(self) -> None:
        if self._ending is None or self.acknowledged:
            return
        ending, self._ending = self._ending, None
        self._is_dead_lettered = True
        if self._deliveries is not None:
            tag, details = self.message.delivery_tag, pack_details(ending.details)
            self._deliveries.note_failure(tag, reason=ending.reason, details=details)

    def _add_early_dead_letter(self) -> None:
        """Add a dead letter for a message that was acknowledged early."""
        ending, self._ending = self._ending, None
        if ending is None or not self.acknowledged or self._is_dead_lettered:
            return
        self._is_dead_lettered = True
        message = self.message
        deliveries, tag = self._deliveries, message.delivery_tag
        queue = own_of(message.properties).get("queue")
        if queue is None or deliveries is None:
            return
        data = delivery.pack_received(message._raw)
        deliveries.add_dead_letter_copy(
            tag, queue, str(self.id), ending.reason, data, pack_details(ending.details)
        )


def refuse_reserved() -> None:
    """Refuse revoked tasks that wait in this worker for a place in its pool.

    Celery would refuse them only when their turn comes. Until then each would keep its unique key,
    and a new call would be dropped in favour of a task that never runs.
    """
    for request in [*state.reserved_requests]:
        if isinstance(request, RequestMixin) and request.delayq_state is RequestState.WAITING:
            request.revoked()


def _celery_notifies_chord(exc: BaseException) -> bool:
    """Return whether Celery tells the chord of a task that it has failed with *exc*."""
    if isinstance(exc, Reject) and (exc.requeue or not CELERY_NOTIFIES_CHORDS):
        return False
    return is_reported(exc)


def _exception_of(exc_info: Any) -> BaseException:
    exc: BaseException = exc_info.exception
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc


def _info_of(exc: BaseException) -> ExceptionInfo:
    try:
        raise exc
    except BaseException:
        return ExceptionInfo()


def _detect_crashes(on_success: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``on_success`` to detect crashes that end no process in thread and greenlet pools.

    ``celery.concurrency.base.apply_target`` reports a BaseException in place of a result. A killed
    greenlet is reported as a success without a run time.
    """

    @wraps(on_success)
    def on_success_or_crash(self: RequestMixin, result: Any, **kwargs: Any) -> Any:
        if isinstance(result, ExceptionInfo):
            # `apply_target` raises its own error while it handles that of the task.
            crash = _exception_of(result)
            return self.on_failure(_info_of(crash.__context__ or crash))
        failed, retval, _ = result
        is_killed = failed is False  # only for a killed greenlet; other tasks have 0 or 1
        if is_killed and not self._ended_by:
            return self.on_failure(_info_of(import_module("greenlet").GreenletExit()))
        if failed and not isinstance(_exception_of(retval), Exception):
            return self.on_failure(retval)
        return on_success(self, result, **kwargs)

    return on_success_or_crash


def add_endings(task: Any, request_cls: Any) -> type:
    """Return a class for ``Task.Request`` that makes dead letters of failed tasks.

    With the setting ``history`` the class also records runs.
    """
    own = (task.app.conf.broker_transport_options or {}).get("delayq")
    history = isinstance(own, Mapping) and bool(own.get("history"))  # validated elsewhere
    mixins = (RunMixin, RequestMixin) if history else (RequestMixin,)
    return _mixed(mixins, symbol_by_name(request_cls))


@cache
def _mixed(mixins: tuple[type, ...], base: type) -> type:
    return type(base.__name__, (*mixins, base), {"__doc__": base.__doc__})
