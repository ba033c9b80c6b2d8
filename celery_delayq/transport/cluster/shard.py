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
    """The messages of a channel whose shard may be away when kombu looks for lost ones."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Put back messages that kombu keeps for killed workers; where the shard is away, later.

        It keeps those that were popped only, and its event loop waits here: a silent shard, of
        which all is leased, would hold up the others.
        """
        channel = self.channel
        if channel.consumer.leased_queues.issuperset(channel.consumer.queues):
            return
        with suppress(*channel.connection_errors):
            super().restore_visible(*args, **kwargs)


class SharedQoS(TolerantQoS):
    """The messages of one shard, which count for the prefetch of the whole channel."""

    def __init__(self, channel: ShardChannel, main_qos: QoS) -> None:
        super().__init__(channel)
        self._main_qos = main_qos
        self._delivered, self._dirty = main_qos._delivered, main_qos._dirty
        self._quick_ack, self._quick_append = main_qos._quick_ack, main_qos._quick_append

    @property
    def prefetch_count(self) -> int:
        """The most messages that the whole channel may have handed out, 0 for no limit."""
        return int(self._main_qos.prefetch_count)

    @prefetch_count.setter
    def prefetch_count(self, _count: int) -> None:
        pass  # kombu's constructor

    def can_consume(self) -> bool:
        """Return whether another message may be handed out."""
        return bool(self._main_qos.can_consume())

    def restore_unacked(self, _client: Any = None) -> None:
        """Put back the unacknowledged messages of this shard."""
        self.hand_back_leased()
        own = [tag for tag, each in self._delivered.items() if each.channel is self.channel]
        for tag in own:  # what kombu keeps
            self.restore_by_tag(tag)
            del self._delivered[tag]

    def restore_unacked_once(self, _stderr: Any = None) -> None:
        """Do it when the channel closes."""
        self._on_collect.cancel()
        self.restore_unacked()


class ShardChannel(Channel):
    """Consumes the queues of one hash tag, as a channel of its own to a Redis of its own.

    Parameters
    ----------
    whole : ClusterChannel
        The channel that Celery knows.
    tag : str
        The hash tag.
    """

    connection_class = SlotConnection
    connection_class_ssl = SlotSSLConnection
    global_keyprefix = slot_prefix
    pool = slot_pool

    #: As a process has a lease keeper for each shard, each looks more rarely.
    ack_interval = 0.05

    #: Each of many shards gets idle again and again while the worker is busy.
    looks_after_work = False

    #: So that the dispatchers of all shards together promote as often as that of a single Redis.
    gather = 0.02

    _qos: SharedQoS | None

    def __init__(self, main_channel: Any, tag: str) -> None:
        self.tag = tag
        self.slot = Slot(tag)
        #: Queues to begin with when the shard is back.
        self._late: list[str] = []
        with unpinged(self):
            super().__init__(main_channel.connection)
        self.main_channel = main_channel
        self.prefetch = main_channel.prefetch
        # Which of its queues do not last.
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
        """Begin to consume a queue; where the shard is away, when it is back."""
        self._late.append(queue)
        cycle = self.connection.cycle
        if not cycle.is_away(self):
            try:
                self.resume()
            except self.connection_errors as exc:
                cycle.note_away(self, exc)

    def resume(self) -> None:
        """Begin with the queues that could not be consumed while the shard was away."""
        while self._late:
            if self._late[0] in self.consumer.queues:
                super()._begin(self._late[0])
            del self._late[0]

    def ping(self) -> None:
        """Raise an error of a connection if the shard is away."""
        connection = self.connection
        if connection is not None:  # closed meanwhile, by another thread
            self.slot.ping(connection.nodes)

    def has(self, tag: str) -> bool:
        """Return whether a message came by this channel."""
        message = self.qos._delivered.get(tag)
        return self.leased(tag) or (message is not None and message.channel is self)

    def maybe_refresh_binding_expiry(self) -> None:
        """Leave bindings to the channel that Celery knows."""

    @property
    def qos(self) -> Any:
        """The messages of this shard that are handed out."""
        if self._qos is None:
            self._qos = SharedQoS(self, self.main_channel.qos)
        return self._qos
