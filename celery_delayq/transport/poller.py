"""kombu's poller, which also wakes up for messages that this process has fetched already."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kombu.transport import redis as stock

from celery_delayq.transport.consumer import Consumer
from celery_delayq.utils.wakeup import Wakeup

#: Whether kombu's event loop stops polling when a connection is closed, until kombu opens all
#: connections again. True before kombu 5.7.
KOMBU_STOPS_POLLING = not hasattr(stock.MultiChannelPoller, "_discard_paused_connection")


def is_readable(sock: Any) -> bool:
    """Return whether a socket has data or has been closed. Reads nothing."""
    poller = stock.poll()
    try:
        poller.register(sock, stock.READ)
        return bool(poller.poll(0))
    finally:
        poller.close()


class Readers:
    """An event loop with the readers, timers and callbacks of one connection.

    kombu adds all readers at each turn of the loop; here each reader is added once. kombu leaves
    the timers and callbacks of a lost connection in a worker's loop; :meth:`stop` removes them.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.poller, self.on_tick = loop.poller, loop.on_tick
        self.remove, self.remove_reader = loop.remove, loop.remove_reader
        self._timers: list[Any] = []
        self._of_others = frozenset(loop.on_tick)
        self._callbacks: frozenset[Callable[[], Any]] = frozenset()

    def call_repeatedly(self, *args: Any, **kwargs: Any) -> Any:
        """Start a timer."""
        timer = self._loop.call_repeatedly(*args, **kwargs)
        self._timers.append(timer)
        return timer

    def note_callbacks(self) -> None:
        """Note the callbacks that the connection has added. kombu may remove some of them."""
        self._callbacks = frozenset(self._loop.on_tick - self._of_others)

    def stop(self) -> None:
        """Remove all callbacks and timers."""
        self._loop.on_tick -= self._callbacks
        for timer in self._timers:
            timer.cancel()

    def add_reader(self, fd: int, callback: Callable[..., Any], *args: Any) -> None:
        """Add a reader, unless the loop has the same reader already."""
        if self._loop.readers.get(fd) != (callback, args):
            self._loop.add_reader(fd, callback, *args)


def _has_fetched(channel: Any) -> bool:
    """Return whether a channel has fetched messages that are not handed out yet."""
    consumer: Consumer | None = vars(channel).get("consumer")
    return consumer is not None and bool(consumer.taken)


class Poller(stock.MultiChannelPoller):
    """Polls the connections of all channels, and the wakeup, which is set for fetched messages."""

    #: Created on first use.
    _poller: Any = None

    def __init__(self) -> None:
        super().__init__()
        # kombu has opened an epoll. After a failed attempt to connect, the epoll would stay open
        # until its garbage is collected. A worker makes such attempts for as long as Redis is away.
        self._poller.close()
        self._own = self._poller = None
        self._wakeup: Wakeup | None = None
        #: The event loop that polls these connections; None without one.
        self.loop: Readers | None = None

    @property
    def poller(self) -> Any:
        """The event loop's poller, or a poller of this object, opened on first use."""
        if self._poller is None:
            self.poller = self._own = stock.poll()
        return self._poller

    @poller.setter
    def poller(self, poller: Any) -> None:
        self._poller, self._pid = poller, os.getpid()

    @property
    def wakeup(self) -> Wakeup:
        """The wakeup, created on first use: a connection that only publishes needs none."""
        if self._wakeup is None:
            self._wakeup = Wakeup()
            self.poller.register(self._wakeup.fileno(), self.eventflags)
        return self._wakeup

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a forked child. It shares the epoll with its parent, so a
        descriptor that the child removes is missing in the parent too.
        """
        return self._poller is not None and os.getpid() != self._pid

    def close(self) -> None:
        """Stop polling."""
        if self._is_inherited:
            return
        if self.loop is not None:
            self.loop.stop()
            self.loop = None
        if self._wakeup is not None:
            with suppress(KeyError, ValueError, OSError):
                self.poller.unregister(self._wakeup.fileno())
            self._wakeup.close()
        super().close()
        if self.poller is self._own:  # wake the thread that polls now
            self._own.close()

    def _on_connection_disconnect(self, connection: Any) -> None:
        if self._poller is not None:
            super()._on_connection_disconnect(connection)

    def leave(self, fd: int) -> None:
        """Stop polling a descriptor before it is closed."""
        if self._is_inherited:
            return
        if self.loop is not None:
            self.loop.remove(fd)
        elif self._poller is not None:
            with suppress(KeyError, ValueError, OSError):
                self._poller.unregister(fd)

    def on_poll_init(self, poller: Any) -> None:
        """Use an event loop's poller from now on."""
        super().on_poll_init(poller)
        if self._own is not None and poller is not self._own:
            self._own.close()

    def on_poll_start(self) -> None:
        """Connect, listen and request messages, if any channel needs one of these."""
        if getattr(self, "_paused_brpop", None) or not all(map(self._is_settled, self._channels)):
            super().on_poll_start()

    def _is_settled(self, channel: Any) -> bool:
        """Return whether a channel has nothing to send, connect or register."""
        if channel.active_fanout_queues:
            listening = channel._in_listen and channel.subclient.connection
            if not (listening and listening._sock):
                return False
        consumer: Consumer | None = vars(channel).get("consumer")
        if consumer is None or not consumer.queues:
            return True
        awaiting = consumer.awaited_connection
        if awaiting is not None:
            return awaiting._sock is not None and self._may_be_read(channel)
        return consumer.has_nothing_to_send

    def _may_be_read(self, channel: Any) -> bool:
        """Return whether a reply may be read when it comes. If not, kombu pauses the poll."""
        return bool(channel.qos.can_consume())

    def get(self, callback: Callable[..., Any], timeout: float | None = None) -> Any:
        """Deliver a fetched message, or wait for a message.

        Raises
        ------
        queue.Empty
            No message came.
        """
        for channel in tuple(self._channels):
            if self._deliver_by(channel, self.deliver_one):
                return None
        return super().get(callback, timeout)

    def _deliver_by(self, channel: Any, deliver: Callable[[Any], Any]) -> Any:
        """Hand out messages of a channel by *deliver*, a method of this object."""
        return deliver(channel)

    def deliver_one(self, channel: Any) -> bool:
        """Hand out one fetched message of a channel. Return whether there was one."""
        return _has_fetched(channel) and channel.hand_out.hand_out_one()

    def deliver(self, channel: Any) -> None:
        """Hand out fetched messages of a channel: in an event loop for a short time, else one."""
        if self._in_protected_read:
            self.deliver_one(channel)
            return
        if _has_fetched(channel) and channel.hand_out.hand_out_several():
            self.wakeup.set()

    def handle_event(self, fileno: int, event: int) -> Any:
        """Handle an event of a file descriptor."""
        if self._wakeup is not None and fileno == self._wakeup.fileno():
            self._wakeup.clear()
            return True
        return super().handle_event(fileno, event)

    def on_credit(self, channel: Any) -> None:
        """Wake the poll, since a message was settled: *channel* may request messages now.

        A channel that awaits a reply requests messages after that reply. For any thread.
        """
        if not channel._in_poll or getattr(self, "_paused_brpop", None):
            self.wakeup.set()

    def on_wakeup(self) -> None:
        """Deliver fetched messages, called by an event loop."""
        self.wakeup.clear()
        for channel in tuple(self._channels):
            self._deliver_by(channel, self.deliver)
