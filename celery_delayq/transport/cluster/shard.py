"""The part of a cluster's channel that consumes the queues of one hash tag."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_delayq.store.cluster.nodes import SlotConnection, SlotSSLConnection
from celery_delayq.transport.channel import Channel
from celery_delayq.transport.cluster.slot import Slot, slot_pool, slot_prefix, unpinged
from celery_delayq.transport.qos import QoS


class TolerantQoS(QoS):
    """The messages of a channel whose shard may be away when kombu looks for lost messages."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Put back the messages that kombu keeps for killed workers, unless the shard is away.

        kombu keeps only popped messages. If all messages of the shard are leased, this returns at
        once: kombu's event loop would wait for a silent shard, and delay the other shards.
        """
        channel = self.channel
        if channel.consumer.leased_queues.issuperset(channel.consumer.queues):
            return
        with suppress(*channel.connection_errors):
            super().restore_visible(*args, **kwargs)


class SharedQoS(TolerantQoS):
    """The messages of one shard. They count for the prefetch of the whole channel."""

    def __init__(self, channel: ShardChannel, main_qos: QoS) -> None:
        super().__init__(channel)
        self._main_qos = main_qos
        self._delivered, self._dirty = main_qos._delivered, main_qos._dirty
        self._quick_ack, self._quick_append = main_qos._quick_ack, main_qos._quick_append

    @property
    def prefetch_count(self) -> int:
        """Most unacknowledged messages of the whole channel; 0 for no limit."""
        return int(self._main_qos.prefetch_count)

    @prefetch_count.setter
    def prefetch_count(self, _count: int) -> None:
        pass  # set by kombu's constructor

    def can_consume(self) -> bool:
        """Return whether another message may be handed out."""
        return bool(self._main_qos.can_consume())

    def restore_unacked(self, _client: Any = None) -> None:
        """Put back the unacknowledged messages of this shard."""
        self.requeue_leased()
        own = [tag for tag, each in self._delivered.items() if each.channel is self.channel]
        for tag in own:  # the messages in kombu's "unacked"
            self.restore_by_tag(tag)
            del self._delivered[tag]

    def restore_unacked_once(self, _stderr: Any = None) -> None:
        """Put the messages back when the channel closes."""
        self._on_collect.cancel()
        self.restore_unacked()


class ShardChannel(Channel):
    """Consumes the queues of one hash tag, as a separate channel to a separate Redis.

    Parameters
    ----------
    main_channel : ClusterChannel
        The channel that Celery uses.
    tag : str
        The hash tag.
    """

    connection_class = SlotConnection
    connection_class_ssl = SlotSSLConnection
    global_keyprefix = slot_prefix
    pool = slot_pool

    #: Longer than on a single Redis, since a process has a lease keeper for each shard.
    ack_interval = 0.05

    #: False, since each of many shards becomes idle often while the worker is busy.
    looks_when_idle = False

    #: Longer than on a single Redis. All dispatchers of a process promote at the same moments.
    gather = 0.02

    _qos: SharedQoS | None

    def __init__(self, main_channel: Any, tag: str) -> None:
        self.tag = tag
        self.slot = Slot(tag)
        #: Queues to register when the shard is back.
        self._late: list[str] = []
        with unpinged(self):
            super().__init__(main_channel.connection)
        self.main_channel = main_channel
        self.prefetch = main_channel.prefetch
        # Both name temporary queues.
        self._expires, self.auto_delete_queues = (
            main_channel._expires,
            main_channel.auto_delete_queues,
        )

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        nodes = self.connection.nodes_by(params)
        return self.slot.options(nodes, params, asynchronous=asynchronous)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], *args: Any, **kwargs: Any
    ) -> None:
        handle = self.connection.cycle.note_failures(self, callback)
        super().basic_consume(queue, no_ack, handle, *args, **kwargs)

    def _begin(self, queue: str) -> None:
        """Register a consumed queue, and dispatch; if the shard is away, when it is back."""
        self._late.append(queue)
        cycle = self.connection.cycle
        if not cycle.is_away(self):
            try:
                self.resume()
            except self.connection_errors as exc:
                cycle.note_away(self, exc)

    def resume(self) -> None:
        """Register the queues that were not registered while the shard was away."""
        while self._late:
            if self._late[0] in self.consumer.queues:
                super()._begin(self._late[0])
            del self._late[0]

    def ping(self) -> None:
        """Raise a connection error if the shard is away."""
        connection = self.connection
        if connection is not None:  # None: another thread has closed the channel
            self.slot.ping(connection.nodes)

    def has(self, tag: str) -> bool:
        """Return whether this channel delivered a message."""
        message = self.qos._delivered.get(tag)
        return self.leased(tag) or (message is not None and message.channel is self)

    def maybe_refresh_binding_expiry(self) -> None:
        """Do nothing: the channel that Celery uses has the bindings."""

    @property
    def qos(self) -> Any:
        """The unacknowledged messages of this shard."""
        if self._qos is None:
            self._qos = SharedQoS(self, self.main_channel.qos)
        return self._qos
