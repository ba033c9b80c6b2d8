"""The consuming half of the channel: kombu's BRPOP, and what is done to a message on arrival.

While a list has one message now and then, BRPOP brings it. When there are more, ``take.lua``
takes several of the same list in the round trip that notes the first one as held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
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
from celery_delayq.transport.acks import Sender
from celery_delayq.transport.publish import PublishChannel

logger = logging.getLogger(__name__)

#: Delivering a message takes this many seconds at most where taking several at once is worth it.
QUICK = 0.002

#: Most messages to take at once.
MOST = 64


@dataclass(slots=True)
class BatchSize:
    """How many messages to take at once. No I/O.

    Twice as many each time while they go quickly, to the pool or through it; one at a time when
    one took long, so that a solo worker does not hold what another could run.
    """

    size: int = 1

    def after(self, count: int, seconds: float) -> None:
        """Learn from *count* messages that took *seconds* to deliver."""
        self.size = min(2 * self.size, MOST) if seconds <= count * QUICK else 1


class QoS(stock.QoS):
    """kombu's record of what a worker holds, without MULTI: a full server refuses that whole."""

    def append(self, message: virtual.Message, delivery_tag: str) -> None:
        """Note a message that was popped one by one."""
        delivery = message.delivery_info
        where = _behind(delivery["exchange"], delivery["routing_key"])
        self.channel.store.take(
            delivery["routing_key"],
            self.channel.held(delivery_tag),
            time.time(),
            where,
            envelope.encode(message._raw),
            [],
        )
        self.note(message, delivery_tag)

    def note(self, message: virtual.Message, delivery_tag: str) -> None:
        """Note, for this process only, a message that Redis has noted."""
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self.channel.release(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            super().reject(delivery_tag, requeue=True)
        else:
            self.ack(delivery_tag)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client, leftmost)
        except ValueError as exc:
            # One that cannot be read must not keep the others from coming back.
            self.channel.bury_held(tag, exc)


class ConsumeChannel(PublishChannel):
    """A channel of kombu's that holds no message in worker memory for having an ETA."""

    QoS = QoS

    _dispatching = False
    _acks: Sender | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Of each queue that is consumed: whether without acknowledgement, and by whom.
        self._takers: dict[str, tuple[bool, Callable[[Any], Any]]] = {}
        self._batch_size = BatchSize()
        super().__init__(*args, **kwargs)

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
        self._takers[queue] = no_ack, callback
        if not no_ack and self.can_schedule(queue) and not self._dispatching:
            self._dispatching = True
            self.connection.start_dispatcher(self)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        self._takers.pop(self._tag_to_queue.get(consumer_tag), None)
        return super()._basic_cancel(consumer_tag)

    def close(self) -> None:
        if self._dispatching:
            self._dispatching = False
            self.connection.stop_dispatcher()
        if self._acks is not None:
            try:
                self._acks.drain()
            except self.connection_errors:
                logger.debug("Acknowledgements went with the connection", exc_info=True)
        super().close()

    def release(self, delivery_tag: str) -> None:
        """Let Redis forget a message that was held: it has run, or is not to run."""
        if self._acks is None or self._acks.pool is not self.pool:
            self._acks = Sender(self.pool)
        held = self.held(delivery_tag)
        # In this order: an index without its message does no harm.
        commands = [("HDEL", held.unacked, held.tag), ("ZREM", held.unacked_index, held.tag)]
        self._acks.send(commands, wait=self._closing)

    def held(self, tag: str) -> Held:
        """Return where kombu keeps the message *tag* while a worker holds it."""
        stock_name = self.store.keys.stock
        return Held(stock_name(self.unacked_key), stock_name(self.unacked_index_key), tag)

    def bury_held(self, tag: str, exc: Exception) -> None:
        """Make a dead letter of a held message that cannot be read."""
        item = self.store.held_message(self.held(tag))
        if item is not None:
            self._bury(self.unacked_key, item, exc)
        self.release(tag)

    def _brpop_read(self, **options: Any) -> bool:
        """Read the reply of BRPOP, take more of the list if it is worth it, and deliver.

        An item that is no message becomes a dead letter: it has left the ready list, and an error
        here would stop the worker.
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
            ready, item = reply[0].decode(), reply[1]
            queue = ready.rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            no_ack, callback = self._takers.get(queue, (False, None))
            if no_ack and callback is not None:
                messages = [self._message(queue, item, None)]
            elif self.ack_emulation:
                messages = self._take(queue, ready, item)
            else:
                messages = [self._message(queue, item, self._next_delivery_tag())]
            self._deliver(queue, callback, [m for m in messages if m is not None], no_ack)
            return True
        finally:
            self._in_poll = None
            if hasattr(self, "_flush_brpop_reauth"):  # kombu 5.7 and newer
                self._flush_brpop_reauth()

    def _take(self, queue: str, ready: str, item: bytes) -> list[virtual.Message | None]:
        """Note *item* as held, take more of the list *ready*, and make messages of all."""
        tags = [self._next_delivery_tag() for _ in range(self._wanted())]
        more = self.store.take(
            ready, self.held(tags[0]), time.time(), _behind("", queue), item, tags[1:]
        )
        return [
            self._message(queue, each, tag) for each, tag in zip((item, *more), tags, strict=False)
        ]

    def _wanted(self) -> int:
        """Return how many messages to take now, within what may be prefetched.

        Without a limit, or where Celery asks for each message whether it may be taken
        (``worker_disable_prefetch``), it is one.
        """
        if self._closing or "can_consume" in vars(self.qos):
            return 1
        credit = self.qos.can_consume_max_estimate()
        return 1 if credit is None else max(1, min(credit, self._batch_size.size))

    def _message(self, queue: str, item: bytes, tag: str | None) -> virtual.Message | None:
        """Make a message of what a ready list held, None of what is none."""
        try:
            raw = loads(item)
            envelope.check_envelope(raw)
            if tag is not None:
                raw["properties"]["delivery_tag"] = tag
            message = self.Message(raw, channel=self)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            self._bury(queue, item, exc)
            if tag is not None:
                self.release(tag)
            return None
        if tag is not None:
            self.qos.note(message, tag)
        return message

    def _deliver(
        self,
        queue: str,
        callback: Callable[[Any], Any] | None,
        messages: list[virtual.Message],
        no_ack: bool,
    ) -> None:
        """Pass messages on, but for those that have to wait: into the schedule with them.

        All are noted by now. After an error the channel is closed, and gives back the rest.
        """
        started = time.monotonic()
        for message in messages:
            if callback is None:
                self.qos.reject(message.delivery_tag, requeue=True)
            elif no_ack or not self._adopt(queue, message):
                callback(message)
        self._batch_size.after(len(messages), time.monotonic() - started)

    def _adopt(self, queue: str, message: virtual.Message) -> bool:
        """Move a message that a stock producer sent with a future ETA to the schedule.

        A message whose moment has passed loses its ETA: the worker would park it and raise
        prefetch.
        """
        raw = message._raw
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

    def _bury(self, queue: str, item: bytes, exc: Exception) -> None:
        logger.error(
            "An undecodable message in queue %r is now a dead letter: %s: %r",
            queue,
            exc,
            item[:200],
        )
        self.store.bury(queue, f"undecodable-{uuid4()}", f"undecodable message: {exc}", item)


def _behind(exchange: str, routing_key: str) -> str:
    """Return what stands behind a message in kombu's ``[message, exchange, routing key]``."""
    text: str = dumps([exchange, routing_key])
    return f", {text[1:]}"
