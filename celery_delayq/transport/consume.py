"""The consuming half of the channel: kombu's BRPOP, and what is done to a message on arrival."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any
from uuid import uuid4

from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from celery_delayq import message as envelope
from celery_delayq.errors import InvalidETA
from celery_delayq.message import Entry
from celery_delayq.store import Held
from celery_delayq.transport.publish import PublishChannel

logger = logging.getLogger(__name__)


class QoS(stock.QoS):
    """kombu's record of what a worker holds, kept by scripts: a full server refuses kombu's own."""

    def append(self, message: virtual.Message, delivery_tag: str) -> None:
        delivery = message.delivery_info
        value = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
        self.channel.store.hold(self.channel.held(delivery_tag), time.time(), value)
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self.channel.store.ack(self.channel.held(delivery_tag))
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            super().reject(delivery_tag, requeue=True)
        else:
            self.ack(delivery_tag)


class ConsumeChannel(PublishChannel):
    """A channel of kombu's that holds no message in worker memory for having an ETA."""

    QoS = QoS

    _dispatching = False

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if queue in self._fanout_queues:
            return
        self.connection._callbacks[queue] = partial(self._arrive, queue, no_ack, callback)
        if not no_ack and self.can_schedule(queue) and not self._dispatching:
            self._dispatching = True
            self.connection.start_dispatcher(self)

    def close(self) -> None:
        if self._dispatching:
            self._dispatching = False
            self.connection.stop_dispatcher()
        super().close()

    def _brpop_read(self, **options: Any) -> bool:
        """Read the reply of BRPOP and deliver what it holds.

        As in kombu, but an item that is no message becomes a dead letter: it has left the
        ready list, and an error here would stop the worker.
        """
        try:
            try:
                reply = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:
                # So that the next turn of the loop connects again.
                self.client.connection.disconnect()
                raise
            if not reply:
                raise Empty()
            key, item = reply
            queue = key.decode().rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            try:
                raw = loads(item)
                envelope.check_envelope(raw)
            except ValueError as exc:
                self._bury(queue, item, exc)
                return True
            self.connection._deliver(raw, queue)
            return True
        finally:
            self._in_poll = None
            if hasattr(self, "_flush_brpop_reauth"):  # kombu 5.7 and newer
                self._flush_brpop_reauth()

    def _arrive(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], raw: dict[str, Any]
    ) -> Any:
        """Pass a message on, unless it has to wait: then into the schedule with it."""
        try:
            message = self.Message(raw, channel=self)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            return self._bury(queue, envelope.encode(raw), exc)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
            if self._adopt(queue, message, raw):
                return None
        return callback(message)

    def _adopt(self, queue: str, message: virtual.Message, raw: dict[str, Any]) -> bool:
        """Move a message that a stock producer sent with a future ETA to the schedule.

        It is in ``unacked`` by now, so a crash at any moment leaves it in one place. A message
        whose moment has passed loses its ETA: the worker would park it and raise prefetch.
        """
        if not self.can_schedule(queue):
            return False
        try:
            due = envelope.due_of(raw)
        except InvalidETA:
            return False  # Celery rejects it, with its own error in the log
        if due is None or self._is_short(due):
            return False
        step = self.priority(self._get_message_priority(raw, reverse=False))
        entry = Entry.of(raw, step, due)
        if not self.ack_emulation:
            self.store.schedule(queue, entry)
        elif (
            self.store.adopt(queue, entry, self.held(message.delivery_tag), hand_out=False) == "due"
        ):
            message.properties[envelope.PROPERTY]["eta"] = message.headers["eta"]
            message.headers["eta"] = None
            return False
        virtual.QoS.ack(self.qos, message.delivery_tag)
        return True

    def held(self, tag: str) -> Held:
        """Return where kombu keeps the message *tag* while a worker holds it."""
        stock_name = self.store.keys.stock
        return Held(stock_name(self.unacked_key), stock_name(self.unacked_index_key), tag)

    def _bury(self, queue: str, item: bytes, exc: Exception) -> None:
        logger.error(
            "An undecodable message in queue %r is now a dead letter: %s: %r",
            queue,
            exc,
            item[:200],
        )
        self.store.bury(queue, f"undecodable-{uuid4()}", f"undecodable message: {exc}", item)
