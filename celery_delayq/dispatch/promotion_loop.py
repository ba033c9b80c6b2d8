"""Promotes for several dispatchers of a process, in one thread.

A worker of a Redis Cluster has a dispatcher for each hash tag. If each promoted in its own thread,
they would take Python's lock so often that the main thread would mostly wait for it. So the
dispatchers hand their promotions over to this loop, which sends all due calls and then polls for
the replies. The dispatcher's own thread handles looks, wake-ups, errors and late replies.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery_delayq.dispatch.pacing import POLL_MARGIN_SECONDS, PollTimer
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.wire import Wire
from celery_delayq.utils import native_threads
from celery_delayq.utils.wakeup import Wakeup

#: Seconds after which a reply, or the rest of a reply, is late.
LATE_REPLY_SECONDS = 0.5

#: Seconds after which the thread ends when there is no dispatcher.
IDLE_SECONDS = 10.0


@dataclass(eq=False)
class Handover:
    """The promotions that a dispatcher hands over.

    Parameters
    ----------
    timer : PollTimer
        Tells when to promote.
    wire : Wire
        The connection for the calls.
    next_call : Callable[[], Call | None]
        Returns the next call; None if the dispatcher's own thread has work.
    read : Callable[[Any], object]
        Handles the reply.
    """

    timer: PollTimer
    wire: Wire
    next_call: Callable[[], Call | None]
    read: Callable[[Any], object]
    #: The descriptors on which wake-ups and replies come.
    wake_ups: int = -1
    replies: int = -1
    #: When the call without a reply was sent; None if there is none.
    sent_at: float | None = None
    #: Whether the handover ends after the awaited reply: a wake-up came, or the dispatcher is to
    #: stop. Any thread may set it.
    is_leaving: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def wakes_at(self) -> float:
        """The time of the next action, if no reply or wake-up comes before."""
        if self.sent_at:
            return self.sent_at + LATE_REPLY_SECONDS
        return 0.0 if self.is_leaving else self.timer.wakes_at


class PromotionLoop:
    """The loop. Its thread starts with the first handover."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Makes the poll return; None while there is no thread.
        self._wakeup: Wakeup | None = None
        self._new_handovers: deque[Handover] = deque()
        self._handovers: set[Handover] = set()
        self._by_descriptor: dict[int, Handover] = {}
        self._poll: Any = None

    @classmethod
    def unless_patched(cls) -> PromotionLoop | None:
        """Return a loop; None where threads are greenlets, which do not wait for Python's lock."""
        return None if native_threads.has_green_threads() else cls()

    # -- for dispatchers

    def promote(self, handover: Handover, wake_ups: int) -> None:
        """Promote for a dispatcher until its own thread has work.

        Parameters
        ----------
        handover : Handover
            Its wire is connected.
        wake_ups : int
            The descriptor on which the dispatcher's wake-ups come.

        Raises
        ------
        RuntimeError, OSError
            The thread cannot be started.
        """
        sock = handover.wire.socket
        timeout = sock.gettimeout()
        sock.settimeout(LATE_REPLY_SECONDS)
        handover.wake_ups, handover.replies = wake_ups, sock.fileno()
        handover.ended.clear()
        try:
            with self._lock:
                if not self._wakeup:
                    self._start()
                self._new_handovers.append(handover)
            self._wake_up()
            handover.ended.wait()
        finally:
            if handover.wire.socket is sock:
                sock.settimeout(timeout)

    def leave(self, handover: Handover) -> None:
        """End a handover. For any thread or signal."""
        handover.is_leaving = True
        self._wake_up()

    def _wake_up(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.set()

    def _start(self) -> None:
        wakeup = Wakeup()
        try:
            threading.Thread(
                target=self._run, args=(wakeup,), name="delayq-promotions", daemon=True
            ).start()
        except BaseException:
            wakeup.close()
            raise
        self._wakeup = wakeup

    # -- the thread

    def _run(self, wakeup: Wakeup) -> None:
        try:
            self._poll = select.poll()
            self._poll.register(wakeup, select.POLLIN)
            while self._turn(wakeup) or not self._close(wakeup):
                pass
        except BaseException:
            self._close(wakeup, has_failed=True)
            raise

    def _close(self, wakeup: Wakeup, *, has_failed: bool = False) -> bool:
        """End the thread, unless there is a new handover; return whether the thread ends."""
        with self._lock:
            if self._new_handovers and not has_failed:
                return False
            wakeup.close()
            self._wakeup = None
            for handover in (*self._handovers, *self._new_handovers):  # their own threads go on
                self._end_handover(handover)
            self._new_handovers.clear()
            return True

    def _turn(self, wakeup: Wakeup) -> bool:
        """Wait for the next thing to do and do it; return False after :data:`IDLE_SECONDS`."""
        while self._new_handovers:
            self._register(self._new_handovers.popleft())
        now = time.monotonic()
        wait = min([each.wakes_at for each in self._handovers], default=now + IDLE_SECONDS) - now
        came = self._poll.poll(
            max(1, int((wait - POLL_MARGIN_SECONDS) * 1000)) if wait > POLL_MARGIN_SECONDS else 0
        )
        if not came and 0 < wait <= POLL_MARGIN_SECONDS:
            time.sleep(wait)
        for descriptor, _ in came:
            handover = self._by_descriptor.get(descriptor)
            if handover is not None:
                self._read_descriptor(handover, descriptor)
            elif descriptor == wakeup.fileno():
                wakeup.clear()
        now = time.monotonic()
        for handover in [*self._handovers]:
            if handover.wakes_at <= now:
                self._send_due_call(handover, now)
        return bool(came or self._handovers or self._new_handovers)

    def _register(self, handover: Handover) -> None:
        self._handovers.add(handover)
        try:
            for descriptor in (handover.wake_ups, handover.replies):
                self._poll.register(descriptor, select.POLLIN)
                self._by_descriptor[descriptor] = handover
        except ValueError:  # closed in the meantime
            self._end_handover(handover, reply_is_lost=True)

    def _read_descriptor(self, handover: Handover, descriptor: int) -> None:
        """Read a reply. A wake-up is for the dispatcher's own thread."""
        if descriptor == handover.wake_ups:
            handover.is_leaving = True
            self._poll.unregister(descriptor)
        elif handover.sent_at:
            handover.sent_at = None
            try:
                handover.read(handover.wire.read())
            except Exception:  # its own thread makes the call again, and raises the error
                self._end_handover(handover)
        else:  # the server has closed the connection
            self._end_handover(handover, reply_is_lost=True)

    def _send_due_call(self, handover: Handover, now: float) -> None:
        """Send the next call, or give up a reply that is late."""
        if handover.sent_at:
            self._end_handover(handover, reply_is_lost=True)
            return
        try:
            call = None if handover.is_leaving else handover.next_call()
            if call and handover.wire.socket:
                handover.wire.send(call.packed())
                handover.sent_at = now
            else:
                self._end_handover(handover)
        except Exception:  # its own thread makes the call again, and raises the error
            self._end_handover(handover)

    def _end_handover(self, handover: Handover, *, reply_is_lost: bool = False) -> None:
        """Leave the rest to the dispatcher's own thread, which repeats a failed call.

        If a reply is awaited or lost, the connection is closed: a late reply would be read as that
        to the next call.
        """
        for descriptor in (handover.wake_ups, handover.replies):
            if self._by_descriptor.pop(descriptor, None):
                with suppress(KeyError):
                    self._poll.unregister(descriptor)
        self._handovers.discard(handover)
        if handover.sent_at or reply_is_lost:
            with suppress(Exception):  # else `promote` would wait for ever
                handover.wire.drop()
        handover.sent_at, handover.is_leaving = None, False
        handover.ended.set()
