"""Schedules received messages that have a future ETA, whose task is paused, or that lack the mark
of their limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu.serialization import prepare_accept_content

from celery_delayq.errors import CommandRefused, InvalidLimit, RecordError, StoreFull
from celery_delayq.integration.pauses_and_revokes import Controls
from celery_delayq.model import envelope
from celery_delayq.model.envelope import LIMIT_FIELD, PROPERTY, Due
from celery_delayq.model.limits.of_app import LimitedTask
from celery_delayq.model.payload import body_of
from celery_delayq.model.task_options import check_body
from celery_delayq.store.leases import WhenDue
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS
from celery_delayq.store.scripting.runner import is_fault_of_script
from celery_delayq.store.store import Store
from celery_delayq.transport.deliveries import Deliveries
from celery_delayq.transport.publisher import Publisher, entry_of_received
from celery_delayq.transport.qos import Message
from celery_delayq.transport.requests import Taken
from celery_delayq.utils import message_json

#: ms from now up to which the last message that was put off may be due. A later due means that the
#: clock was set back.
MAX_CLOCK_SET_BACK_MS = 60_000


class PutOff:
    """Schedules leased messages that must not start now.

    Parameters
    ----------
    store : Store
        The store.
    deliveries : Deliveries
        Ends the deliveries.
    publisher : Publisher
        Decides whether an ETA is worth scheduling.
    controls : Controls
        Knows the paused tasks.
    limited : Mapping[str, LimitedTask]
        The tasks with limits by name.
    qos : QoS
        kombu's record of the messages that are handed out.
    """

    def __init__(
        self,
        store: Store,
        deliveries: Deliveries,
        publisher: Publisher,
        controls: Controls,
        limited: Mapping[str, LimitedTask],
        qos: Any,
    ) -> None:
        self._store = store
        self._deliveries = deliveries
        self._publisher = publisher
        self._controls = controls
        self._limited = limited
        self._qos = qos
        #: Due of the last message that was put off at once, in ms since 1970.
        self._last_due_at = 0

    def put_off(self, taken: Taken, message: Message) -> bool:
        """Schedule a message that must not start now; return whether it was scheduled.

        Raises
        ------
        RecordError
            The scripts cannot store this message.
        """
        try:
            return (
                self._by_limit(taken, message)
                or self._by_eta(taken, message)
                or self._by_pause(taken, message)
            )
        except (*OUTAGE_ERRORS, CommandRefused, StoreFull) as exc:
            if is_fault_of_script(exc):
                raise RecordError(f"it cannot be scheduled: {exc}") from exc
            # No task works on the message, though the error keeps its object alive: the keeper
            # requeues it.
            self._deliveries.note_cancelled(taken.tag)
            self._qos.forget(taken.tag)
            self._deliveries.keeper.requeue_idle([taken.tag])
            raise

    def _by_pause(self, taken: Taken, message: Message) -> bool:
        """Schedule a message whose task is paused; return whether it was scheduled."""
        paused = self._controls.paused
        if not paused or message.headers.get("task") not in paused:
            return False
        raw = message_json.decode(taken.message)
        if not envelope.is_task(raw):
            return False
        self._schedule(taken, raw, self._due_now(raw), "keep")
        return True

    def _by_limit(self, taken: Taken, message: Message) -> bool:
        """Schedule a message whose task has a limit, and that has no mark of it.

        A stock producer sent such a message, or an app that does not know the task's limit.

        Raises
        ------
        RecordError
            The limit has no key for the arguments, or cannot hold for the task.
        """
        limited = self._limited.get(message.headers.get("task")) if self._limited else None
        if limited is None or envelope.limit_of(taken.message) is not None:
            return False
        raw = message_json.decode(taken.message)
        if not envelope.is_task(raw):
            return False
        try:
            accept = prepare_accept_content(limited.task.app.conf.accept_content)
            body = body_of(raw, accept)
            check_body(*body)
        except Exception:  # a body may be anything
            return False  # Celery reports its own error
        try:
            lane = limited.check().lane_of(*body[:2])
        except InvalidLimit as exc:
            raise RecordError(str(exc)) from exc
        properties = raw["properties"]
        properties[PROPERTY] = {**envelope.own_of(properties), LIMIT_FIELD: lane}
        self._schedule(taken, raw, self._due_now(raw), "keep")
        return True

    def _due_now(self, raw: Mapping[str, Any]) -> Due:
        """Return the due time of a message that is put off at once; a later ETA counts.

        Each is due 1 ms after the one before, so that they keep their order.
        """
        now = self._store.now_ms()
        is_set_back = self._last_due_at - now > MAX_CLOCK_SET_BACK_MS
        self._last_due_at = now if is_set_back else max(self._last_due_at + 1, now)
        due = envelope.due_of(raw) or Due(0)
        return Due(max(self._last_due_at, due.ms))

    def _by_eta(self, taken: Taken, message: Message) -> bool:
        """Schedule a message that a stock producer sent with a future ETA.

        A message whose due has passed loses its ETA, since the worker would keep the message in
        memory and raise prefetch.
        """
        due = self._publisher.due_later(self._store, message._raw)
        if due is None:
            return False
        # The original message, without the data of this delivery.
        if self._schedule(taken, message_json.decode(taken.message), due, "leave"):
            return True
        message.properties[envelope.PROPERTY]["eta"] = message.headers["eta"]
        message.headers["eta"] = None
        return False

    def _schedule(self, taken: Taken, raw: dict[str, Any], due: Due, when_due: WhenDue) -> bool:
        """Schedule a leased message in its own place; return whether its lease has ended."""
        queue, keeper = taken.queue, self._deliveries.keeper
        entry, head = entry_of_received(self._store, raw, due), envelope.head_of(taken.message)
        call = self._store.leases.replace_call(
            queue,
            entry,
            queue,
            keeper.worker_id,
            keeper.field(taken.tag),
            head=head,
            when_due=when_due,
        )
        if self._store.run(call) == b"due":
            return False
        self._qos.ack(taken.tag)
        return True
