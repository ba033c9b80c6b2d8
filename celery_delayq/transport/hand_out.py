"""Hands out leased messages, one after the other."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from kombu.transport import virtual

from celery_delayq.integration import worker
from celery_delayq.integration.endings import not_begun
from celery_delayq.model import delivery, envelope
from celery_delayq.model.delivery import LeasePlace
from celery_delayq.store.leases import Mark
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS
from celery_delayq.transport.consumer import Consumer, State
from celery_delayq.transport.deliveries import Deliveries
from celery_delayq.transport.put_off import PutOff
from celery_delayq.transport.qos import Message
from celery_delayq.transport.rejected import (
    MALFORMED_ERRORS,
    handle_or_refuse,
    log_refused,
    log_undecodable,
)
from celery_delayq.transport.requests import Taken
from celery_delayq.utils import message_json

logger = logging.getLogger(__name__)

#: Seconds for which an event loop hands out messages before it handles other events.
LOOP_TURN_SECONDS = 0.01


class HandOut:
    """Hands the messages that a consumer has leased to the callbacks of their queues.

    Parameters
    ----------
    consumer : Consumer
        Fetches the messages.
    deliveries : Deliveries
        Ends the deliveries.
    put_off : PutOff
        Schedules messages that must not start now.
    qos : QoS
        kombu's record of the messages that are handed out.
    database_id : str
        See :attr:`~celery_delayq.transport.channel.Channel.database_id`.
    handlers : Mapping[str, tuple[bool, Callable[[Any], Any]]]
        By consumed queue: whether without acknowledgement, and the callback for its messages.
    new_message : Callable[[dict[str, Any]], Message]
        Makes kombu's message object, which knows its channel.
    """

    def __init__(
        self,
        consumer: Consumer,
        deliveries: Deliveries,
        put_off: PutOff,
        qos: Any,
        database_id: str,
        handlers: Mapping[str, tuple[bool, Callable[[Any], Any]]],
        new_message: Callable[[dict[str, Any]], Message],
    ) -> None:
        self._handlers = handlers
        self._consumer = consumer
        self._deliveries = deliveries
        self._put_off = put_off
        self._qos = qos
        self._database_id = database_id
        self._new_message = new_message
        #: Acknowledgements and rejects that wait until a handler returns; None while none runs.
        self._to_settle: deque[Callable[[], None]] | None = None

    def hand_out_one(self) -> bool:
        """Hand out one message; return whether there was one."""
        taken = self._consumer.next()
        if taken is None:
            return False
        started = time.monotonic()
        self._hand_out(taken)
        self._consumer.batch_size.note_delivery(1, time.monotonic() - started)
        return True

    def hand_out_several(self) -> bool:
        """Hand out messages for :data:`LOOP_TURN_SECONDS`; return whether there are more.

        So TERM, heartbeats and remote control do not wait for a whole batch in an event loop.
        """
        consumer = self._consumer
        started = time.monotonic()
        number = 0
        while (
            consumer.state is not State.CLOSED and time.monotonic() - started <= LOOP_TURN_SECONDS
        ):
            taken = consumer.next()
            if taken is None:
                break
            self._hand_out(taken)
            number += 1
        if number:
            consumer.batch_size.note_delivery(number, time.monotonic() - started)
        return bool(consumer.taken)

    def settle_soon(self, method: Callable[..., Any], *args: Any) -> None:
        """Acknowledge or reject a leased message at once, or when its handler has returned.

        In a solo worker the handler runs the task. If the worker is killed meanwhile, the task is
        delivered again.
        """
        if self._to_settle is not None and not self._consumer.is_elsewhere:
            self._to_settle.append(partial(_settle, method, *args))
        else:
            _settle(method, *args)

    def message_of(self, taken: Taken) -> Message | None:
        """Decode a leased message; None if it is undecodable or no longer leased."""
        try:
            raw = message_json.decode(taken.message)
            envelope.check_envelope(raw)
            lease = LeasePlace(self._database_id, taken.queue, taken.tag)
            delivery.note_delivery(raw, lease, sum(taken.deliveries) + 1, taken.promoted)
            message = self._new_message(raw)
        except Exception as exc:
            log_undecodable(taken.queue, taken.message, exc)
            self._deliveries.add_dead_letter(
                taken.tag, f"undecodable-{uuid4()}", f"undecodable message: {exc}"
            )
            return None
        if not self._deliveries.keeper.note_handed_out(taken.tag, message):
            return None
        virtual.QoS.append(self._qos, message, taken.tag)
        return message

    def _hand_out(self, taken: Taken) -> None:
        to_settle = deque[Callable[[], None]]()
        outer, self._to_settle = self._to_settle, to_settle
        try:
            self._give(taken)
        finally:
            self._to_settle = outer
            while to_settle:
                to_settle.popleft()()

    def _give(self, taken: Taken) -> None:
        # Before any I/O: another greenlet may cancel the queue then.
        _, callback = self._handlers[taken.queue]
        message = self.message_of(taken)
        if message is None:
            return
        if taken.mark is not None:
            self._end_not_run(taken, taken.mark, message)
            return
        refuse = partial(self._refuse, taken.tag, message)
        # An OUTAGE_ERROR passes here. kombu also counts KeyError as a lost connection.
        put_off = partial(self._put_off.put_off, taken)
        try:
            is_put_off = handle_or_refuse(put_off, message, refuse, MALFORMED_ERRORS)
        except OUTAGE_ERRORS:
            # The next messages would wait for Redis too. The keeper requeues them when Redis is
            # back.
            fetched = self._consumer.take_all()
            self._deliveries.keeper.requeue_idle(each.tag for each in fetched)
            raise
        if not is_put_off:
            handle_or_refuse(callback, message, refuse)

    def _refuse(self, tag: str, message: Message, exc: Exception) -> None:
        """Make a dead letter of a message that a worker cannot handle."""
        why = log_refused(exc, by_worker=self._consumer.serves_worker)
        if not not_begun.refuse(message):
            return
        if tag in self._deliveries.keeper.leased:
            id = str(message.headers["id"]) if envelope.is_task(message._raw) else ""
            self._deliveries.add_dead_letter(tag, id or f"refused-{uuid4()}", why)
        self._qos.forget(tag)

    def _end_not_run(self, taken: Taken, mark: Mark, message: Message) -> None:
        """Report a message that does not run, and settle it; a skipped one is a dead letter.

        Celery's worker gets no such message, since the worker may not know the task.
        """
        skipped = mark.why == "skipped"
        reason: str = mark.why
        if skipped:
            allowed = envelope.own_of(message.properties).get("skip_after")
            reason = f"skipped: {mark.late_ms} ms after it was due, at most {allowed} allowed"
        worker.report_not_run(message._raw, reason, may_be_replayed=skipped)
        if skipped:
            self._deliveries.add_dead_letter(taken.tag, str(message.headers["id"]), reason)
            self._qos.forget(taken.tag)
        else:
            message.ack()


def _settle(method: Callable[..., Any], *args: Any) -> None:
    """Acknowledge or reject a message. An error must not keep the pool from its task."""
    try:
        method(*args)
    except Exception:
        logger.exception("A message could not be acknowledged or rejected")
