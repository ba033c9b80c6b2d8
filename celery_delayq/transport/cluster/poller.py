"""Polls the connections to all shards. A shard that is away does not delay the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty
from typing import Any

from redis.client import PubSub
from redis.exceptions import TimeoutError

from celery_delayq.store.cluster.nodes import NODE_TIMEOUT_SECONDS
from celery_delayq.store.scripting.wire import socket_of
from celery_delayq.transport.cluster.shard import ShardChannel
from celery_delayq.transport.consumer import Consumer, State
from celery_delayq.transport.poller import Poller, is_readable
from celery_delayq.utils import native_threads

logger = logging.getLogger(__name__)

#: Text of a PING. redis-py recognizes the reply to this text.
PING_TEXT = PubSub.HEALTH_CHECK_MESSAGE

#: Seconds between two checks whether a lost shard is back.
PROBE_SECONDS = 0.25

#: Seconds between two checks for connections whose reply is overdue.
LOOK_SECONDS = 0.5


class Turns(dict[Any, None]):
    """Channels in the order of their turns. kombu uses this as a set."""

    def add(self, channel: Any) -> None:
        """Add a channel as the last one."""
        self[channel] = None

    def discard(self, channel: Any) -> None:
        """Remove a channel."""
        self.pop(channel, None)


class ClusterPoller(Poller):
    """A poller that continues after a connection is lost, and gives each channel its turn.

    On a single Redis, Celery opens all its channels again after a lost connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self._channels = Turns()
        #: Channels whose shard is away.
        self._away: set[Any] = set()
        #: Channels whose last connection error was raised by a message's callback. The error itself
        #: is not kept, since it refers to the message.
        self._failed: set[Any] = set()
        #: By channel: the time of the last PING to the node of its subscription.
        self._pinged_at: dict[Any, float] = {}
        self._look_at = 0.0

    def _had_its_turn(self, channel: Any) -> None:
        """Let the other channels deliver and request messages before this channel."""
        if channel in self._channels:
            self._channels.discard(channel)
            self._channels.add(channel)

    def discard(self, channel: Any) -> None:
        """Stop polling for a channel."""
        super().discard(channel)
        self._away.discard(channel)
        self._failed.discard(channel)
        self._pinged_at.pop(channel, None)

    def on_poll_start(self) -> None:
        """Connect, listen and request messages for each channel that needs one of these."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._leave_silent()
        away = self._away
        with ExitStack() as stack:
            for main_channel in {each.main_channel for each in self._channels}:
                stack.enter_context(main_channel.prefetch.counted_once())
            asking = [
                each for each in self._channels if not (each in away or self._is_settled(each))
            ]
        # Only if a message may be taken. Otherwise kombu would stop polling all descriptors.
        paused = getattr(self, "_paused_brpop", None)
        if paused and next(iter(paused.values()))[0].qos.can_consume():
            self._update_brpop_polling()
        for number, channel in enumerate(asking):
            channel.main_channel.prefetch.asking = len(asking) - number
            if channel.active_queues and channel.qos.can_consume():
                self._register_BRPOP(channel)
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)

    def _leave_silent(self) -> None:
        """Close connections whose reply is overdue: a socket's timeout does not end a poll."""
        for channel in tuple(self._channels):
            overdue = _overdue_seconds(channel)
            if channel not in self._away and overdue > NODE_TIMEOUT_SECONDS:
                self.note_away(channel, TimeoutError(f"no reply for {overdue:.1f} s"))
            try:
                self._watch_subscription(channel)
            except channel.connection_errors as exc:
                self.note_away(channel, exc)

    def _watch_subscription(self, channel: Any) -> None:
        """Send a PING to the node of the subscription, and leave the node if it is silent.

        A socket's timeout does not end the wait for a message.
        """
        connection = channel._in_listen and channel.subclient.connection
        if not (connection and connection._sock):
            return
        now, pinged_at = time.monotonic(), self._pinged_at.get(channel, 0.0)
        if not channel.subclient.health_check_response_counter:
            if now - pinged_at >= NODE_TIMEOUT_SECONDS:
                self._pinged_at[channel] = now
                connection.send_command("PING", PING_TEXT, check_health=False)
                channel.subclient.health_check_response_counter = 1
        elif now - pinged_at > NODE_TIMEOUT_SECONDS and not is_readable(connection._sock):
            logger.warning(
                "%s:%s is silent, events and commands of remote control go over other nodes",
                connection.host,
                connection.port,
            )
            connection.note_silent()
            connection.disconnect()
            channel.subclient.health_check_response_counter = 0

    def _register_BRPOP(self, channel: Any) -> None:  # noqa: N802
        self._register_by(channel, super()._register_BRPOP)

    def _register_LISTEN(self, channel: Any) -> None:  # noqa: N802
        self._register_by(channel, super()._register_LISTEN)

    def _register_by(self, channel: Any, register: Callable[[Any], Any]) -> None:
        """Connect a channel and request messages, unless its shard is away.

        kombu before 5.7 also calls this itself, for all channels.
        """
        if channel in self._away:
            return
        try:
            if isinstance(channel, ShardChannel):
                channel.resume()
            register(channel)
        except channel.connection_errors as exc:
            self.note_away(channel, exc)

    def on_readable(self, fileno: int) -> Any:
        """Read the data of a descriptor."""
        channel, _ = self._fd_to_chan.get(fileno, (None, None))
        try:
            return super().on_readable(fileno)
        except getattr(channel, "connection_errors", ()) as exc:
            self.note_away(channel, exc)
            raise Empty() from exc  # with another error `drain_events` ends before its timeout

    def _may_be_read(self, _channel: Any) -> bool:
        """Return True: a reply that comes while no message may be taken is read later."""
        return True

    def deliver_one(self, channel: Any) -> bool:
        """Hand out one fetched message of a channel. Return whether there was one."""
        delivered = super().deliver_one(channel)
        if delivered:
            self._had_its_turn(channel)
        return delivered

    def deliver(self, channel: Any) -> None:
        """Hand out fetched messages of a channel: in an event loop for a short time, else one."""
        super().deliver(channel)
        self._had_its_turn(channel)

    def _deliver_by(self, channel: Any, deliver: Callable[[Any], Any]) -> Any:
        """Hand out messages of a channel by *deliver*. Note if its shard goes away meanwhile."""
        try:
            return deliver(channel)
        except channel.connection_errors as exc:
            self.note_away(channel, exc)
            return False

    def note_failures(self, channel: Any, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the callback for a channel's messages: note a connection error of the callback, such
        as one of a result backend.
        """

        def handle(message: Any) -> Any:
            try:
                return callback(message)
            except channel.connection_errors:
                self._failed.add(channel)
                raise

        return handle

    def on_credit(self, _channel: Any) -> None:
        """Wake the poll. Any shard may be waiting, since all shards share one prefetch."""
        self.wakeup.set()

    def is_away(self, channel: Any) -> bool:
        """Return whether the shard of a channel is away."""
        return channel in self._away

    def note_away(self, channel: Any, exc: Exception) -> None:
        """Note that the shard of a channel is away, and probe it until it is back.

        An error of a message's callback is raised: only a new connection requeues the message.
        """
        of_callback = channel in self._failed
        self._failed.discard(channel)
        if channel.closed or of_callback:
            raise exc
        if channel in self._away:  # a fetched message needed the shard
            _disconnect(channel)
            return
        logger.warning("%s is away, its queues wait: %s", channel.slot.name, exc)
        self._away.add(channel)
        _disconnect(channel)
        native_threads.start(partial(self._probe, channel, self.wakeup))

    def _probe(self, channel: Any, wakeup: Any) -> None:
        """Wait until a shard is back. Runs in a thread, since a lost host never answers."""
        while channel in self._away and not channel.closed:
            native_threads.sleep(PROBE_SECONDS)
            with suppress(Exception):  # after any error the shard is not back
                channel.ping()
                break
        if channel in self._away and not channel.closed:
            self._away.discard(channel)
            logger.info("%s is back", channel.slot.name)
            wakeup.set()

    def _on_connection_disconnect(self, connection: Any) -> None:
        """Forget a closed connection. It has left the poller already."""
        if hasattr(self, "_discard_paused_connection"):  # kombu 5.7 and newer
            self._discard_paused_connection(connection)
        for channel, client, kind in [*self._chan_to_sock]:
            if client.connection is connection:
                del self._chan_to_sock[channel, client, kind]
                for fd in [fd for fd, of in self._fd_to_chan.items() if of == (channel, kind)]:
                    del self._fd_to_chan[fd]


def _overdue_seconds(channel: Any) -> float:
    """Return the seconds for which the reply that a channel awaits has been overdue."""
    consumer: Consumer | None = vars(channel).get("consumer")
    sock = None if consumer is None else socket_of(consumer.awaited_connection)
    if consumer is None or sock is None:
        return 0.0
    wait = consumer.idle.wait_seconds if consumer.state is State.BLOCKED else 0.0
    seconds = time.monotonic() - consumer.sent_at - wait
    # The reply may have come, unread: the event loop was busy, or no message may be taken.
    return 0.0 if seconds <= 0 or is_readable(sock) else seconds


def _disconnect(channel: Any) -> None:
    """Close the connections of a channel in the poller, and drop requests without a reply."""
    consumer: Consumer | None = vars(channel).get("consumer")
    if consumer is not None:
        # The requests would use up the prefetch of all shards while this shard is away.
        consumer.abandon()
    for name in ("client", "subclient"):
        connection = getattr(vars(channel).get(name), "connection", None)
        if connection is not None:
            connection.disconnect()
