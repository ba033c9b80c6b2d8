"""The consuming half of the channel: messages are leased in batches and handed out one by one.

``leases/acquire.lua`` takes the place of BRPOP and a later note in ``unacked``, between which a
message could be lost. Queues that do not last, and those consumed without acknowledgement, are
popped as on stock.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any
from uuid import uuid4

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str

from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.integration import worker
from celery_delayq.integration.endings import not_begun
from celery_delayq.integration.install import EVENTLET, change_consumer
from celery_delayq.integration.replace import make
from celery_delayq.model import delivery, envelope
from celery_delayq.model.delivery import HeldBy
from celery_delayq.store.leases import Mark
from celery_delayq.transport import qos
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.not_yet import NotYetChannel
from celery_delayq.transport.poller import STOPS_POLLING
from celery_delayq.transport.rejected import (
    MALFORMED,
    dropping_malformed,
    handle_or_refuse,
    log_refused,
)
from celery_delayq.transport.requests import Popped, Taken
from celery_delayq.transport.settle import log_undecodable
from celery_delayq.utils import message_json

logger = logging.getLogger(__name__)

#: Seconds for which an event loop hands out messages before it looks at what else there is.
MOMENT = 0.01


class ConsumeChannel(NotYetChannel):
    """A channel of kombu's that leases messages, and holds none in memory for having an ETA."""

    QoS = qos.QoS
    Message = qos.Message

    #: Whether the tasks of a Celery worker come through this channel, or have come.
    serves_worker = False

    #: The queues that are consumed whose messages are leased.
    leased_queues: frozenset[str] = frozenset()

    #: The connection on which a reply is awaited, kombu's word for it.
    _in_poll: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: By consumed queue: whether without acknowledgement, and the callback.
        self._consumers_of: dict[str, tuple[bool, Callable[[Any], Any]]] = {}
        self._fetcher = Fetcher(self)
        #: Acknowledgements and rejects that wait for the handler of a message to return.
        self._to_settle: deque[Callable[[], None]] = deque()
        self._is_handing_out = False
        #: Fetched messages of queues that were cancelled while a reply was awaited.
        self._unconsumed: list[Taken] = []
        super().__init__(*args, **kwargs)

    # -- who consumes what

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        if queue in self._fanout_queues:
            handle = dropping_malformed(callback)
            super().basic_consume(queue, no_ack, handle, consumer_tag, **kwargs)
            return
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._consumers_of[queue] = no_ack, callback
        self.serves_worker = self.serves_worker or worker.consumes_tasks(self.whole)
        self._fetcher.fair_share.forget([queue])
        self.leased_queues = frozenset(filter(self.leases_from, self.consumed))
        self._fetcher.idle.interrupt()
        if no_ack or not self.can_schedule(queue):
            return
        wakeup = self.connection.cycle.wakeup  # before other threads may give it
        if self.serves_worker:
            wakeup.give_for_signals()
            change_consumer()
        make(EVENTLET)  # the lease keeper logs in a thread
        self._begin(queue)

    def _begin(self, queue: str) -> None:
        """Note in Redis that a queue is consumed, and dispatch."""
        self.store.register(queue)
        _ = self.keeper  # claims a worker id, which a server that is full later would refuse
        self._fetcher.idle.ask_server()
        self.connection.start_dispatcher(self)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        self._consumers_of.pop(queue, None)
        self.leased_queues = frozenset(filter(self.leases_from, self.consumed))
        self._fetcher.idle.interrupt()
        self._fetcher.finish()
        self._give_back_unconsumed()
        return super()._basic_cancel(consumer_tag)

    def _give_back_unconsumed(self) -> None:
        """Give back fetched messages of queues that were cancelled.

        Not while a reply may bring more of them: each call puts its messages at the head, so those
        that came first go last, or with the others.
        """
        fetched = self._unconsumed + self._fetcher.take_all()
        self._fetcher.taken.extend(each for each in fetched if each.queue in self._consumers_of)
        self._unconsumed = [each for each in fetched if each.queue not in self._consumers_of]
        if not self._fetcher.is_awaiting:
            unconsumed, self._unconsumed = self._unconsumed, []
            self._give_back(unconsumed)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message of *queue*, leased unless *no_ack*, or None."""
        if no_ack or not self.ack_emulation or not self.can_schedule(queue):
            return super().basic_get(queue, no_ack=no_ack, **kwargs)
        keeper = self.keeper
        self.store.register(queue)
        while True:
            others = keeper.busy
            message_id = keeper.new_request_number(queue)
            reserved = self.store.leases.acquire(
                queue, keeper.worker_id, keeper.lease, message_id, 1, others
            )
            taken = self._fetcher.took(queue, message_id, reserved)
            if not taken and reserved.more and not reserved.room:
                continue  # a later request, of another thread, has overtaken this one
            if not taken:
                return None
            message = self._message(taken[0])
            if message is not None:
                return message

    @property
    def consumed(self) -> Collection[str]:
        """The queues that are consumed."""
        return self._consumers_of.keys()

    def leases_from(self, queue: str) -> bool:
        """Return whether messages of a consumed queue are leased, and not popped as on stock."""
        no_ack, _ = self._consumers_of.get(queue, (True, None))
        return not no_ack and self.ack_emulation and self.can_schedule(queue)

    def close(self) -> None:
        if self.closed:
            return
        self.connection.stop_dispatcher(self)
        self._closing = True
        keeper = self._keeper
        try:
            if keeper is not None:
                self._settle(keeper)
            super().close()
        finally:
            if keeper is not None:
                keeper.finish()
                keeper.leave()

    def _settle(self, keeper: LeaseKeeper) -> None:
        """Before closing, give back fetched messages and send acknowledgements."""
        lost = worker.lost_connection(self.whole)
        taken = self._unconsumed + self._fetcher.last(wait=not lost)
        if lost:
            # No message stands for these, so the keeper gives them back.
            keeper.orphan([each.tag for each in taken])
        else:
            if taken or self.qos._delivered:  # else nothing waits for a server that is silent
                with suppress(Exception):  # the keeper does
                    keeper.give_back_abandoned(self.store)
            self._give_back(taken)
            with suppress(Exception):  # the keeper sends them
                keeper.acks.drain(self.store)

    # -- leases

    def leased(self, tag: str) -> bool:
        """Return whether a delivery tag is that of a lease."""
        return self._keeper is not None and self._keeper.owns(tag)

    def acknowledge(self, tag: str) -> None:
        """Acknowledge a message: soon in a worker, else at once."""
        self.keeper.ack(tag)
        if self.connection is not None and not self.serves_worker:
            self.keeper.acks.flush(self.store)

    def settle_soon(self, method: Callable[..., Any], *args: Any) -> None:
        """Acknowledge or reject a leased message at once, or when its handler has returned.

        In a solo worker the handler runs the task: if the worker is killed meanwhile, the task is
        redelivered.
        """
        if self._is_handing_out and not self._fetcher.is_elsewhere:
            self._to_settle.append(partial(_settle_now, method, *args))
        else:
            _settle_now(method, *args)

    def on_credit(self) -> None:
        """Wake a poller that waits in another thread, since a message is done."""
        connection = self.connection  # another thread may close this channel
        if connection is not None and self._fetcher.is_elsewhere:
            connection.cycle.on_credit(self)

    # -- what the poller calls

    @property
    def is_settled(self) -> bool:
        """Whether the poller has nothing to send, connect or register for this channel."""
        if self.active_fanout_queues:
            listening = self._in_listen and self.subclient.connection
            if not (listening and listening._sock):
                return False
        if not self._consumers_of:
            return True
        if self._in_poll:
            return self._in_poll._sock is not None and self.qos.can_consume()
        return self._fetcher.is_content

    def _brpop_start(self, *_: Any, **__: Any) -> None:
        """Ask for the next messages."""
        self._fetcher.start()

    def _brpop_read(self, **_: Any) -> bool:
        """Read replies, and hand messages out."""
        if not self._in_poll:
            # So this is the end of the connection, and the next request makes another one.
            self.client.connection.disconnect()
            if STOPS_POLLING:
                raise ConnectionResetError("Redis has closed the connection")
            raise Empty()
        try:
            try:
                popped = self._fetcher.read()
            except self.connection_errors:
                # So that the next turn of the loop connects again.
                self._fetcher.lost()
                self.client.connection.disconnect()
                raise
        finally:
            self._in_poll = None
            if hasattr(self, "_flush_brpop_reauth"):  # kombu 5.7 and newer
                self._flush_brpop_reauth()
        if self._unconsumed:
            self._give_back_unconsumed()
        if popped is not None:
            self._deliver_popped(popped)
        elif not self._fetcher.taken:
            raise Empty()
        elif self.connection.cycle._in_protected_read:
            self.deliver_one()
        else:
            self.deliver()
        return True

    def _handle_message(self, client: Any, response: Any) -> Any:
        """Read a message of a fanout exchange; what is none of kombu's comes without its data."""
        payload = super()._handle_message(client, response)
        if payload["data"] and bytes_to_str(payload["type"]).endswith("message"):
            try:
                envelope.check_envelope(message_json.decode(payload["data"]))
            except Exception as exc:  # whoever may publish may send anything
                logger.warning("dropped from channel %r: %s", payload["channel"], exc)
                payload["data"] = None
        return payload

    # -- handing out

    def deliver_one(self) -> bool:
        """Hand out one fetched message; return whether there was one."""
        if not self._fetcher.taken:
            return False
        self._fetcher.ask_ahead()
        started = time.monotonic()
        self._hand_out(self._fetcher.taken.popleft())
        self._fetcher.batch.after(1, time.monotonic() - started)
        return True

    def deliver(self) -> None:
        """Hand out fetched messages in an event loop, for a moment at a time.

        TERM, heartbeats and remote control are not held up behind a batch.
        """
        fetcher = self._fetcher
        started = time.monotonic()
        number = 0
        while fetcher.taken and not self.closed and time.monotonic() - started <= MOMENT:
            fetcher.ask_ahead()
            self._hand_out(fetcher.taken.popleft())
            number += 1
        if number:
            fetcher.batch.after(number, time.monotonic() - started)
        if fetcher.taken:
            self.connection.cycle.wakeup.give()

    def _hand_out(self, taken: Taken) -> None:
        self._is_handing_out = True
        try:
            self._hand_to_consumer(taken)
        finally:
            self._is_handing_out = False
            while self._to_settle:
                self._to_settle.popleft()()

    def _hand_to_consumer(self, taken: Taken) -> None:
        _, callback = self._consumers_of.get(taken.queue, (False, None))
        if callback is None:
            self._unconsumed.append(taken)
            self._give_back_unconsumed()
            return
        message = self._message(taken)
        if message is None:
            return
        if taken.mark is not None:
            self._end_not_run(taken, taken.mark, message)
            return
        refuse = partial(self._refuse, taken.tag, message)
        # A lost connection to the broker is not seen here; to kombu a KeyError is one.
        if not handle_or_refuse(partial(self._put_off, taken), message, refuse, MALFORMED):
            handle_or_refuse(callback, message, refuse)

    def _refuse(self, tag: str, message: qos.Message, exc: Exception) -> None:
        """Make a dead letter of a message that a worker cannot handle."""
        why = log_refused(exc, by_worker=self.serves_worker)
        if not not_begun.refuse(message):
            return
        if tag in self.keeper.held:
            id = str(message.headers["id"]) if envelope.is_task(message._raw) else ""
            self.add_dead_letter(tag, id or f"refused-{uuid4()}", why)
        self.qos.forget(tag)

    def _end_not_run(self, taken: Taken, mark: Mark, message: qos.Message) -> None:
        """Report a message that does not run, and settle it: one that was skipped is a dead letter.

        Celery's worker gets none of them, since it may not know the task.
        """
        skipped = mark.why == "skipped"
        reason: str = mark.why
        if skipped:
            allowed = envelope.own_of(message.properties).get("skip_after")
            reason = f"skipped: {mark.late_ms} ms after it was due, at most {allowed} allowed"
        worker.report_not_run(message._raw, reason, may_be_replayed=skipped)
        if skipped:
            self.add_dead_letter(taken.tag, str(message.headers["id"]), reason)
            self.qos.forget(taken.tag)
        else:
            message.ack()

    def _message(self, taken: Taken) -> qos.Message | None:
        """Decode a leased message; None if it is undecodable or no longer held."""
        try:
            raw = message_json.decode(taken.message)
            envelope.check_envelope(raw)
            held = HeldBy(self.place, taken.queue, taken.tag)
            delivery.note_delivery(raw, held, sum(taken.deliveries) + 1, taken.promoted)
            message = self.Message(raw, channel=self)
        except Exception as exc:
            log_undecodable(taken.queue, taken.message, exc)
            self.add_dead_letter(taken.tag, f"undecodable-{uuid4()}", f"undecodable message: {exc}")
            return None
        if not self.keeper.handed_out(taken.tag, message):
            return None
        virtual.QoS.append(self.qos, message, taken.tag)
        return message

    def _deliver_popped(self, popped: Popped) -> None:
        """Hand out a message that is not leased."""
        queue, item = popped
        try:
            raw = message_json.decode(item)
            envelope.check_envelope(raw)
            no_ack, _ = self._consumers_of.get(queue, (True, None))
            due = None if no_ack or not self.can_schedule(queue) else self._due_later(queue, raw)
            entry = None if due is None else self._entry(raw, due)
        except Exception as exc:
            self.add_dead_letter_item(queue, item, exc)
            return
        if entry is not None:  # without ack emulation
            self.store.schedule(queue, entry)
        else:
            self.connection._deliver(raw, queue)

    def _give_back(self, taken: list[Taken]) -> None:
        """Put fetched messages back where they were, in the same order."""
        self.requeue((each.tag for each in taken), counted="nothing")


def _settle_now(method: Callable[..., Any], *args: Any) -> None:
    """Acknowledge or reject a message; an error must not keep the pool from running its task."""
    try:
        method(*args)
    except Exception:
        logger.exception("A message could not be acknowledged or rejected")
