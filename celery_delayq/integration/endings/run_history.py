"""Write one line for each ended run to the history.

With late acks the line is sent with the acknowledgement of the message: Redis stores both or
neither. With early acks the message is already acknowledged, and the line is sent alone.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from billiard.exceptions import Terminated
from celery import states
from celery._state import get_current_task

from celery_delayq.errors import InvalidETA
from celery_delayq.integration.endings.request_state import EndedBy
from celery_delayq.model.broker import is_leased
from celery_delayq.model.envelope import PROPERTY, due_of_eta
from celery_delayq.model.history import SUCCEEDED, Ending, RunRecord, reason_of

logger = logging.getLogger(__name__)

#: The base of mixins for requests. For mypy it has any attribute, like Celery's untyped classes.
RequestBase: Any = object


class RunMixin(RequestBase):
    """Records how each run of a task ends. Used only with the setting ``history``, for speed.

    It comes before :class:`~celery_delayq.integration.endings.request.RequestMixin` in the bases.
    """

    _run_ending: Ending | None = None
    #: Whether the message was acknowledged before the end of the run, and the line is not sent.
    _is_early = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap ``on_success`` of Celery's own request classes, which do not call ``super()``."""
        if "on_success" in cls.__dict__:
            cls.on_success = _record_success(cls.on_success)
        super().__init_subclass__(**kwargs)

    def _record_failure(self, exc: BaseException, traceback: str | None) -> None:
        """Record a failure or a hard time limit."""
        if not isinstance(exc, Terminated):
            self._end_run(Ending.of(exc))
        super()._record_failure(exc, traceback)

    def _add_early_dead_letter(self) -> None:
        try:
            super()._add_early_dead_letter()
        finally:
            self._send_alone()

    def _announce_revoked(self, reason: str, *args: Any) -> Any:
        self._run_ending = Ending(states.REVOKED, reason)
        try:
            return super()._announce_revoked(reason, *args)
        finally:
            self._send_alone()

    def _retry_worker_lost(self, exc: BaseException, *args: Any) -> Any:
        """Drop the failure if the task is retried (Celery 5.7's ``retry_on_worker_lost``)."""
        before, self._run_ending = self._run_ending, Ending(states.RETRY, reason_of(exc))
        retried = super()._retry_worker_lost(exc, *args)
        if not retried:
            self._run_ending = before
        return retried

    def _success_was_stored(self) -> Any:
        """Drop the failure if the task succeeded before its process was lost."""
        stored = super()._success_was_stored()
        if stored:
            self._run_ending = SUCCEEDED
        return stored

    def acknowledge(self) -> None:
        """Acknowledge the message, and send its line with the acknowledgement."""
        if self._run_ending is None:
            self._is_early = True
        elif not self.acknowledged:
            self._send_with_settling()
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """Reject the message, and send its line with it, unless the message is requeued."""
        if not (requeue or self.acknowledged):
            self._send_with_settling()
        super().reject(requeue=requeue)

    def _end_run(self, ending: Ending) -> None:
        # After Celery ended the task, the outcome is unknown: a killed greenlet seems to succeed.
        was_ended = self._already_revoked or self._already_cancelled
        if not (was_ended or self._ended_by is EndedBy.CANCEL):
            self._run_ending = ending

    def _send_with_settling(self) -> None:
        """Send the line together with the end of the message, if the message is leased."""
        ending = self._run_ending
        message = self.message
        if ending is None or not is_leased(message.channel, message.delivery_tag):
            return
        leased_message = message.channel.deliveries.keeper.leased.get(message.delivery_tag)
        if leased_message is not None:
            leased_message.run = self._line(ending)

    def _send_alone(self) -> None:
        """Send the line of a run whose message was acknowledged early, if it was leased."""
        ending = self._run_ending
        if not self._is_early or ending is None:
            return
        self._is_early = False
        message = self.message
        if is_leased(message.channel, message.delivery_tag):
            message.channel.deliveries.keeper.acks.early_runs.add(self._line(ending))

    def _line(self, ending: Ending) -> bytes:
        try:
            return _packed(self._request_dict, self.type, self.time_start, ending)
        except Exception:
            logger.exception("A run of %s[%r] is missing in the history", self.name, self.id)
            return b""


def _record_success(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def on_success_and_record(self: Any, result: Any, **kwargs: Any) -> Any:
        if not result[0]:  # else `on_success` calls `on_failure`
            self._end_run(SUCCEEDED)
            if self._is_early:
                self._send_alone()
        return on_success(self, result, **kwargs)

    return on_success_and_record


def of_retry() -> bytes:
    """Return the line of the running task's run, which has just sent its retry."""
    task = get_current_task()
    try:
        request = task.request
        ending = Ending(states.RETRY, reason_of(sys.exc_info()[1]))
        return _packed(request, task.name, request.get("started"), ending)
    except Exception:
        logger.exception("A run of %s is missing in the history", getattr(task, "name", task))
        return b""


def _packed(request: Any, task: str, started: float | None, ending: Ending) -> bytes:
    """Return the line of a run that ends now. *started* is in seconds since 1970."""
    own = request.get("properties")[PROPERTY]
    run = RunRecord(
        request.get("id"),
        task,
        own["queue"],
        request.get("hostname"),
        due_ms(own),
        own.get("promoted"),
        None if started is None else int(started * 1000),
        int(time.time() * 1000),
        ending.state,
        request.get("retries") or 0,
        own.get("deliveries", 1),
        ending.reason,
    )
    return run.pack()


def due_ms(own: Mapping[str, Any]) -> int | None:
    """Return the due time of an entry (ms since 1970), from our own data in its message."""
    try:
        return None if own.get("eta") is None else due_of_eta(own["eta"]).ms
    except InvalidETA:
        return None
