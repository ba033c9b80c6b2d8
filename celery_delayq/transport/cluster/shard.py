"""The part of a cluster's channel that consumes the queues of one hash tag."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_delayq.transport.cluster.tagged import TaggedChannel
from celery_delayq.transport.fair_share import DEPTH
from celery_delayq.transport.qos import Message, QoS
from celery_delayq.transport.requests import Taken


class TolerantQoS(QoS):
    """The messages of a channel whose shard may be away when kombu looks for lost ones."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Put back messages that kombu keeps for killed workers; where the shard is away, later.

        It keeps those that were popped only, and its event loop waits here: a silent shard, of
        which all is leased, would hold up the others.
        """
        channel = self.channel
        if channel.leased_queues.issuperset(channel.consumed):
            return
        with suppress(*channel.connection_errors):
            super().restore_visible(*args, **kwargs)


class SharedQoS(TolerantQoS):
    """The messages of one shard, which count for the prefetch of the whole channel."""

    def __init__(self, channel: ShardChannel, whole: QoS) -> None:
        super().__init__(channel)
        self._whole = whole
        self._delivered, self._dirty = whole._delivered, whole._dirty
        self._quick_ack, self._quick_append = whole._quick_ack, whole._quick_append

    @property
    def prefetch_count(self) -> int:
        """The most messages that the whole channel may have handed out, 0 for no limit."""
        return int(self._whole.prefetch_count)

    @prefetch_count.setter
    def prefetch_count(self, _count: int) -> None:
        pass  # kombu's constructor

    def can_consume(self) -> bool:
        """Return whether another message may be handed out."""
        return bool(self._whole.can_consume())

    def restore_unacked(self, _client: Any = None) -> None:
        """Put back the unacknowledged messages of this shard."""
        self.channel.hand_back(self.take_leased())
        own = [tag for tag, each in self._delivered.items() if each.channel is self.channel]
        for tag in own:  # what kombu keeps
            self.restore_by_tag(tag)
            del self._delivered[tag]

    def restore_unacked_once(self, _stderr: Any = None) -> None:
        """Do it when the channel closes."""
        self._on_collect.cancel()
        self.restore_unacked()


class ShardChannel(TaggedChannel):
    """Consumes the queues of one hash tag, as a channel of its own to a Redis of its own.

    Parameters
    ----------
    whole : ClusterChannel
        The channel that Celery knows.
    tag : str
        The hash tag.
    """

    #: As a process has a lease keeper for each shard, each looks more rarely.
    ack_interval = 0.05

    #: Each of many shards gets idle again and again while the worker is busy.
    looks_after_work = False

    #: So that the dispatchers of all shards together promote as often as that of a single Redis.
    gather = 0.02

    _qos: SharedQoS | None

    def __init__(self, whole: Any, tag: str) -> None:
        self._whole = whole
        #: Queues to begin with when the shard is back.
        self._late: list[str] = []
        super().__init__(whole.connection, tag)
        # Which of its queues do not last.
        self._expires, self.auto_delete_queues = whole._expires, whole.auto_delete_queues

    @property
    def whole(self) -> Any:
        """The channel that Celery knows."""
        return self._whole

    def _begin(self, queue: str) -> None:
        """Begin to consume a queue; where the shard is away, when it is back."""
        self._late.append(queue)
        cycle = self.connection.cycle
        if not cycle.is_away(self):
            try:
                self.resume()
            except self.connection_errors as exc:
                cycle.lost(self, exc)

    def resume(self) -> None:
        """Begin with the queues that could not be consumed while the shard was away."""
        while self._late:
            if self._late[0] in self.consumed:
                super()._begin(self._late[0])
            del self._late[0]

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
            self._qos = SharedQoS(self, self._whole.qos)
        return self._qos

    @property
    def fetched(self) -> int:
        """How many messages of all shards are here, or may come, that are not handed out."""
        return int(self._whole.fetched)

    def credit_for(self, credit: int, has_more: bool) -> int:
        """Return for how many of the messages that may be taken to ask now.

        The shards ask at the same time. One that may have a single message leaves room to all
        others. One that has more asks for at least :data:`DEPTH`, and leaves room for one at least.
        """
        asking: int = self._whole.asking
        if asking <= 1:
            return credit
        if has_more:
            return min(max(1, credit - 1), max(DEPTH, credit // 2))
        return max(1, credit // asking)

    @property
    def is_settled(self) -> bool:
        """Whether the poller has nothing to send, connect or register for this channel."""
        in_poll = self._in_poll
        if in_poll:  # a reply that comes while nothing may be taken is left for later
            return in_poll._sock is not None
        return not self._consumers_of or self._fetcher.is_content

    @property
    def asks_for_each(self) -> bool:
        """Whether Celery wants to be asked for each message (``worker_disable_prefetch``)."""
        return bool(self._whole.asks_for_each)

    def deliver_one(self) -> bool:
        """Hand out one fetched message; return whether there was one."""
        delivered = super().deliver_one()
        self._had_its_turn(delivered)
        return delivered

    def deliver(self) -> None:
        """Hand out fetched messages in an event loop, for a moment at a time."""
        super().deliver()
        self._had_its_turn(True)

    def _put_off(self, taken: Taken, message: Message) -> bool:
        try:
            return super()._put_off(taken, message)
        except self.connection_errors:
            # The next ones would wait for the shard as long. The keeper gives them back when the
            # shard is there.
            self.keeper.orphan(each.tag for each in self._fetcher.take_all())
            raise

    def _had_its_turn(self, delivered: bool) -> None:
        if delivered and self.connection is not None:
            self.connection.cycle.had_its_turn(self)
