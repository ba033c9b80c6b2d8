"""The publishing half of the channel: tasks with an ETA go to the schedule."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha1
from types import MappingProxyType
from typing import Any

from amqp import RecoverableConnectionError
from kombu.transport import redis as stock
from redis import ConnectionPool, Redis
from redis.exceptions import ResponseError

from celery_delayq.errors import InvalidOption, NotAllowed
from celery_delayq.integration import run_history, worker_checks
from celery_delayq.model import delivery, envelope, publish_outcome
from celery_delayq.model.dead_letter import pack_details
from celery_delayq.model.delivery import HeldBy
from celery_delayq.model.envelope import Due, Entry
from celery_delayq.model.names import NOT_OWN_KEY, is_own_key
from celery_delayq.model.publish_outcome import PublishOutcome, Put
from celery_delayq.model.task_options import check_identity, check_text
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.refusals import is_denied, is_full
from celery_delayq.store.scripting.replies import Puts
from celery_delayq.store.stores import Stores
from celery_delayq.transport.batch import PublishBatch
from celery_delayq.utils import message_json

logger = logging.getLogger(__name__)


def _is_first(message: Mapping[str, Any], queue: str) -> bool:
    """Return whether *queue* is the first to which a message goes; a topic may have several."""
    first: str = message["properties"][envelope.PROPERTY].setdefault("retried_to", queue)
    return first == queue


class PublishChannel(stock.Channel):
    """A channel of kombu that schedules tasks with an ETA."""

    #: The hash tag of its queues, on a Redis Cluster.
    tag = ""

    #: Queues with ``x-expires``; kombu before 5.6 knows none.
    _expires: Mapping[str, Any] = MappingProxyType({})

    #: Exchange and key of the current message if no queue is bound there.
    _unbound: tuple[str, str] | None = None

    _store: Store | None = None
    _commands: Redis | None = None

    def __init__(self, connection: Any, *args: Any, **kwargs: Any) -> None:
        #: The ``delayq`` settings of the connection. Tasks may end after it was closed.
        self.settings: Settings = connection.settings
        super().__init__(connection, *args, **kwargs)

    @cached_property
    def layout(self) -> Layout:
        """How this channel lays out the ready lists of its queues."""
        return Layout(self.sep, tuple(self.priority_steps))

    @property
    def store(self) -> Store:
        """Our data, through the connection pool of this channel.

        The client is a plain one: kombu's own prefixes only some commands, and only the first
        key of a script.
        """
        if self._store is None or self._store.client.connection_pool is not self.pool:
            database = int(self.pool.connection_kwargs.get("db") or 0)
            keys = Keys(self.global_keyprefix, database, self.tag)
            client = Redis(connection_pool=self.pool)
            self._store = Store(client, keys, self.layout, self.settings.limits)
        return self._store

    def new_store(self) -> Store:
        """Return a store with connections of its own, which outlive this channel."""
        client = Redis(connection_pool=self.new_pool())
        return Store(client, self.store.keys, self.layout, self.settings.limits)

    def new_pool(self) -> ConnectionPool:
        """Return a pool of as many connections as there are threads that use it.

        kombu's limit is for one channel.
        """
        pool: ConnectionPool = self._get_pool()
        pool.max_connections = sys.maxsize
        return pool

    @property
    def whole(self) -> Any:
        """The channel that Celery knows: this one, or the one of which it is a part."""
        return self

    @property
    def stores(self) -> Stores:
        """Our data of all queues."""
        return Stores.single(self.store)

    def new_stores(self) -> Stores:
        """Return our data of all queues by connections of their own, as :meth:`new_store` does."""
        return Stores.single(self.new_store())

    def store_of(self, _queue: str) -> Store:
        """Return our data of a queue."""
        return self.store

    def place_of(self, _queue: str) -> str:
        """Return the :attr:`place` where the messages of a queue are."""
        return self.place

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return kombu's client; the one for commands is kept, not made for each of them."""
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._commands is None or self._commands.connection_pool is not self.pool:
            self._commands = super()._create_client()
        return self._commands

    # By Python's own cached_property, where the second look costs nothing: kombu's is a call each
    # time, and the event loop looks several times at each turn.
    @cached_property
    def client(self) -> Any:
        """The client that waits for messages."""
        return self._create_client(asynchronous=True)

    @cached_property
    def subclient(self) -> Any:
        """The subscription to fanout exchanges."""
        return self._create_client(asynchronous=True).pubsub()

    def can_schedule(self, queue: str) -> bool:
        """Return whether *queue* lasts, so that something may wait in it for a year.

        Fanout, reply, auto-delete, exclusive and expiring queues do not.
        """
        return not (
            queue in self.connection.temporary_queues
            or queue in self.auto_delete_queues
            or queue in self._expires
            or queue in self._fanout_queues
        )

    def _next_delivery_tag(self) -> str:
        """Return a tag as unique as kombu's UUID, at a tenth of its cost."""
        return os.urandom(16).hex()

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        check_text("queue", queue)
        if is_own_key(queue):
            raise InvalidOption(f"queue={queue!r}: expected {NOT_OWN_KEY}")
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        # A queue is declared on one channel and used on others of the same connection.
        if auto_delete or kwargs.get("exclusive") or queue in self._expires:
            self.connection.temporary_queues.add(queue)
        else:
            self.connection.temporary_queues.discard(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Bind a queue; where it is bound already, or needs no binding, a full Redis is no matter.

        A worker that connects anew must be able to go on, or nothing would make room.
        """
        try:
            super()._queue_bind(exchange, routing_key, pattern, queue)
        except ResponseError as exc:
            is_fanout = queue in self._fanout_queues
            binding = routing_key or "", pattern or "", queue or ""
            if not is_full(exc) or not (is_fanout or binding in self.get_table(exchange)):
                raise

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Any:
        queues = super()._lookup(exchange, routing_key, default)
        if not queues:
            self._unbound = exchange, routing_key
        return queues

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish a message; a task that no queue would get is a dead letter.

        kombu drops it: the bindings are in Redis, too, and may have been evicted or deleted.
        """
        self._unbound = None
        worker_checks.warn_of_call(message)
        check_text("exchange", exchange)
        check_text("routing_key", routing_key)
        if envelope.is_task(message):
            check_identity(message["headers"])
        result = super().basic_publish(message, exchange, routing_key, **kwargs)
        # Forgotten at once: on an event loop others use this channel while a message is stored.
        unbound, self._unbound = self._unbound, None
        if unbound is not None and envelope.is_task(message):
            why = f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r}"
            task_id = str(message["headers"]["id"])
            logger.error("Task %r is a dead letter: %s", task_id, why)
            details = pack_details({"unbound": [exchange, routing_key]})
            # Under the exchange, of which there are few: a routing key may be anything.
            data = message_json.encode(message)
            self.store_of(exchange).dead_letters.add(exchange, task_id, why, data, details)
        return result

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if self.connection is None:
            # Closed by a failover; kombu connects and publishes again.
            raise RecoverableConnectionError("channel disconnected")
        retry_of = delivery.retry_of(message)
        lasts = self.can_schedule(queue)
        batch = kwargs.get("_publish_batch")
        if retry_of is not None and not (
            lasts
            and batch is None
            and retry_of.place == self.place_of(queue)
            and _is_first(message, queue)
        ):
            retry_of, message = None, delivery.without_retry_of(message)
        if not lasts:
            super()._put(queue, message, **kwargs)
            return
        due = envelope.due_when_sent(message)
        step = self.priority(self._get_message_priority(message, reverse=False))
        if retry_of is not None:
            self._put_retry(queue, Entry.of(message, step, due or Due(0)), retry_of)
        elif not envelope.is_special(message) and (due is None or self._is_short(queue, due)):
            data = message_json.encode(message)
            if batch is not None:
                batch.add_ready(queue, step, data)
            else:
                store = self.store_of(queue)
                ready = store.ready_call(queue)
                ready.add(step, data)
                self._run(store, ready)
        elif batch is not None:
            batch.add_entry(queue, Entry.of(message, step, due or Due(0)))
        else:
            # A retry that is refused would be lost where its message is acknowledged already.
            is_retry = bool(message["headers"].get("retries"))
            store = self.store_of(queue)
            call = store.puts(queue, retry=is_retry)
            entry = Entry.of(message, step, due or Due(0))
            call.add(entry)
            _, [put], replaced = Puts.read(self._run(store, call))
            id = str(message["headers"]["id"])
            publish_outcome.note(PublishOutcome(id, put, queue, entry.data, replaced.get(0, b"")))

    def _put_retry(self, queue: str, entry: Entry, held: HeldBy) -> None:
        """Schedule a retry in place of the running task's message."""
        worker_id, _, field = held.tag.partition(":")
        run = run_history.of_retry() if self.settings.history else b""
        store, head = self.store_of(queue), envelope.head_with(held.label)
        call = store.leases.replace_call(
            queue, entry, held.queue, worker_id, field, head=head, when_due="push", run=run
        )
        state = self._run(store, call)
        if state == b"superseded":
            publish_outcome.note(PublishOutcome(entry.id, Put("superseded"), queue))
            logger.info(
                "Task %r is not tried again: another one has taken its unique key", entry.id
            )
        if state == b"gone":
            logger.warning(
                "The retry of task %r is void: its message was given to another worker, "
                "which runs it again",
                entry.id,
            )

    def _run(self, store: Store, call: Call) -> Any:
        """Call the store, and wait for replicas if a setting says so.

        Raises
        ------
        NotAllowed
            The account lacks a right. kombu must not repeat the call: the script may have written a
            part, and would take the repeat for a duplicate of a task that was never scheduled.
        """
        settings = self.settings
        try:
            if settings.wait_replicas:
                replicas, seconds = settings.wait_replicas, settings.wait_timeout
                return store.run_replicated(call, replicas, seconds)
            return store.run(call)
        except ResponseError as exc:
            if is_denied(exc):
                raise NotAllowed(
                    f"docs/accounts.md lists the rights that an account of Redis needs: {exc}"
                ) from exc
            raise

    @cached_property
    def place(self) -> str:
        """Which Redis database, under which prefix: the same for all channels that share it."""
        return self._place_by(self.store.keys)

    def _place_by(self, keys: Keys) -> str:
        """Return the :attr:`place` of data under other keys."""
        where = f"{self.connection.place} {keys}"
        return sha1(where.encode(), usedforsecurity=False).hexdigest()[:16]

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return the pipeline behind :meth:`kombu.Producer.batch`."""
        return PublishBatch(self, max_size)

    def _is_short(self, queue: str, due: Due) -> bool:
        """Return whether the delay is so short that the worker waits itself (``min_delay``)."""
        if not self.settings.min_delay:
            return False
        wait_ms = due.ms if due.relative else due.ms - self.store_of(queue).now_ms()
        return 0 < wait_ms < self.settings.min_delay * 1000
