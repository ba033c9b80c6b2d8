"""The consuming half of the channel: messages are leased in batches and handed out one by one.

``reserve.lua`` takes the place of BRPOP and a later note in ``unacked``, between which a message
could be lost. A channel that found all its queues empty blocks on their wake lists. Queues that do
not last, and those consumed without acknowledgement, are popped as on stock; the same BRPOP waits
for both.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, zip_longest
from queue import Empty
from typing import Any, NamedTuple
from uuid import uuid4

from kombu.transport import virtual
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from celery_delayq import message as envelope
from celery_delayq.errors import InvalidETA
from celery_delayq.lease import KEEPERS, AckBatch, LeaseKeeper
from celery_delayq.lease_store import Counted, Deliveries, Reserved
from celery_delayq.message import Due, Entry
from celery_delayq.store import Held
from celery_delayq.transport import qos, worker
from celery_delayq.transport.publish import PublishChannel
from celery_delayq.transport.rota import QUICK, BatchSize, Rota, Share

logger = logging.getLogger(__name__)

#: Seconds to wait for the reply to a request when the channel closes.
LAST_REPLY = 1.0


class Taken(NamedTuple):
    """A message that is leased to this process and not handed out yet."""

    queue: str
    tag: str
    message: bytes
    deliveries: Deliveries


class Request(NamedTuple):
    """A call of ``reserve.lua`` whose reply has not come; repeated with the same nonce."""

    share: Share
    nonce: str


class ConsumeChannel(PublishChannel):
    """A channel of kombu's that leases messages, and holds none in memory for having an ETA."""

    QoS = qos.QoS
    Message = qos.Message

    _dispatching = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Of each queue that is consumed: whether without acknowledgement, and the callback.
        self._consumers_of: dict[str, tuple[bool, Callable[[Any], Any]]] = {}
        self._keeper: LeaseKeeper | None = None
        self._taken: deque[Taken] = deque()
        self._requests: list[Request] = []
        self._riding = AckBatch({})
        self._asked = ""
        self._rota = Rota()
        self._batch = BatchSize()
        self._looked = 0.0
        self._send_sources = True
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
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if queue in self._fanout_queues:
            return
        self._consumers_of[queue] = no_ack, callback
        self._rota.forget([queue])
        if no_ack or not self.can_schedule(queue):
            return
        self.store.register(queue)
        if not self._dispatching:
            self._dispatching = True
            self.connection.start_dispatcher(self)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        self._consumers_of.pop(queue, None)
        with suppress(*self.connection_errors):  # then it is given back by and by
            self._give_back([taken for taken in self._taken if taken.queue == queue])
        return super()._basic_cancel(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message of *queue*, leased unless *no_ack*; None when there is none."""
        if no_ack or not self.ack_emulation or not self.can_schedule(queue):
            return super().basic_get(queue, no_ack=no_ack, **kwargs)
        nonce = self.keeper.new_nonce(queue)
        while True:
            reserved = self.store.leases.reserve(
                queue, self.keeper.incarnation, self.keeper.lease, nonce, 1
            )
            self._take(queue, nonce, reserved)
            if not reserved.messages:
                return None
            message = self._message(self._taken.pop())
            if message is not None:
                return message
            nonce = self.keeper.new_nonce(queue)

    def _is_leased(self, queue: str) -> bool:
        """Return whether messages of a consumed queue are leased, and not popped as on stock."""
        no_ack, _ = self._consumers_of.get(queue, (True, None))
        return not no_ack and self.ack_emulation and self.can_schedule(queue)

    def close(self) -> None:
        if self._dispatching:
            self._dispatching = False
            self.connection.stop_dispatcher()
        self._closing = True
        keeper = self._keeper
        store = self.store
        try:
            if keeper is not None and not self.closed:
                self._settle(keeper)
        except self.connection_errors as exc:
            logger.warning("What was not handed out is given back when Redis is there: %s", exc)
        finally:
            super().close()
            if keeper is not None:
                self._keeper = None
                keeper.leave(store)

    def _settle(self, keeper: LeaseKeeper) -> None:
        """Give back what was not handed out, and send what is done: the channel closes."""
        lost = worker.lost_connection(self)
        taken, self._taken = list(self._taken), deque()
        try:
            if self._requests:
                taken += self._last_replies(lost)
            if not lost:
                self._give_back(taken)
                taken = []
                keeper.drain(self.store)
        finally:
            # No message stands for these, so the keeper gives them back.
            keeper.orphan([each.tag for each in taken])
            for request in self._requests:
                keeper.abandon(request.share.queue, request.nonce)
            if self._riding:
                keeper.put_back(self._riding)
                self._riding = AckBatch({})

    def _last_replies(self, lost: bool) -> list[Taken]:
        """Return what came for the last requests, if it comes soon."""
        connection = self._in_poll
        if not lost and connection and connection.can_read(timeout=LAST_REPLY):
            self._read_requests()
        elif self._in_poll:
            self._in_poll.disconnect()
        taken, self._taken = list(self._taken), deque()
        return taken

    # -- leases

    @property
    def keeper(self) -> LeaseKeeper:
        """What this process holds in this Redis database."""
        if self._keeper is None:
            self._keeper = self._find_keeper()
            self._keeper.join()
        return self._keeper

    def _find_keeper(self) -> LeaseKeeper:
        key = (self.connection.place, self.store.keys)
        return KEEPERS.get(key, lambda: LeaseKeeper(self.new_store, self.settings))

    def leased(self, tag: str) -> bool:
        """Return whether a delivery tag is that of a lease."""
        return self._keeper is not None and self._keeper.owns(tag)

    def requeue(self, tags: Iterable[str], *, last: bool = False, counted: Counted) -> None:
        """Put messages back into their ready lists."""
        fields: dict[tuple[str, Counted], list[str]] = {}
        for tag in tags:
            holding = self.keeper.drop(tag)
            if holding is not None:
                why: Counted = "crashed" if holding.crashed else counted
                fields.setdefault((holding.queue, why), []).append(self.keeper.field(tag))
        for (queue, why), names in fields.items():
            _, buried = self.store.leases.requeue(
                queue,
                self.keeper.incarnation,
                names,
                last=last,
                counted=why,
                most=self.settings.max_deliveries,
            )
            if buried:
                logger.error(
                    "A message of queue %r that kills its process is now a dead letter", queue
                )

    def note_failure(self, tag: str, *, crashed: bool, reason: str | None) -> None:
        """Take note of why a message is about to come back or to be rejected."""
        holding = self.keeper.held.get(tag)
        if holding is not None:
            holding.crashed, holding.reason = crashed, reason

    def bury(self, tag: str, id: str, reason: str) -> None:
        """Make a dead letter of a message that is held."""
        holding = self.keeper.drop(tag)
        if holding is not None:
            reason = holding.reason or reason
            field = self.keeper.field(tag)
            self.store.leases.reject(holding.queue, self.keeper.incarnation, field, id, reason)

    def hand_back(self, tags: list[str]) -> None:
        """Put back what was handed out and is not done: at once, or when nobody works on it."""
        held = [tag for tag in tags if tag in self.keeper.held]
        if worker.lost_connection(self):
            gc.collect()  # what Celery has dropped must not look alive
            self.keeper.orphan(held)
            return
        try:
            self.requeue(held, counted="requeued")
        except self.connection_errors:
            self.keeper.orphan(held)
            raise

    def on_credit(self) -> None:
        """A message is done: another thread than that of the poller may tell."""
        if self._starved:
            self._starved = False
            self.connection.cycle.bell.ring()

    # -- asking

    #: Whether nothing was asked for because there is no credit, or because all queues are empty.
    _starved = False
    _exhausted = False

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for messages or, where all queues are empty, wait until that changes."""
        if not self._ask() and self._exhausted and not self._taken:
            self._block(self.settings.block_timeout if timeout is None else timeout)

    def _ask(self) -> bool:
        """Send requests for what may be taken now; return whether there were any."""
        self._exhausted = False
        if self._in_poll:
            return False
        credit = self._credit()
        leased = [queue for queue in self._order() if self._is_leased(queue)]
        self._starved = credit <= 0 and bool(leased)
        if not self._requests:
            self._exhausted = not leased
            if self._starved or not leased or not self._worth_asking(credit):
                return False
            shares = self._rota.deal(
                leased,
                min(credit, self._batch.size),
                len(self.layout.steps),
                fair=not isinstance(self._queue_cycle, priority_cycle),
            )
            self._exhausted = not shares
            if not shares or self.keeper.alone:
                return False
            self._requests = [Request(s, self.keeper.new_nonce(s.queue)) for s in shares]
        if self._riding:  # the connection was closed meanwhile
            self.keeper.put_back(self._riding)
        self._riding = self.keeper.take_acks()
        empty = self._rota.empty(leased)
        self._send("reserve", [*self._calls(len(leased) > 1), *self._looks(empty)])
        return True

    def _worth_asking(self, credit: int) -> bool:
        """Return whether to ask now; not for each message alone while the pool has enough to do."""
        return credit >= self.qos.prefetch_count // 2 or not (self._taken or worker.backlog())

    def _calls(self, several: bool) -> list[tuple[Any, ...]]:
        keeper = self.keeper
        calls = [
            self.store.leases.reserve_call(
                share.queue,
                keeper.incarnation,
                keeper.lease,
                nonce,
                share.limit,
                share.lists,
                keeper.others(share.queue) if several else 0,
            )
            for share, nonce in self._requests
        ]
        calls += keeper.ack_calls(self.store, self._riding)
        sources, self._send_sources = self._send_sources, False
        return [call.command(source=sources) for call in calls]

    def _looks(self, empty: list[str]) -> list[tuple[Any, ...]]:
        """Return the command that tells whether empty queues have got something meanwhile."""
        if not empty:
            return []
        return [("EXISTS", *(self.store.keys.queue(queue).wake for queue in empty))]

    def _block(self, timeout: float) -> None:
        """Look at the ready lists, which stock producers fill without a sign, or wait for a sign.

        One look each ``block_timeout``, however many queues there are.
        """
        queues = self._order()
        leased = [queue for queue in queues if self._is_leased(queue)]
        popped = [queue for queue in queues if not self._is_leased(queue)]
        keys = self.store.keys
        now = time.monotonic()
        if leased and now - self._looked >= timeout and not self.keeper.alone:
            self._looked = now
            lists = chain.from_iterable(keys.ready_lists(q, self.layout) for q in leased)
            suspects = (keys.queue(queue).suspects for queue in leased)
            self._send("look", [("EXISTS", *lists, *suspects)])
            return
        wake = [keys.queue(queue).wake for queue in leased]
        stock = [keys.ready(q, step, self.layout) for step in self.layout.steps for q in popped]
        if wake or stock:
            self._send("wait", [("BRPOP", *wake, *stock, timeout)])

    def _send(self, asked: str, commands: list[tuple[Any, ...]]) -> None:
        connection = self.client.connection
        self._in_poll = connection
        self._brpop_sent_at = time.monotonic()
        self._asked = asked
        self._looking = asked == "reserve" and commands[-1][0] == "EXISTS"
        connection.send_packed_command(connection.pack_commands(commands))

    _looking = False

    def _order(self) -> list[str]:
        """Return the consumed queues, the one whose turn it is first."""
        order: list[str] = self._queue_cycle.consume(len(self.active_queues))
        return order

    def _credit(self) -> int:
        """Return how many messages more may be taken, those on their way not among them."""
        waiting = len(self._taken) + sum(request.share.limit for request in self._requests)
        if "can_consume" in vars(self.qos):
            # Celery wants to be asked for each one (worker_disable_prefetch).
            return 0 if waiting else int(self.qos.can_consume())
        credit: int | None = self.qos.can_consume_max_estimate()
        if credit is None:  # no limit: one at a time but for a worker that wants it so
            credit = self._batch.size if worker.consumes_tasks(self) else 1
        return credit - waiting

    # -- reading

    def _brpop_read(self, **_: Any) -> bool:
        """Read what came, ask for more if it goes quickly, and hand out."""
        try:
            try:
                if self._asked == "reserve":
                    self._read_requests()
                else:
                    self._read_sign()
            finally:
                self._in_poll = None
                if hasattr(self, "_flush_brpop_reauth"):  # kombu 5.7 and newer
                    self._flush_brpop_reauth()
        except (ReadOnlyError, *self.connection_errors):
            self._lost()
            raise
        except ResponseError as exc:
            if not str(exc).startswith("UNBLOCKED"):
                raise
            self._lost()
            raise ConnectionError(str(exc)) from exc
        if not self._taken:
            raise Empty()
        if self.connection.cycle._in_protected_read:
            return self.deliver_one()
        self.deliver()
        return True

    def _lost(self) -> None:
        """The connection is gone, or leads to a server that is no master any more."""
        if self._riding:
            self.keeper.put_back(self._riding)
            self._riding = AckBatch({})
        self._send_sources = True
        self.client.connection.disconnect()

    def _read(self) -> Any:
        """Return the next reply, or the error that it is."""
        try:
            return self.client.connection.read_response()
        except ReadOnlyError:
            raise
        except ResponseError as exc:
            if isinstance(exc, NoScriptError):
                self._send_sources = True
            return exc

    def _read_requests(self) -> None:
        """Read the replies to all requests, and to the acknowledgements that rode with them."""
        replies = [self._read() for _ in self._requests]
        acked = [self._read() for _ in self._riding.fields]
        if self._looking and self._read():
            self._rota.forget(self._consumers_of)
        self._acked(acked)
        requests, self._requests = self._requests, []
        came: list[list[Taken]] = []
        for request, reply in zip(requests, replies, strict=True):
            (queue, _, _), nonce = request
            if isinstance(reply, NoScriptError):
                self._requests.append(request)
            elif isinstance(reply, ResponseError):
                logger.error("Queue %r is looked at later, reserving failed: %s", queue, reply)
                self.keeper.abandon(queue, nonce)
                self._rota.learn(queue, 0)
            else:
                came.append(self._taken_of(queue, nonce, Reserved.read(reply)))
        for taken in chain.from_iterable(zip_longest(*came)):
            if taken is not None:
                self._taken.append(taken)
                self._queue_cycle.rotate(taken.queue)

    def _acked(self, replies: list[Any]) -> None:
        riding, self._riding = self._riding, AckBatch({})
        if not riding:
            return
        errors = [reply for reply in replies if isinstance(reply, ResponseError)]
        if errors:
            if not isinstance(errors[0], NoScriptError):
                logger.error("Redis refused acknowledgements, tried again: %s", errors[0])
            self.keeper.put_back(riding)
        else:
            self.keeper.confirm(riding, sum(replies))

    def _taken_of(self, queue: str, nonce: str, reserved: Reserved) -> list[Taken]:
        self._rota.learn(queue, reserved.more)
        tags = self.keeper.take(queue, nonce, len(reserved.messages), alone=reserved.alone)
        return [
            Taken(queue, tag, message, deliveries)
            for tag, (message, deliveries) in zip(tags, reserved.messages, strict=True)
        ]

    def _take(self, queue: str, nonce: str, reserved: Reserved) -> None:
        self._taken.extend(self._taken_of(queue, nonce, reserved))

    def _read_sign(self) -> None:
        """Read whether there is something, or a message of a queue that is popped."""
        reply = self.client.connection.read_response()
        if self._asked == "look":
            if reply:
                self._rota.forget(self._consumers_of)
            return
        if not reply:
            return
        key = reply[0].decode()
        for queue in self._consumers_of:
            if key == self.store.keys.queue(queue).wake:
                self._rota.forget([queue])
                return
        name = key[len(self.global_keyprefix) :].rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(name)
        self._deliver_popped(name, reply[1])

    def _deliver_popped(self, queue: str, item: bytes) -> None:
        try:
            raw = loads(item)
            envelope.check_envelope(raw)
        except Exception as exc:
            self._bury_popped(queue, item, exc)
            return
        no_ack, _ = self._consumers_of.get(queue, (True, None))
        due = None if no_ack or not self.can_schedule(queue) else self._due_later(raw)
        if due is not None:  # without ack emulation
            self.store.schedule(queue, self._entry(raw, due))
        else:
            self.connection._deliver(raw, queue)

    # -- handing out

    def deliver_one(self) -> bool:
        """Hand out one message that is here; False when there is none."""
        if not self._taken:
            return False
        self._ask_ahead()
        started = time.monotonic()
        self._hand_out(self._taken.popleft())
        self._batch.after(1, time.monotonic() - started)
        return True

    def deliver(self) -> None:
        """Hand out what is here, in an event loop: for a moment, so that nothing else waits long.

        TERM, heartbeats and remote control are not held up behind a batch.
        """
        started = time.monotonic()
        number = 0
        while self._taken:
            self._ask_ahead()
            self._hand_out(self._taken.popleft())
            number += 1
            if self.closed or time.monotonic() - started > QUICK:
                break
        if number:
            self._batch.after(number, time.monotonic() - started)
        if self._taken:
            self.connection.cycle.bell.ring()

    def _ask_ahead(self) -> None:
        """Ask for the next messages before these are done, when they go quickly."""
        if self._batch.size > 1 and not self._in_poll and len(self._taken) <= self._batch.size // 2:
            self._ask()

    def _hand_out(self, taken: Taken) -> None:
        _, callback = self._consumers_of.get(taken.queue, (False, None))
        if callback is None:
            self._give_back([taken])
            return
        message = self._message(taken)
        if message is not None and not self._adopt(taken, message):
            callback(message)

    def _message(self, taken: Taken) -> qos.Message | None:
        """Make a message of what was leased; None when it is none, or no longer ours."""
        try:
            raw = loads(taken.message)
            envelope.check_envelope(raw)
            raw["properties"]["delivery_tag"] = taken.tag
            envelope.note_delivery(raw, taken.queue, sum(taken.deliveries) + 1)
            message = self.Message(raw, channel=self)
        except Exception as exc:
            logger.error(
                "An undecodable message in queue %r is now a dead letter: %s: %r",
                taken.queue,
                exc,
                taken.message[:200],
            )
            self.bury(taken.tag, f"undecodable-{uuid4()}", f"undecodable message: {exc}")
            return None
        if not self.keeper.handed_out(taken.tag, message):
            return None
        virtual.QoS.append(self.qos, message, taken.tag)
        return message

    def _adopt(self, taken: Taken, message: qos.Message) -> bool:
        """Move a message that a stock producer sent with a future ETA to the schedule.

        A message whose moment has passed loses its ETA: the worker would park it and raise
        prefetch.
        """
        due = self._due_later(message._raw)
        if due is None:
            return False
        # As it came: what is ours for this delivery is not to be kept.
        outcome = self.store.leases.retry(
            taken.queue,
            self._entry(loads(taken.message), due),
            taken.queue,
            self.keeper.incarnation,
            self.keeper.field(taken.tag),
            hand_out=False,
        )
        if outcome == "due":
            message.properties.setdefault(envelope.PROPERTY, {})["eta"] = message.headers["eta"]
            message.headers["eta"] = None
            return False
        self.qos.ack(taken.tag)
        return True

    def _due_later(self, raw: dict[str, Any]) -> Due | None:
        """Return the ETA of a message that the schedule, and not the worker, is to time."""
        try:
            due = envelope.due_of(raw)
        except InvalidETA:
            return None  # Celery rejects it, with its own error in the log
        return None if due is None or self._is_short(due) else due

    def _entry(self, raw: dict[str, Any], due: Due) -> Entry:
        step = self.priority(self._get_message_priority(raw, reverse=False))
        return Entry.of(raw, step, due)

    def _give_back(self, taken: list[Taken]) -> None:
        """Put what was not handed out back where it was, in the same order."""
        gone = {each.tag for each in taken}
        self._taken = deque(each for each in self._taken if each.tag not in gone)
        self.requeue((each.tag for each in taken), counted="nothing")

    # -- what kombu keeps, or cannot be read

    def _do_restore_message(
        self, payload: Any, exchange: str, routing_key: str, *rest: Any
    ) -> None:
        """Put back a message that kombu keeps; one that is bound nowhere is not dropped."""
        if not self._lookup(exchange, routing_key):
            raise LookupError(f"no queue is bound to exchange {exchange!r} for {routing_key!r}")
        super()._do_restore_message(payload, exchange, routing_key, *rest)

    def held(self, tag: str) -> Held:
        """Return where kombu keeps the message *tag* while a stock worker holds it."""
        stock_name = self.store.keys.stock
        return Held(stock_name(self.unacked_key), stock_name(self.unacked_index_key), tag)

    def bury_held(self, tag: str, exc: Exception) -> None:
        """Make a dead letter of a message that kombu keeps and that cannot be read."""
        held = self.held(tag)
        item = self.store.held_message(held)
        if item is not None:
            self._bury_popped(_queue_of(item) or self.unacked_key, item, exc)
        # In this order: an index without its message does no harm.
        self.store.client.hdel(held.unacked, tag)
        self.store.client.zrem(held.unacked_index, tag)

    def _bury_popped(self, queue: str, item: bytes, exc: Exception) -> None:
        logger.error(
            "An undecodable message in queue %r is now a dead letter: %s: %r",
            queue,
            exc,
            item[:200],
        )
        self.store.bury(queue, f"undecodable-{uuid4()}", f"undecodable message: {exc}", item)


def _queue_of(held: bytes) -> str | None:
    """Return the routing key behind a held message that cannot be read."""
    try:
        queue = loads(held.rpartition(b", ")[2].removesuffix(b"]"))
    except Exception:
        return None
    return queue if isinstance(queue, str) and held.startswith(b"[") else None
