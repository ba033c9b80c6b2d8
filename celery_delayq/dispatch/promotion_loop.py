"""Waits and promotes for several dispatchers of a process, in one thread.

A worker of a Redis Cluster has a dispatcher for each hash tag. If each promoted in its own thread,
they would take Python's lock so often that the main thread waits for it most of the time. While
nothing but promoting is to be done, they leave that to this loop. It sends all that is due before
it waits, and waits for no single reply: whatever else is to be done, or goes wrong, is left to the
dispatcher's own thread.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from celery_delayq.dispatch.pacing import PollTimer
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.runner import HeldConnection

#: Seconds after which a missing reply is left to the dispatcher's own thread.
LATE = 0.5

#: Seconds that a send may take, and the rest of a reply: they have some hundred bytes.
PATIENCE = 0.05

#: A poll takes whole ms, and up to one too many: it ends so many seconds before it is time.
POLL_UNTIL = 0.002

#: Seconds after which the thread ends when there is no dispatcher.
IDLE = 10.0


@dataclass(eq=False)
class Promoting:
    """What a dispatcher leaves to the loop.

    Parameters
    ----------
    timer : PollTimer
        When to promote.
    held : HeldConnection
        The connection for it.
    next_call : Callable[[], Call | None]
        Returns what to send now; None where something else is to be done.
    read : Callable[[Any], object]
        Handles the reply.
    """

    timer: PollTimer
    held: HeldConnection
    next_call: Callable[[], Call | None]
    read: Callable[[Any], object]
    #: The sockets of wake-ups and of replies, and when the call without a reply was sent.
    wake_ups: int = -1
    replies: int = -1
    sent_at: float | None = None
    is_leaving: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def wakes_at(self) -> float:
        """When there is something to do, if nothing comes before."""
        return self.timer.wakes_at if self.sent_at is None else self.sent_at + LATE


class PromotionLoop:
    """The loop. Its thread starts when a dispatcher comes."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._poll.register(self._wake, select.POLLIN)
        self._arrived: deque[Promoting] = deque()
        self._here: set[Promoting] = set()
        self._by_descriptor: dict[int, Promoting] = {}
        self._lock = threading.Lock()
        self._runs = False

    def promote(self, promoting: Promoting, wake_ups: int) -> None:
        """Promote for a dispatcher until something else is to be done.

        Parameters
        ----------
        promoting : Promoting
            The dispatcher, with a connection.
        wake_ups : int
            The descriptor on which its wake-ups come.
        """
        sock = promoting.held.socket
        timeout = sock.gettimeout()
        sock.settimeout(PATIENCE)
        promoting.wake_ups, promoting.replies = wake_ups, sock.fileno()
        promoting.is_leaving = False
        promoting.ended.clear()
        self._arrived.append(promoting)
        with self._lock:
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="delayq-promotions", daemon=True).start()
        self._give()
        promoting.ended.wait()
        if promoting.held.socket is sock:
            sock.settimeout(timeout)

    def leave(self, promoting: Promoting) -> None:
        """Promote no more for a dispatcher. For any thread or signal."""
        promoting.is_leaving = True
        self._give()

    def _give(self) -> None:
        with suppress(OSError):  # it is full, so the poll returns
            self._waker.send(b"!")

    def _run(self) -> None:
        try:
            while self._has_any():
                self._wait()
                now = time.monotonic()
                for promoting in [*self._here]:
                    self._go_on(promoting, now)
        finally:
            with self._lock:
                self._runs = False
            for promoting in (*self._here, *self._arrived):
                self._end(promoting, in_step=False)

    def _has_any(self) -> bool:
        """Take in who has come; return False where nobody has, and the thread ends."""
        while True:
            while self._arrived:
                promoting = self._arrived.popleft()
                self._here.add(promoting)
                for descriptor in (promoting.wake_ups, promoting.replies):
                    self._by_descriptor[descriptor] = promoting
                    self._poll.register(descriptor, select.POLLIN)
            if self._here or self._poll.poll(IDLE * 1000):
                return True
            with self._lock:
                self._runs = bool(self._arrived)
                if not self._runs:
                    return False

    def _wait(self) -> None:
        """Wait until something is due or comes, and read what has come."""
        wait = min([each.wakes_at for each in self._here], default=0.0) - time.monotonic()
        came = self._poll.poll(max(1, int((wait - POLL_UNTIL) * 1000)) if wait > POLL_UNTIL else 0)
        if not came and 0 < wait <= POLL_UNTIL:
            time.sleep(wait)
        for descriptor, _ in came:
            promoting = self._by_descriptor.get(descriptor)
            if promoting is None:
                with suppress(OSError):
                    self._wake.recv(64)
            elif descriptor == promoting.wake_ups:
                promoting.is_leaving = True
                self._poll.unregister(descriptor)
            elif promoting.sent_at is not None:
                self._read(promoting)
            else:  # the server has closed it
                self._end(promoting, in_step=False)

    def _go_on(self, promoting: Promoting, now: float) -> None:
        if promoting.wakes_at <= now:
            if promoting.sent_at is None:
                self._send(promoting, now)
            else:
                self._end(promoting, in_step=False)
        elif promoting.is_leaving and promoting.sent_at is None:
            self._end(promoting)

    def _send(self, promoting: Promoting, now: float) -> None:
        call = None if promoting.is_leaving else promoting.next_call()
        if call is None or promoting.held.socket is None:
            self._end(promoting)
            return
        try:
            promoting.held.send(call)
            promoting.sent_at = now
        except Exception:  # its own thread repeats it, and meets the same
            self._end(promoting, in_step=False)

    def _read(self, promoting: Promoting) -> None:
        try:
            promoting.read(promoting.held.read())
            promoting.sent_at = None
        except Exception as exc:  # the same
            self._end(promoting, in_step=isinstance(exc, ResponseError))

    def _end(self, promoting: Promoting, *, in_step: bool = True) -> None:
        """Leave the rest to the dispatcher's own thread."""
        for descriptor in (promoting.wake_ups, promoting.replies):
            self._by_descriptor.pop(descriptor, None)
            with suppress(KeyError):
                self._poll.unregister(descriptor)
        self._here.discard(promoting)
        promoting.sent_at = None
        if not in_step:
            promoting.held.drop()
        promoting.ended.set()
