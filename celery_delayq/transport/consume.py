"""The consuming half of the channel: kombu's BRPOP, and what is done to a message on arrival.

While a list has one message now and then, BRPOP brings it. When there are more, ``take.lua``
takes several of the same list in the round trip that notes the first one as held.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from queue import Empty
from typing import Any, NamedTuple
from uuid import uuid4

from celery import signals
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


class Pool:
    """What pool the Celery worker of this process has."""

    solo = False


def _note_pool(sender: Any, **_: Any) -> None:
    Pool.solo = "solo" in str(sender.pool_cls)


signals.worker_init.connect(_note_pool)


class Taken(NamedTuple):
    """A message that was taken from a ready list and not delivered yet.

    *tag* is its delivery tag in ``unacked``, None for one that is not noted there.
    """

    ready: str
    item: bytes
    tag: str | None


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
        except self.channel.connection_errors:
            raise
        except Exception as exc:
            # One that cannot be read must not keep the others from coming back.
            self.channel.bury_held(tag, exc)


class ConsumeChannel(PublishChannel):
    """A channel of kombu's that holds no message in worker memory for having an ETA."""

    QoS = QoS

    _dispatching = False
    _acks: Sender | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Of each queue that is consumed: whether without acknowledgement, and the callback.
        self._consumers_of: dict[str, tuple[bool, Callable[[Any], Any]]] = {}
        self._taken: deque[Taken] = deque()
        self._asked = "BRPOP"
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
        self._consumers_of[queue] = no_ack, callback
        if no_ack or not self.can_schedule(queue):
            return
        self.store.register(queue)
        if not self._dispatching:
            self._dispatching = True
            self.connection.start_dispatcher(self)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        self._consumers_of.pop(self._tag_to_queue.get(consumer_tag), None)
        return super()._basic_cancel(consumer_tag)

    def close(self) -> None:
        if self._dispatching:
            self._dispatching = False
            self.connection.stop_dispatcher()
        try:
            if self._in_poll and not self.closed:
                self._closing = True
                with suppress(Empty):
                    self._brpop_read()
            if self._taken:
                taken, self._taken = list(self._taken), deque()
                self._give_back(taken)
            if self._acks is not None:
                self._acks.drain()
        except self.connection_errors as exc:
            logger.warning(
                "What this worker held comes back after visibility_timeout, "
                "the connection is gone: %s",
                exc,
            )
        finally:
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
            self._bury(_queue_of(item) or self.unacked_key, item, exc)
        self.release(tag)

    def _brpop_start(self, *args: Any, **kwargs: Any) -> None:
        """Ask for the next message; where some were taken already, only for another turn."""
        if self._acks is not None:
            self._acks.poll()
        if not self._taken:
            self._asked = "BRPOP"
            super()._brpop_start(*args, **kwargs)
            return
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self._asked = "PING"
        self.client.connection.send_command("PING")

    def _brpop_read(self, **options: Any) -> bool:
        """Read the reply, take more of the list if it is worth it, and deliver."""
        asked, self._asked = self._asked, "BRPOP"
        try:
            try:
                reply = self.client.parse_response(self.client.connection, asked, **options)
            except self.connection_errors:
                # So that the next turn of the loop connects again.
                self.client.connection.disconnect()
                raise
            if not reply:
                raise Empty()
            if asked == "BRPOP":
                ready, item = reply[0].decode(), reply[1]
                self._queue_cycle.rotate(ready.rsplit(self.sep, 1)[0])
                self._take(ready, item)
            self._deliver()
            return True
        finally:
            self._in_poll = None
            if hasattr(self, "_flush_brpop_reauth"):  # kombu 5.7 and newer
                self._flush_brpop_reauth()

    def _take(self, ready: str, item: bytes) -> None:
        """Note a popped message as held, and take more of its list within the prefetch."""
        queue = ready.rsplit(self.sep, 1)[0]
        no_ack = self._consumers_of.get(queue, (False, None))[0]
        if no_ack or not self.ack_emulation:
            self._taken.append(Taken(ready, item, None))
            return
        tags = [self._next_delivery_tag() for _ in range(self._wanted())]
        more = self.store.take(
            ready, self.held(tags[0]), time.time(), _behind("", queue), item, tags[1:]
        )
        items = zip((item, *more), tags, strict=False)
        self._taken.extend(Taken(ready, each, tag) for each, tag in items)

    def _wanted(self) -> int:
        """Return how many messages to take now, within what may be prefetched.

        One without a limit, outside an event loop, where Celery asks for each message whether it
        may be taken (``worker_disable_prefetch``), and in a solo pool, which would hold the others
        while it runs the first. The queues share the prefetch.
        """
        one_by_one = self._closing or self.connection.cycle._in_protected_read
        if one_by_one or Pool.solo or "can_consume" in vars(self.qos):
            return 1
        credit = self.qos.can_consume_max_estimate() or 1
        return max(1, min(credit // len(self.active_queues), self._batch_size.size))

    def _deliver(self) -> None:
        """Pass on what was taken: one message a turn, several in an event loop while it is quick.

        So TERM, heartbeats and remote control are not held up behind a batch.
        """
        started = time.monotonic()
        count = 0
        while self._taken:
            self._deliver_one(self._taken.popleft())
            count += 1
            one_by_one = self.connection is None or self.connection.cycle._in_protected_read
            if one_by_one or time.monotonic() - started > QUICK:
                break
        self._batch_size.after(count, time.monotonic() - started)

    def _deliver_one(self, taken: Taken) -> None:
        queue = taken.ready.rsplit(self.sep, 1)[0]
        no_ack, callback = self._consumers_of.get(queue, (False, None))
        if callback is None:
            self._give_back([taken])
            return
        message = self._message(queue, taken)
        if message is None:
            return
        if not no_ack:
            virtual.QoS.append(self.qos, message, message.delivery_tag)
            if self._adopt(queue, message):
                return
        callback(message)

    def _give_back(self, taken: list[Taken]) -> None:
        """Put what was not started back where it was, in the same order."""
        for ready, group in groupby(taken, attrgetter("ready")):
            queue = ready.rsplit(self.sep, 1)[0]
            tags = []
            for each in group:
                if each.tag is None:
                    self.store.client.rpush(self.store.keys.stock(ready), each.item)
                else:
                    tags.append(each.tag)
            if tags:
                self.store.untake(ready, self.held(tags[0]), _behind("", queue), tags)

    def _message(self, queue: str, taken: Taken) -> virtual.Message | None:
        """Make a message of what a ready list held; a dead letter of what is none.

        It has left the ready list, and an error here would stop the worker.
        """
        try:
            raw = loads(taken.item)
            envelope.check_envelope(raw)
            if taken.tag is not None:
                raw["properties"]["delivery_tag"] = taken.tag
            return self.Message(raw, channel=self)
        except Exception as exc:
            self._bury(queue, taken.item, exc)
            if taken.tag is not None:
                self.release(taken.tag)
            return None

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


def _queue_of(held: bytes) -> str | None:
    """Return the routing key behind a held message that cannot be read."""
    try:
        queue = loads(held.rpartition(b", ")[2].removesuffix(b"]"))
    except Exception:
        return None
    return queue if isinstance(queue, str) and held.startswith(b"[") else None
