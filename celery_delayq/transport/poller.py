"""kombu's poller, which also wakes up for messages that are here already."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from kombu.transport import redis as stock

from celery_delayq.transport.consumer import Consumer

#: Whether kombu's event loop polls no more once a connection was closed, until all are made anew:
#: before kombu 5.7.
KOMBU_STOPS_POLLING = not hasattr(stock.MultiChannelPoller, "_discard_paused_connection")


def is_readable(sock: Any) -> bool:
    """Return whether a socket has data, or has been closed, without reading."""
    poller = stock.poll()
    try:
        poller.register(sock, stock.READ)
        return bool(poller.poll(0))
    finally:
        poller.close()


class Wakeup:
    """Makes a poll return. It stays set until it is taken back; any thread may give it."""

    #: The one that signals give.
    _for_signals: ClassVar[Wakeup | None] = None

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)
        self._given = False

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._here.fileno()

    def give(self) -> None:
        """Make the poll return, now or when it comes."""
        if not self._given:
            self._given = True
            with suppress(OSError):
                self._there.send(b"!")

    def give_for_signals(self) -> None:
        """Give it when a signal comes, unless the process has another use for ``set_wakeup_fd``.

        Else Python runs the signal's handler and then goes on waiting (PEP 475): a worker would
        stop only when the poll ends. The same holds where other code of the process has taken
        ``set_wakeup_fd`` over since, as an asyncio loop in a task of a solo worker does.
        """
        former = Wakeup._for_signals
        if _wake_by(self._there.fileno(), instead_of=former):
            Wakeup._for_signals = self
            if former is not None and former is not self:
                former.close()

    def take_back(self) -> None:
        """Let polls wait again. Read what it may have been given for after this call."""
        with suppress(OSError):
            self._here.recv(64)
        self._given = False

    def close(self) -> None:
        """Close both ends; if signals still write to them, when another wakeup takes over."""
        if Wakeup._for_signals is self:
            if threading.current_thread() is not threading.main_thread():
                return
            _wake_by(-1, instead_of=self)
            Wakeup._for_signals = None
        self._here.close()
        self._there.close()


def _wake_by(fd: int, *, instead_of: Wakeup | None) -> bool:
    """Have signals write to *fd*, -1 for none; False where someone else uses them already."""
    try:
        former = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except ValueError:
        return False  # only the main thread may
    if former == -1 or (instead_of is not None and former == instead_of._there.fileno()):
        return True
    signal.set_wakeup_fd(former, warn_on_full_buffer=False)
    return False


def _forget_signals() -> None:
    """Stop giving the parent's wakeup in a forked child."""
    if Wakeup._for_signals is not None:
        _wake_by(-1, instead_of=Wakeup._for_signals)
        Wakeup._for_signals = None


os.register_at_fork(after_in_child=_forget_signals)


class Readers:
    """An event loop as one connection uses it.

    Readers are added once: kombu adds all of them at each turn. Timers and callbacks can be taken
    back: kombu leaves those of a lost connection in the loop of a worker, which connects anew.
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
        """Note the callbacks that the connection has added; kombu may remove some itself."""
        self._callbacks = frozenset(self._loop.on_tick - self._of_others)

    def stop(self) -> None:
        """Take back all callbacks and timers."""
        self._loop.on_tick -= self._callbacks
        for timer in self._timers:
            timer.cancel()

    def add_reader(self, fd: int, callback: Callable[..., Any], *args: Any) -> None:
        """Add a reader that is not there yet."""
        if self._loop.readers.get(fd) != (callback, args):
            self._loop.add_reader(fd, callback, *args)


def _has_fetched(channel: Any) -> bool:
    """Return whether messages of a channel are here that are not handed out."""
    consumer: Consumer | None = vars(channel).get("consumer")
    return consumer is not None and bool(consumer.taken)


class Poller(stock.MultiChannelPoller):
    """Polls the connections of all channels, and the wakeup that stands for local messages."""

    #: Made on first use.
    _poller: Any = None

    def __init__(self) -> None:
        super().__init__()
        # kombu has opened an epoll. A failed attempt to connect would keep it until its garbage is
        # collected, which may be late: a worker tries again for as long as Redis is away.
        self._poller.close()
        self._own = self._poller = None
        self._wakeup: Wakeup | None = None
        #: The event loop that polls for us, where one does.
        self.loop: Readers | None = None

    @property
    def poller(self) -> Any:
        """The poller: our own, opened on first use, or the event loop's."""
        if self._poller is None:
            self.poller = self._own = stock.poll()
        return self._poller

    @poller.setter
    def poller(self, poller: Any) -> None:
        self._poller, self._pid = poller, os.getpid()

    @property
    def wakeup(self) -> Wakeup:
        """Made when it is needed: a connection that only publishes does without."""
        if self._wakeup is None:
            self._wakeup = Wakeup()
            self.poller.register(self._wakeup.fileno(), self.eventflags)
        return self._wakeup

    @property
    def _is_parents(self) -> bool:
        """Whether this is a forked child: what it takes out of the epoll its parent has no more."""
        return self._poller is not None and os.getpid() != self._pid

    def close(self) -> None:
        """Stop polling."""
        if self._is_parents:
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
        """Stop polling a descriptor that is open still."""
        if self._is_parents:
            return
        if self.loop is not None:
            self.loop.remove(fd)
        elif self._poller is not None:
            with suppress(KeyError, ValueError, OSError):
                self._poller.unregister(fd)

    def on_poll_init(self, poller: Any) -> None:
        """Poll with an event loop's poller from now on."""
        super().on_poll_init(poller)
        if self._own is not None and poller is not self._own:
            self._own.close()

    def on_poll_start(self) -> None:
        """Ask, listen and connect, if any channel needs it."""
        if getattr(self, "_paused_brpop", None) or not all(map(self._is_settled, self._channels)):
            super().on_poll_start()

    def _is_settled(self, channel: Any) -> bool:
        """Return whether there is nothing to send, connect or register for a channel."""
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
        return consumer.is_content

    def _may_be_read(self, channel: Any) -> bool:
        """Return whether a reply may be read when it comes; kombu pauses the poll else."""
        return bool(channel.qos.can_consume())

    def get(self, callback: Callable[..., Any], timeout: float | None = None) -> Any:
        """Deliver one message that is here, or wait for one. Raises Empty when none came."""
        for channel in tuple(self._channels):
            if self._deliver_by(channel, self.deliver_one):
                return None
        return super().get(callback, timeout)

    def _deliver_by(self, channel: Any, deliver: Callable[[Any], Any]) -> Any:
        """Hand out messages of a channel by a method of this object."""
        return deliver(channel)

    def deliver_one(self, channel: Any) -> bool:
        """Hand out one message of a channel that is here; return whether there was one."""
        return _has_fetched(channel) and channel.hand_out.one()

    def deliver(self, channel: Any) -> None:
        """Hand out messages of a channel that are here: in an event loop for a moment, else one."""
        if self._in_protected_read:
            self.deliver_one(channel)
            return
        if _has_fetched(channel) and channel.hand_out.some():
            self.wakeup.give()

    def handle_event(self, fileno: int, event: int) -> Any:
        """Handle an event of a file descriptor."""
        if self._wakeup is not None and fileno == self._wakeup.fileno():
            self._wakeup.take_back()
            return True
        return super().handle_event(fileno, event)

    def on_credit(self, channel: Any) -> None:
        """Wake the poll where *channel* may wait until a message is done. For any thread."""
        if not channel._in_poll or getattr(self, "_paused_brpop", None):
            self.wakeup.give()

    def on_wakeup(self) -> None:
        """Deliver, from an event loop."""
        self.wakeup.take_back()
        for channel in tuple(self._channels):
            self._deliver_by(channel, self.deliver)
