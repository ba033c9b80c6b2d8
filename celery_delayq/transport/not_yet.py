"""Puts messages back into the schedule that have a future ETA, or whose task is paused."""

from __future__ import annotations

from typing import Any

from celery_delayq.dispatch.acks import LOST
from celery_delayq.errors import CommandRefused, InvalidETA, RecordError, StoreFull
from celery_delayq.model import envelope
from celery_delayq.model.envelope import Due, Entry
from celery_delayq.model.task_options import check_own
from celery_delayq.store.leases import WhenDue
from celery_delayq.store.scripting.runner import is_fault_of_script
from celery_delayq.transport import qos
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.requests import Taken
from celery_delayq.transport.settle import SettleChannel
from celery_delayq.utils import message_json

#: ms by which the last message of a paused task may be due later than now: more is a clock that was
#: set back.
SET_BACK_MS = 60_000


class NotYetChannel(SettleChannel):
    """A channel that schedules received messages with a future ETA, or of a paused task."""

    _fetcher: Fetcher

    @property
    def fetched(self) -> int:
        """How many messages are here, or may come, that are not handed out."""
        return self._fetcher.waiting

    def credit_for(self, credit: int, _has_more: bool) -> int:
        """Return for how many of the messages that may be taken to ask now."""
        return credit

    @property
    def asks_for_each(self) -> bool:
        """Whether Celery wants to be asked for each message (``worker_disable_prefetch``)."""
        return "can_consume" in vars(self.qos)

    #: ms since 1970 at which the last message was paused and due.
    _paused_due_at = 0

    def _put_off(self, taken: Taken, message: qos.Message) -> bool:
        """Schedule a message that must not start now; return whether it was scheduled.

        Raises
        ------
        RecordError
            The scripts cannot store this message.
        """
        try:
            return self._put_off_eta(taken, message) or self._put_off_paused(taken, message)
        except (*LOST, CommandRefused, StoreFull) as exc:
            if is_fault_of_script(exc):
                raise RecordError(f"it cannot be scheduled: {exc}") from exc
            # No task works on it, though the error keeps it alive: the keeper gives it back.
            self.note_cancelled(taken.tag)
            self.qos.forget(taken.tag)
            self.keeper.orphan([taken.tag])
            raise

    def _put_off_paused(self, taken: Taken, message: qos.Message) -> bool:
        """Put a message whose task is paused back into the schedule."""
        paused = self._fetcher.controls.paused
        if not paused or message.headers.get("task") not in paused:
            return False
        raw = message_json.decode(taken.message)
        if not envelope.is_task(raw):
            return False
        # One after the other, so that they go on in the order in which they came.
        now = self.store.now_ms()
        is_set_back = self._paused_due_at - now > SET_BACK_MS
        self._paused_due_at = now if is_set_back else max(self._paused_due_at + 1, now)
        due = envelope.due_of(raw) or Due(0)  # not long to go: else it is in the schedule by now
        self._schedule(taken, raw, Due(max(self._paused_due_at, due.ms)), "keep")
        return True

    def _put_off_eta(self, taken: Taken, message: qos.Message) -> bool:
        """Move a message that a stock producer sent with a future ETA to the schedule.

        A message whose moment has passed loses its ETA: the worker would keep it in memory and
        raise prefetch.
        """
        due = self._due_later(taken.queue, message._raw)
        if due is None:
            return False
        # The message as it came, without the data of this delivery.
        if self._schedule(taken, message_json.decode(taken.message), due, "leave"):
            return True
        message.properties[envelope.PROPERTY]["eta"] = message.headers["eta"]
        message.headers["eta"] = None
        return False

    def _schedule(self, taken: Taken, raw: dict[str, Any], due: Due, when_due: WhenDue) -> bool:
        """Schedule a held message in place of itself; return whether it is not held any more."""
        queue, worker_id, field = taken.queue, self.keeper.worker_id, self.keeper.field(taken.tag)
        entry, head = self._entry(raw, due), envelope.head_of(taken.message)
        call = self.store.leases.replace_call(
            queue, entry, queue, worker_id, field, head=head, when_due=when_due
        )
        if self.store.run(call) == b"due":
            return False
        self.qos.ack(taken.tag)
        return True

    def _due_later(self, queue: str, raw: dict[str, Any]) -> Due | None:
        """Return the ETA of a message that must be scheduled, or None."""
        try:
            due = envelope.due_of(raw)
        except InvalidETA:
            return None  # Celery rejects it, with its own error in the log
        return None if due is None or self._is_short(queue, due) else due

    def _entry(self, raw: dict[str, Any], due: Due) -> Entry:
        check_own(raw["properties"])
        step = self.priority(self._get_message_priority(raw, reverse=False))
        return Entry.of(raw, step, due)
