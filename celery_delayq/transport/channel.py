"""kombu's channel to Redis: joins the publisher, the consumer and the leases of this process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from hashlib import sha1
from queue import Empty
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from amqp import RecoverableConnectionError
from kombu.pidbox import Mailbox
from kombu.transport import redis as stock
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps
from redis import ConnectionPool, Redis
from redis.exceptions import ResponseError

from celery_delayq.dispatch.lease_keeper import ACK_LOOK_SECONDS, LeaseKeeper, keeper_of
from celery_delayq.dispatch.pacing import MIN_GATHER_SECONDS
from celery_delayq.errors import InvalidOption, NotAllowed, RecordError, StoreFull
from celery_delayq.integration import app_warnings, worker
from celery_delayq.integration.install import GREENLETS, change_consumer
from celery_delayq.integration.replace import make
from celery_delayq.model import delivery, envelope
from celery_delayq.model.dead_letter import pack_details
from celery_delayq.model.limits import Definition
from celery_delayq.model.names import OWN_KEY_TEXT, is_own_key
from celery_delayq.model.task_options import check_identity, check_text
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.client import TLSConnection, drop_refused_connections
from celery_delayq.store.scripting.refusals import is_denied, is_full
from celery_delayq.store.scripting.replies import Unacked
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.transport import qos
from celery_delayq.transport.batch import PublishBatch
from celery_delayq.transport.connections import ManagedTLSConnection, leave_poller_on_close, waking
from celery_delayq.transport.consumer import Consumer
from celery_delayq.transport.deliveries import Deliveries
from celery_delayq.transport.hand_out import HandOut
from celery_delayq.transport.idle import IdleWait
from celery_delayq.transport.poller import KOMBU_STOPS_POLLING
from celery_delayq.transport.prefetch import Prefetch
from celery_delayq.transport.publisher import Publisher, entry_of_received
from celery_delayq.transport.put_off import PutOff
from celery_delayq.transport.rejected import drop_malformed, log_undecodable
from celery_delayq.transport.requests import Popped
from celery_delayq.utils import message_json, native_threads

logger = logging.getLogger(__name__)

#: Prefix and suffix of the names of the reply exchanges of Celery's remote control.
_REPLY_PREFIX, _REPLY_SUFFIX = Mailbox.reply_exchange_fmt.split("%s")


def is_for_replies(exchange: str) -> bool:
    """Return whether an exchange carries the replies of Celery's remote control."""
    return exchange.startswith(_REPLY_PREFIX) and exchange.endswith(_REPLY_SUFFIX)


class Channel(stock.Channel):
    """A channel that schedules tasks with an ETA, and leases messages.

    Messages of temporary queues, and of queues consumed without acknowledgement, are popped as in
    stock kombu. Stock kombu pops a message by one command and notes it in ``unacked`` by another: a
    process that ends between the two loses the message. A lease is one script.
    """

    QoS = qos.QoS
    Message = qos.Message
    connection_class_ssl: type[Any] = TLSConnection

    #: The hash tag of the channel's queues on a Redis Cluster, else "".
    tag = ""

    #: Seconds between two checks for acknowledgements that no request has sent.
    ack_interval = ACK_LOOK_SECONDS

    #: Whether the consumer looks at the ready lists whenever it becomes idle. If false, only the
    #: fleet of dispatchers looks at them.
    looks_when_idle = True

    #: Least seconds between two promotions while entries become due continuously.
    gather = MIN_GATHER_SECONDS

    #: Queues with ``x-expires``. kombu before 5.6 has no such queues.
    _expires: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, connection: Any, *args: Any, **kwargs: Any) -> None:
        #: The ``delayq`` settings of the connection. The channel keeps them, since tasks may end
        #: after the connection has been closed.
        self.settings: Settings = connection.settings
        #: The channel that Celery uses: this channel, or the channel that this one is a part of.
        self.main_channel: Channel = self
        self.publisher = Publisher(self.settings)
        #: By consumed queue: ``no_ack``, and the callback for the queue's messages.
        self._handlers: dict[str, tuple[bool, Callable[[Any], Any]]] = {}
        super().__init__(connection, *args, **kwargs)

    # -- stores

    @cached_property
    def layout(self) -> Layout:
        """The names of the ready lists of this channel's queues."""
        return Layout(self.sep, tuple(self.priority_steps))

    @cached_property
    def store(self) -> Store:
        """The store, on connections of this channel.

        The client is redis-py's. kombu's client adds the key prefix to some commands only, and only
        to the first key of a script.
        """
        return self._store_by(self.pool)

    def _store_by(self, pool: ConnectionPool) -> Store:
        database = int(pool.connection_kwargs.get("db") or 0)
        keys = Keys(self.global_keyprefix, database, self.tag)
        client = Redis(connection_pool=pool)
        return Store(client, keys, self.layout, self.settings.limits)

    def new_store(self) -> Store:
        """Return a store with connections of its own, which stay open when this channel closes."""
        return self._store_by(self.new_pool())

    def new_pool(self) -> ConnectionPool:
        """Return a pool without a limit of connections: each thread that uses the pool has one.

        kombu's limit is meant for the connections of one channel.
        """
        pool: ConnectionPool = self._get_pool()
        pool.max_connections = sys.maxsize
        return pool

    @property
    def stores(self) -> Stores:
        """The stores of all queues."""
        return Stores.single(self.store)

    def new_stores(self) -> Stores:
        """Return the stores of all queues, with connections as in :meth:`new_store`."""
        return Stores.single(self.new_store())

    def store_of(self, _queue: str) -> Store:
        """Return the store of a queue."""
        return self.store

    @cached_property
    def database_id(self) -> str:
        """A hash of Redis database and key prefix: equal for all channels that share both."""
        return self._database_id_by(self.store.keys)

    def database_id_of(self, _queue: str) -> str:
        """Return the :attr:`database_id` of a queue's messages."""
        return self.database_id

    def _database_id_by(self, keys: Keys) -> str:
        """Return the :attr:`database_id` of the data under *keys*."""
        where = f"{self.connection.database_name} {keys}"
        return sha1(where.encode(), usedforsecurity=False).hexdigest()[:16]

    # -- connections

    def _get_pool(self, asynchronous: bool = False) -> Any:
        with self.connection.plain_client():
            pool = super()._get_pool(asynchronous)
        sentinels = getattr(getattr(pool, "sentinel_manager", None), "sentinels", ())
        for each in (pool, *(sentinel.connection_pool for sentinel in sentinels)):
            # After a fork redis-py acquires the first lock, and then the second.
            native_threads.renew_locks(each, "_fork_lock", "_lock")
        pool.connection_class = drop_refused_connections(pool.connection_class)
        if native_threads.is_eventlet_patched():
            pool.connection_class = waking(pool.connection_class)
        if asynchronous:
            pool.connection_class = leave_poller_on_close(pool.connection_class, self)
        return pool

    def _disconnect_pools(self) -> None:
        super()._disconnect_pools()
        for name in ("store", "_commands"):  # both hold the former pool
            self.__dict__.pop(name, None)

    @cached_property
    def _commands(self) -> Any:
        return super()._create_client()

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return kombu's client. All commands share one client; kombu would make one for each."""
        return super()._create_client(asynchronous=True) if asynchronous else self._commands

    # Python's cached_property: after the first access it costs no call. kombu's costs a call each
    # time, and the event loop reads the client several times at each turn.
    @cached_property
    def client(self) -> Any:
        """The client that waits for messages."""
        return self._create_client(asynchronous=True)

    @cached_property
    def subclient(self) -> Any:
        """The subscription to fanout exchanges."""
        return self._create_client(asynchronous=True).pubsub()

    # -- queues and bindings

    def can_schedule(self, queue: str) -> bool:
        """Return whether *queue* is permanent, so that a task may wait in the queue for a year.

        Fanout, reply, auto-delete, exclusive and expiring queues are temporary.
        """
        return not (
            queue in self.connection.temporary_queues
            or queue in self.auto_delete_queues
            or queue in self._expires
            or queue in self._fanout_queues
        )

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        check_text("queue", queue)
        if is_own_key(queue):
            raise InvalidOption(f"queue={queue!r}: expected {OWN_KEY_TEXT}")
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        # A queue is declared on one channel, and used on other channels of the same connection.
        if auto_delete or kwargs.get("exclusive") or queue in self._expires:
            self.connection.temporary_queues.add(queue)
        else:
            self.connection.temporary_queues.discard(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Bind a queue. If the queue is bound already or needs no binding, Redis may be full.

        A worker that connects again must not stop at a full Redis: its work frees memory.
        """
        try:
            super()._queue_bind(exchange, routing_key, pattern, queue)
        except ResponseError as exc:
            is_fanout = queue in self._fanout_queues
            binding = routing_key or "", pattern or "", queue or ""
            if not is_full(exc) or not (is_fanout or binding in self.get_table(exchange)):
                raise

    def bound_queues(self, exchange: str, routing_key: str) -> list[str]:
        """Return the queues bound to an exchange for a routing key, sorted."""
        return sorted(super()._lookup(exchange, routing_key))

    def _lookup(self, exchange: str, routing_key: str, _default: str | None = None) -> Any:
        return self.bound_queues(exchange, routing_key) or [delivery.UNBOUND_QUEUE]

    def _size(self, queue: str) -> int:
        """Return the number of ready and scheduled messages of *queue*.

        In stock kombu both kinds are in the ready lists.
        """
        ready: int = super()._size(queue)
        return ready + self.store.scheduled(queue)

    def _purge(self, queue: str) -> int:
        """Empty *queue* and return the number of ready and scheduled messages removed."""
        if not self.can_schedule(queue):
            return int(super()._purge(queue))
        store = self.store_of(queue)
        scheduled, ready = store.purge(queue)
        store.repair.forget_counts(queue, store.layout)
        logger.info("Purged queue %r: %d ready, %d scheduled", queue, ready, scheduled)
        return ready + scheduled

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if self.can_schedule(queue):
            self.store_of(queue).purge(queue, deleted=True)
        super()._delete(queue, *args, **kwargs)

    # -- to publish

    def _next_delivery_tag(self) -> str:
        """Return a tag as unique as kombu's UUID, in a tenth of the time."""
        return os.urandom(16).hex()

    def _inplace_augment_message(self, message: Any, exchange: str, routing_key: str) -> None:
        """Check a message before kombu publishes it."""
        app_warnings.warn_of_call(message)
        check_text("exchange", exchange)
        check_text("routing_key", routing_key)
        if envelope.is_task(message):
            check_identity(message["headers"])
        super()._inplace_augment_message(message, exchange, routing_key)

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return the batch that :meth:`kombu.Producer.batch` uses."""
        return PublishBatch(self, max_size)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Publish a message to one queue.

        Raises
        ------
        StoreFull
            Redis has no memory left. Nothing was stored.
        NotAllowed
            The account lacks a right. kombu must not repeat the call: the script may have written a
            part of the entry, and would treat the repeated task as a duplicate, although the task
            was never scheduled.
        """
        if self.connection is None:
            # A failover has closed the channel. kombu connects and publishes again.
            raise RecoverableConnectionError("channel disconnected")
        if queue is delivery.UNBOUND_QUEUE:
            self.add_dead_letter_unbound(message)
            return
        if not self.can_schedule(queue):
            super()._put(queue, delivery.without_retry_note(message), **kwargs)
            return
        store = self.store_of(queue)
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            self.publisher.add_to(batch, store, queue, message)
            return
        call, read = self.publisher.publication(store, queue, message, self.database_id_of)
        replicas, seconds = self.settings.wait_replicas, self.settings.wait_timeout
        try:
            reply = store.run_replicated(call, replicas, seconds) if replicas else store.run(call)
        except ResponseError as exc:  # kombu would repeat the call
            if isinstance(exc, StoreFull):
                raise StoreFull(*exc.args) from exc
            if is_denied(exc):
                raise NotAllowed(
                    f"docs/accounts.md lists the rights that an account of Redis needs: {exc}"
                ) from exc
            raise
        read(reply)

    def add_dead_letter_unbound(self, message: dict[str, Any]) -> None:
        """Make a dead letter of a task for which no queue is bound. kombu drops other messages.

        Redis holds the bindings, and may have evicted or deleted them.
        """
        if not envelope.is_task(message):
            return
        info = message["properties"]["delivery_info"]
        exchange, routing_key = info["exchange"], info["routing_key"]
        why = f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r}"
        task_id = str(message["headers"]["id"])
        logger.error("Task %r is a dead letter: %s", task_id, why)
        details = pack_details({"unbound": [exchange, routing_key]})
        # The dead letter is stored under its exchange: exchanges are few, routing keys are not.
        data = message_json.encode(message)
        self.store_of(exchange).dead_letters.add(exchange, task_id, why, data, details)

    # -- to consume

    @cached_property
    def prefetch(self) -> Prefetch:
        """The number of messages that may still be taken."""
        return Prefetch(self.qos)

    @cached_property
    def consumer(self) -> Consumer:
        """The consumer, which requests messages from Redis."""
        idle = IdleWait(
            self.store,
            self.settings,
            partial(self.connection.fleet_looks, self.database_id),
            looks_when_idle=self.looks_when_idle,
            health_check_interval=self.health_check_interval,
        )
        return Consumer(
            self.client, self.store, self._queue_cycle, self.prefetch, idle, self.settings
        )

    @cached_property
    def deliveries(self) -> Deliveries:
        """Ends the leases of this channel's messages. Usable after :meth:`close`."""
        keeper = keeper_of(
            self.database_id,
            lambda: LeaseKeeper(
                self.new_store(),
                self.store.leases.claim,
                self.settings,
                ack_interval=self.ack_interval,
            ),
        )
        keeper.add_channel()
        return Deliveries(keeper, self.store, self.settings)

    def settle_by(self, keeper: LeaseKeeper) -> None:
        """Use *keeper* instead of this process' lease keeper. Called before the first message."""
        keeper.add_channel()
        self.deliveries = Deliveries(keeper, self.store, self.settings)

    def handle_one(self, queue: str, callback: Callable[[Any], Any]) -> bool:
        """Lease one message of *queue* and hand it to *callback*, in the caller's thread.

        Return whether there was a message. The queue need not be consumed.
        """
        self._handlers[queue] = False, callback
        taken = self.consumer.get(queue, self.deliveries.keeper)
        if taken is None:
            return False
        self.consumer.taken.append(taken)
        return self.hand_out.hand_out_one()

    @cached_property
    def hand_out(self) -> HandOut:
        """Gives leased messages to their callbacks."""
        controls = self.consumer.controls
        limited = worker.limited_tasks() if self.consumer.serves_worker else {}
        return HandOut(
            self.consumer,
            self.deliveries,
            PutOff(self.store, self.deliveries, self.publisher, controls, limited, self.qos),
            self.qos,
            self.database_id,
            self._handlers,
            partial(self.Message, channel=self),
        )

    def leased(self, tag: str) -> bool:
        """Return whether a delivery tag belongs to a leased message."""
        deliveries: Deliveries | None = vars(self).get("deliveries")
        return deliveries is not None and deliveries.keeper.owns(tag)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        if queue in self._fanout_queues:
            handle = drop_malformed(callback)
            super().basic_consume(queue, no_ack, handle, consumer_tag, **kwargs)
            return
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if worker.consumes_tasks(self.main_channel):
            self.consumer.serves_worker = True
        lasts = not no_ack and self.can_schedule(queue)
        # Before the next steps: messages are leased even if Redis refuses one of those steps.
        self._handlers[queue] = no_ack, callback
        self.consumer.consume(queue, leased=lasts and self.ack_emulation)
        if not lasts:
            return
        wakeup = self.connection.cycle.wakeup  # created before other threads may set it
        if self.consumer.serves_worker:
            wakeup.set_on_signals()
            change_consumer()
        make(GREENLETS)  # the lease keeper logs in a thread
        self._begin(queue)

    def _announce_limits(self) -> None:
        """Store the limits of this worker's code. The last worker that starts wins, not the last
        one that connects again.
        """
        definitions = worker.limit_definitions()
        before = self.store.task_limits.announce(definitions)
        for name, former in before.items():
            logger.warning(
                "limit %r: this worker's code has another definition, which counts from now on. "
                "Before: %s; now: %s",
                unquote(name),
                Definition.shown(former),
                Definition.shown(definitions[name]),
            )
        if before:
            self.store.task_limits.wake_lanes(before)

    def _begin(self, queue: str) -> None:
        """Register a consumed queue in Redis, and start the dispatcher."""
        self.store.register(queue)
        keeper = self.deliveries.keeper  # claims a worker id: a full Redis would refuse it later
        if self.consumer.serves_worker and not keeper.has_announced_limits:
            self._announce_limits()
            keeper.has_announced_limits = True
        self.consumer.idle.ask_server()
        self.connection.start_dispatcher(self)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        if queue is not None and queue not in self._fanout_queues:
            self._handlers.pop(queue, None)
            self.consumer.cancel(queue)
            self._requeue_cancelled()
        return super()._basic_cancel(consumer_tag)

    def _requeue_cancelled(self) -> None:
        """Put the messages of cancelled queues back into their former places in the ready lists."""
        cancelled = [each.tag for each in self.consumer.take_cancelled()]
        if cancelled:
            self.deliveries.requeue(cancelled, counted="nothing")

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message of *queue* or None. The message is leased unless *no_ack*."""
        if no_ack or not self.ack_emulation or not self.can_schedule(queue):
            return super().basic_get(queue, no_ack=no_ack, **kwargs)
        self.store.register(queue)
        while (taken := self.consumer.get(queue, self.deliveries.keeper)) is not None:
            message = self.hand_out.message_of(taken)
            if message is not None:
                return message
        return None

    def close(self) -> None:
        if self.closed:
            return
        self.connection.stop_dispatcher(self)
        self._closing = True
        reconnects = worker.is_reconnecting(self.main_channel)
        consumer: Consumer | None = vars(self).get("consumer")
        deliveries: Deliveries | None = vars(self).get("deliveries")
        try:
            # Before kombu's close, which would read the last reply: it may hold a popped message.
            if deliveries is not None:
                fetched = [] if consumer is None else consumer.close(wait=not reconnects)
                deliveries.end(
                    [each.tag for each in fetched],
                    reconnects=reconnects,
                    holds_others=bool(self.qos._delivered),
                )
            super().close()
        finally:
            if consumer is not None:
                consumer.close(wait=False)
            if deliveries is not None:
                deliveries.close()

    # -- called by kombu's poller

    @property
    def _in_poll(self) -> Any:
        """kombu's name for the connection on which a reply is awaited."""
        consumer: Consumer | None = vars(self).get("consumer")
        return None if consumer is None else consumer.awaited_connection

    @_in_poll.setter
    def _in_poll(self, _none: None) -> None:
        """Drop the connection: kombu sets None when no reply can come on it."""
        if self._in_poll is not None:
            self.consumer.drop_connection()

    @property
    def _brpop_sent_at(self) -> float:
        """kombu's name for the time at which the awaited commands were sent."""
        return self.consumer.sent_at

    def _brpop_start(self, *_: Any, **__: Any) -> None:
        """Request the next messages."""
        consumer = self.consumer
        if consumer.leased_queues:
            consumer.keeper = self.deliveries.keeper
        consumer.start()

    def _brpop_read(self, **_: Any) -> bool:
        """Read replies, and hand out messages."""
        consumer = self.consumer
        if consumer.awaited_connection is None:
            # No reply is awaited, so the event is the end of the connection. The next request
            # connects again.
            self.client.connection.disconnect()
            if KOMBU_STOPS_POLLING:
                raise ConnectionResetError("Redis has closed the connection")
            raise Empty()
        try:
            popped = consumer.read()
        except self.connection_errors:
            consumer.drop_connection()  # the next turn of the loop connects again
            raise
        finally:
            if hasattr(self, "_flush_brpop_reauth"):  # kombu 5.7 and newer
                self._flush_brpop_reauth()
        self._requeue_cancelled()
        if popped is not None:
            self._deliver_popped(popped)
        elif not consumer.taken:
            raise Empty()
        else:
            self.connection.cycle.deliver(self)
        return True

    def _deliver_popped(self, popped: Popped) -> None:
        """Hand out a message that is not leased."""
        queue, item = popped
        try:
            raw = message_json.decode(item)
            envelope.check_envelope(raw)
            due = None
            no_ack, _ = self._handlers.get(queue, (True, None))
            # Only with `ack_emulation` off: else messages of such a queue are leased. A stock
            # producer may have pushed a message with an ETA.
            if not no_ack and self.can_schedule(queue):
                due = self.publisher.due_later(self.store, raw)
            entry = None if due is None else entry_of_received(self.store, raw, due)
        except Exception as exc:
            self._add_undecodable(queue, item, exc)
            return
        if entry is not None:
            self.store.schedule(queue, entry)
        else:
            self.connection._deliver(raw, queue)

    def _handle_message(self, client: Any, response: Any) -> Any:
        """Read a message of a fanout exchange. Set the data of a malformed message to None."""
        payload = super()._handle_message(client, response)
        if payload["data"] and bytes_to_str(payload["type"]).endswith("message"):
            try:
                envelope.check_envelope(message_json.decode(payload["data"]))
            except Exception as exc:  # a publisher may send any bytes
                logger.warning("dropped from channel %r: %s", payload["channel"], exc)
                payload["data"] = None
        return payload

    # -- messages in kombu's "unacked", and undecodable messages

    def _do_restore_message(
        self, payload: Any, exchange: str, routing_key: str, pipe: Any, leftmost: bool = False
    ) -> None:
        """Put a message of ``unacked`` back into its queues. Drop a reply that has no bound queue.

        Raises
        ------
        LookupError
            No queue is bound for the message.
        RecordError
            The message has no headers, or its envelope is malformed.
        """
        queues = self.bound_queues(exchange, routing_key)
        if not queues:
            if is_for_replies(exchange):
                return  # the caller of the remote control has gone
            raise LookupError(f"no queue is bound to exchange {exchange!r} for {routing_key!r}")
        # kombu would log a message that cannot be put back, and then drop it.
        envelope.check_envelope(payload)
        if not isinstance(payload.get("headers"), dict):
            raise RecordError("the message has no headers")
        payload["headers"]["redelivered"] = True
        payload["properties"]["delivery_info"]["redelivered"] = True
        step, data = self.layout.step_of(payload), dumps(payload)
        for queue in queues:
            (pipe.lpush if leftmost else pipe.rpush)(self._q_for_pri(queue, step), data)

    def unacked_keys(self, tag: str | bytes) -> Unacked:
        """Return the keys under which kombu keeps the message *tag* of a stock worker."""
        stock_name = self.store.keys.stock
        return Unacked(stock_name(self.unacked_key), stock_name(self.unacked_index_key), tag)

    def add_dead_letter_unacked(self, tag: str | bytes, exc: Exception) -> None:
        """Make a dead letter of a message of ``unacked`` that cannot be put back."""
        unacked = self.unacked_keys(tag)
        item = self.store.unacked_message(unacked)
        if item is not None:
            queue = _queue_of(item)
            # Without a queue the dead letter is under the name of kombu's hash. That name must not
            # be used as a queue: its ready list would be that hash.
            details = b"" if queue else pack_details({"unbound": []})
            self._add_undecodable(queue or self.unacked_key, item, exc, details)
        # The message first: an index entry without its message is harmless.
        self.store.client.hdel(unacked.unacked, tag)
        self.store.client.zrem(unacked.unacked_index, tag)

    def _add_undecodable(
        self, queue: str, item: bytes, exc: Exception, details: bytes = b""
    ) -> None:
        log_undecodable(queue, item, exc)
        self.store_of(queue).dead_letters.add(
            queue, f"undecodable-{uuid4()}", f"undecodable message: {exc}", item, details
        )


def _queue_of(unacked: bytes) -> str | None:
    """Return the routing key at the end of an item of ``unacked`` whose message is undecodable."""
    try:
        queue = message_json.decode(unacked.rpartition(b", ")[2].removesuffix(b"]"))
    except Exception:
        return None
    return queue if isinstance(queue, str) and unacked.startswith(b"[") else None


class SentinelChannel(Channel, stock.SentinelChannel):
    """A channel to the master that Sentinels name."""

    connection_class_ssl = ManagedTLSConnection
