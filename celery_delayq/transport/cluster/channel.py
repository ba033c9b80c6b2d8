"""The channel to a Redis Cluster that kombu and Celery use."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from kombu.utils.json import dumps

from celery_delayq.model.cluster_tags import cluster_tags, tag_of
from celery_delayq.store.cluster.nodes import (
    HURRIED_OPTIONS,
    SlotConnection,
    SlotSSLConnection,
    quick,
)
from celery_delayq.store.cluster.stores import cluster_stores
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.transport.channel import Channel, is_for_replies
from celery_delayq.transport.cluster.bindings import LateBindings
from celery_delayq.transport.cluster.shard import ShardChannel, TolerantQoS
from celery_delayq.transport.cluster.slot import Slot, slot_pool, slot_prefix, unpinged

logger = logging.getLogger(__name__)

#: Seconds to wait before a publish raises the error of a shard that is away. kombu itself waits
#: between two attempts only if no node accepts a connection.
FAILURE_PAUSE_SECONDS = 0.2


class ClusterChannel(Channel):
    """Sends each message to the shard of its queue, and consumes by one channel for each hash tag.

    All bindings of kombu have the same hash tag, so that kombu's transactions stay in one slot.
    """

    QoS = TolerantQoS
    connection_class = SlotConnection
    connection_class_ssl = SlotSSLConnection
    global_keyprefix = slot_prefix
    pool = slot_pool

    #: Whether the channel is declaring a queue now.
    _declares = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self.tags = cluster_tags(connection.settings.cluster_tags)
        self.tag = self.tags[0]
        self.slot = Slot(self.tag)
        self._parts: dict[str, ShardChannel] = {}
        #: Channels by consumer tag.
        self._consuming: dict[str, ShardChannel] = {}
        with unpinged(self):
            super().__init__(connection, **kwargs)
        _ = self.pool  # sets the transport's `nodes`
        self._bindings = LateBindings(
            self.slot.name, self.connection_errors, lambda: not (self.closed or self._closing)
        )

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        nodes = self.connection.nodes_by(params)
        return self.slot.options(nodes, params, asynchronous=asynchronous)

    # -- stores

    @cached_property
    def stores(self) -> Stores:
        """The stores of all queues."""
        return self.new_stores()

    @cached_property
    def _hurried_stores(self) -> Stores:
        """The stores with short timeouts, for a worker that starts while a shard is silent."""
        return self._new_stores(**HURRIED_OPTIONS)

    def new_stores(self) -> Stores:
        """Return the stores of all queues, with connections as in :meth:`new_store`.

        The connections stay open when this channel closes. Each thread that uses a store has one.
        """
        return self._new_stores()

    def _new_stores(self, **options: Any) -> Stores:
        settings = self.settings
        return cluster_stores(
            self.connection.nodes,
            self.slot.keys,
            self.layout,
            settings.limits,
            number=settings.cluster_tags,
            **options,
        )

    def store_of(self, queue: str) -> Store:
        """Return the store of a queue."""
        return self.stores.of(queue)

    def database_id_of(self, queue: str) -> str:
        """Return the :attr:`database_id` of a queue's messages."""
        return self._database_id_by(self.store_of(queue).keys)

    def part_of(self, queue: str) -> ShardChannel:
        """Return the channel that consumes a queue."""
        tag = tag_of(queue, self.tags)
        if tag not in self._parts:
            self._parts[tag] = ShardChannel(self, tag)
        return self._parts[tag]

    # -- to consume

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        if queue in self._fanout_queues:
            handle = self.connection.cycle.note_failures(self, callback)
            super().basic_consume(queue, no_ack, handle, consumer_tag, **kwargs)
            return
        part = self._consuming[consumer_tag] = self.part_of(queue)
        part.basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._active_queues.append(queue)  # kombu extends the expiry of the bindings of these

    def basic_cancel(self, consumer_tag: str) -> Any:
        part = self._consuming.pop(consumer_tag, None)
        if part is None:
            return super().basic_cancel(consumer_tag)
        queue = part._tag_to_queue.get(consumer_tag)
        if queue in self._active_queues:
            self._active_queues.remove(queue)
        return part.basic_cancel(consumer_tag)

    @property
    def active_queues(self) -> list[str]:
        """An empty list: the parts consume the queues."""
        return []

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message of *queue* or None. The message is leased unless *no_ack*."""
        return self.part_of(queue).basic_get(queue, no_ack, **kwargs)

    def close(self) -> None:
        if self.closed:
            return
        for part in self._parts.values():
            part.close()
        super().close()
        for name in {"stores", "_hurried_stores"} & vars(self).keys():
            getattr(self, name).disconnect()

    # -- to settle a message by its tag; a message object uses its own part

    def _part_with(self, tag: str) -> ShardChannel | None:
        """Return the part that delivered a message; None for a message of a fanout exchange."""
        return next((part for part in self._parts.values() if part.has(tag)), None)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> Any:
        part = self._part_with(delivery_tag)
        return (part.basic_ack if part else super().basic_ack)(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> Any:
        part = self._part_with(delivery_tag)
        return (part.basic_reject if part else super().basic_reject)(delivery_tag, requeue)

    # -- queues and bindings

    def queue_declare(self, *args: Any, **kwargs: Any) -> Any:
        """Declare a queue. If its shard is away, the returned number of messages is 0."""
        self._declares = True
        try:
            return super().queue_declare(*args, **kwargs)
        finally:
            self._declares = False

    def _queue_bind(self, *binding: Any) -> None:
        exchange, routing_key, _, queue = binding
        if self.typeof(exchange).type == "fanout":  # kombu notes this only if Redis answers
            self._fanout_queues[queue] = exchange, routing_key.replace("#", "*")
        self._bindings.store(partial(super()._queue_bind, *binding))

    def _size(self, queue: str) -> int:
        """Return the number of ready and scheduled messages of *queue*."""
        try:
            return self._total_size(queue)
        except self.connection_errors:
            if self._declares:
                return 0
            raise

    def _total_size(self, queue: str) -> int:
        stores = self._hurried_stores if self._declares else self.stores
        sizes = stores.of(queue).gauges.sizes(queue, self.layout)
        return sizes.ready + sizes.scheduled

    def _has_queue(self, queue: str, **_: Any) -> bool:
        store = self.store_of(queue)
        return bool(store.client.exists(*store.keys.ready_lists(queue, self.layout)))

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish a message. Drop a reply of remote control if its shard is away.

        kombu would try again without end, and a worker's event loop would wait for that shard.
        """
        publish = partial(super().basic_publish, message, exchange, routing_key, **kwargs)
        if not is_for_replies(exchange):
            return publish()
        with suppress(*self.connection_errors):  # the slot may have moved
            return publish()
        try:
            return publish()
        except self.connection_errors as exc:
            logger.warning("reply of remote control dropped, the shard is away: %s", exc)

    def bound_queues(self, exchange: str, routing_key: str) -> list[str]:
        """Return the queues bound to an exchange for a routing key, sorted."""
        try:
            return super().bound_queues(exchange, routing_key)
        except self.connection_errors:  # the shard of the bindings is away
            if is_for_replies(exchange):
                return [f"{routing_key}.{exchange}"]  # kombu's name of a reply queue
            raise

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        try:
            if self.connection is None or self.can_schedule(queue):
                super()._put(queue, message, **kwargs)
            else:
                self.part_of(queue)._put(queue, message, **kwargs)
        except self.connection_errors:
            info = message["properties"].get("delivery_info") or {}
            is_reply = is_for_replies(info.get("exchange") or "")
            if self.connection is not None and not is_reply:
                time.sleep(FAILURE_PAUSE_SECONDS)
            raise

    def _purge(self, queue: str) -> int:
        if self.can_schedule(queue):
            return super()._purge(queue)
        return self.part_of(queue)._purge(queue)

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("client", None)  # kombu's client sends to any node
        unbind = partial(super()._delete, queue, exchange, *args, **kwargs)
        if self.can_schedule(queue):
            unbind()
            return
        self._bindings.store(unbind)
        store = self.store_of(queue)
        # kombu deletes a reply queue after each call of remote control. If the queue's shard is
        # away, the call still returns the replies that came.
        may_be_away = self.connection_errors if is_for_replies(exchange) else ()
        with suppress(*may_be_away):
            store.client.unlink(*store.keys.ready_lists(queue, self.layout))

    # -- fanout

    @cached_property
    def subclient(self) -> Any:
        """The subscription to fanout exchanges, at any node: each node gets all messages."""
        return self.Client(connection_pool=self._any_node(asynchronous=True)).pubsub()

    def _any_node(self, *, asynchronous: bool = False) -> Any:
        pool = self._get_pool(asynchronous)
        # A silent node delays the event loop once: the next connection goes to another node.
        pool.connection_kwargs.update(slot=None, **quick(pool.connection_kwargs))
        return pool

    @cached_property
    def _publisher(self) -> Any:
        return self.Client(connection_pool=self._any_node())

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> None:
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            super()._put_fanout(exchange, message, routing_key, **kwargs)
        else:
            topic = self._get_publish_topic(exchange, routing_key)
            self._publisher.publish(topic, dumps(message))

    def ping(self) -> None:
        """Raise a connection error if no node answers. Do nothing if the channel is closed."""
        if (connection := self.connection) is not None:  # None: another thread has closed it
            with connection.nodes.briefly(None) as client:
                client.ping()
