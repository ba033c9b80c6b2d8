"""Polls the connections to all shards: one that is away does not hold up the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty
from typing import Any

from redis.exceptions import TimeoutError

from celery_delayq.store.cluster.nodes import ASK_TIMEOUT
from celery_delayq.transport.poller import Poller
from celery_delayq.utils import native_threads

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether a lost shard is back.
PROBE = 0.25

#: Seconds between two looks for connections without a reply.
LOOK = 0.5


class Turns(dict[Any, None]):
    """Channels in the order of their turns; kombu takes it for a set."""

    def add(self, channel: Any) -> None:
        """Add a channel as the last one."""
        self[channel] = None

    def discard(self, channel: Any) -> None:
        """Remove a channel."""
        self.pop(channel, None)


class ClusterPoller(Poller):
    """A poller that outlives lost connections, and gives each channel its turn.

    On a single Redis a lost connection makes Celery connect anew, with all its channels.
    """

    def __init__(self) -> None:
        super().__init__()
        self._channels = Turns()
        #: Channels whose shard is away.
        self._away: set[Any] = set()
        self._look_at = 0.0

    def had_its_turn(self, channel: Any) -> None:
        """Let the other channels deliver, and ask for messages, before this one."""
        if channel in self._channels:
            self._channels.discard(channel)
            self._channels.add(channel)

    def discard(self, channel: Any) -> None:
        """Stop polling for a channel."""
        super().discard(channel)
        self._away.discard(channel)

    def on_poll_start(self) -> None:
        """Ask, listen and connect for each channel that needs it."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK
            self._leave_silent()
        away = self._away
        with ExitStack() as stack:
            for whole in {each.whole for each in self._channels}:
                stack.enter_context(whole.counted_once())
            asking = [each for each in self._channels if not (each in away or each.is_settled)]
        # Only where there is credit: else kombu would stop to poll all descriptors each time.
        paused = getattr(self, "_paused_brpop", None)
        if paused and next(iter(paused.values()))[0].qos.can_consume():
            self._update_brpop_polling()
        for number, channel in enumerate(asking):
            channel.whole.asking = len(asking) - number
            if channel.active_queues and channel.qos.can_consume():
                self._register_BRPOP(channel)
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)

    def _leave_silent(self) -> None:
        """Close connections without a reply: no timeout of a socket ends a poll."""
        for channel in tuple(self._channels):
            if channel not in self._away and channel.overdue > ASK_TIMEOUT:
                self.lost(channel, TimeoutError(f"no reply for {channel.overdue:.1f} s"))
            try:
                channel.watch_subscription()
            except channel.connection_errors as exc:
                self.lost(channel, exc)

    def _register_BRPOP(self, channel: Any) -> None:  # noqa: N802
        self._register_by(channel, super()._register_BRPOP)

    def _register_LISTEN(self, channel: Any) -> None:  # noqa: N802
        self._register_by(channel, super()._register_LISTEN)

    def _register_by(self, channel: Any, register: Callable[[Any], Any]) -> None:
        """Connect a channel and ask; where its shard is away, leave it alone.

        Before 5.7, kombu also calls this by itself, for all channels.
        """
        if channel in self._away:
            return
        try:
            channel.resume()
            register(channel)
        except channel.connection_errors as exc:
            self.lost(channel, exc)

    def on_readable(self, fileno: int) -> Any:
        """Read what has come."""
        channel, _ = self._fd_to_chan.get(fileno, (None, None))
        try:
            return super().on_readable(fileno)
        except getattr(channel, "connection_errors", ()) as exc:
            self.lost(channel, exc)
            raise Empty() from exc  # else `drain_events` would end, and a caller count anew

    def _deliver_by(self, channel: Any, deliver: Callable[[], Any]) -> Any:
        """Deliver messages of a channel that are here; return whether there were any, if known."""
        try:
            return deliver()
        except channel.connection_errors as exc:
            self.lost(channel, exc)
            return False

    def on_credit(self, _channel: Any) -> None:
        """Wake the poll: any shard may wait for it, since all share one prefetch."""
        self.wakeup.give()

    def is_away(self, channel: Any) -> bool:
        """Return whether the shard of a channel is away."""
        return channel in self._away

    def lost(self, channel: Any, exc: Exception) -> None:
        """Leave a channel alone until its shard is back.

        An error of whoever got a message is raised: only a new connection gives that back.
        """
        of_callback, channel.callback_failed = channel.callback_failed, False
        if channel.closed or of_callback:
            raise exc
        if channel in self._away:  # a message that was here already needed the shard
            channel.disconnect()
            return
        logger.warning("%s is away, its queues wait: %s", channel.name, exc)
        self._away.add(channel)
        channel.disconnect()
        native_threads.start(partial(self._probe, channel, self.wakeup))

    def _probe(self, channel: Any, wakeup: Any) -> None:
        """Wait until a shard is back, in a thread: a host that is gone answers nothing."""
        while channel in self._away and not channel.closed:
            native_threads.sleep(PROBE)
            with suppress(Exception):  # whatever is wrong, it is not back
                channel.ping()
                break
        if channel in self._away and not channel.closed:
            self._away.discard(channel)
            logger.info("%s is back", channel.name)
            wakeup.give()

    def _on_connection_disconnect(self, connection: Any) -> None:
        """Forget a closed connection, which has left the poller."""
        if hasattr(self, "_discard_paused_connection"):  # kombu 5.7 and newer
            self._discard_paused_connection(connection)
        for channel, client, kind in [*self._chan_to_sock]:
            if client.connection is connection:
                del self._chan_to_sock[channel, client, kind]
                for fd in [fd for fd, of in self._fd_to_chan.items() if of == (channel, kind)]:
                    del self._fd_to_chan[fd]
