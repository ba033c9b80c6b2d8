"""The thread that promotes for several dispatchers, beside servers that each test plays itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from celery_delayq.dispatch import promotion_loop
from celery_delayq.dispatch.pacing import PollTimer
from celery_delayq.dispatch.promotion_loop import Handover, PromotionLoop
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.wire import Wire
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT

CALL = Call("dispatch/promote", [], [])

#: The sockets that the test has opened.
OPENED: list[socket.socket] = []


def socket_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    OPENED.extend(pair)
    return pair


class Held:
    """A connection to a server that answers what the test wants."""

    def __init__(self, on_read: Callable[[], Any] = lambda: None) -> None:
        self.socket, self.server = socket_pair()
        self._on_read = on_read
        self.dropped = False

    def send(self, _commands: bytes) -> None:
        self.socket.send(b"?")

    def read(self) -> Any:
        self.socket.recv(1)
        return self._on_read()

    def drop(self) -> None:
        self.dropped = True


class Dispatching:
    """A dispatcher that hands over, in a thread as in life."""

    def __init__(
        self,
        loop: PromotionLoop,
        held: Held | None = None,
        *,
        due_in: float = 0.0,
        next_call: Callable[[], Call | None] = lambda: CALL,
        read: Callable[[Any], object] = lambda _reply: None,
    ) -> None:
        self.wire = held or Held()
        self.wake_ups, self.waker = socket_pair()
        self.timer = PollTimer(1.0)
        self.timer._wake_at = time.monotonic() + due_in
        self.replies = 0
        self._read = read
        self.handover = Handover(self.timer, cast(Wire, self.wire), next_call, self._note)
        self.thread = threading.Thread(
            target=loop.promote, args=(self.handover, self.wake_ups.fileno()), daemon=True
        )
        self.thread.start()

    def _note(self, reply: Any) -> None:
        self._read(reply)
        self.replies += 1
        self.timer._wake_at = time.monotonic() + 0.01

    @property
    def has_ended(self) -> bool:
        return not self.thread.is_alive()

    def wait_end(self) -> None:
        self.thread.join(TIMEOUT)
        assert self.has_ended


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[PromotionLoop]:
    monkeypatch.setattr(promotion_loop, "IDLE_SECONDS", 0.05)
    loop = PromotionLoop()
    yield loop
    wait_until(lambda: not loop._wakeup, what="the thread has ended")
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def other(loop: PromotionLoop) -> Iterator[Dispatching]:
    """Let another dispatcher have its promotions made all the time."""
    one = Dispatching(loop)
    answering = threading.Thread(target=_answer, args=(one.wire.server,), daemon=True)
    answering.start()
    wait_until(lambda: one.replies, what="its first promotion")
    yield one
    before = one.replies
    wait_until(lambda: one.replies > before, what="it is not held up")
    loop.leave(one.handover)
    one.wait_end()


def _answer(server: socket.socket) -> None:
    with suppress(OSError):
        while server.recv(1):
            server.send(b"!")


def test_what_is_due_to_all_is_sent_before_replies_are_read(loop: PromotionLoop) -> None:
    three = [Dispatching(loop) for _ in range(3)]

    asked = [each.wire.server.recv(1) for each in three]
    for each in three:
        each.wire.server.send(b"!")

    assert asked == [b"?"] * 3
    wait_until(lambda: all(each.replies for each in three), what="each reply is read")
    for each in three:
        loop.leave(each.handover)
        each.wire.server.send(b"!")  # to the next call, if it is on its way
        each.wait_end()


def test_who_leaves_or_is_woken_need_not_wait_until_something_is_due(loop: PromotionLoop) -> None:
    one, two = (Dispatching(loop, due_in=3600) for _ in range(2))

    loop.leave(one.handover)
    one.wait_end()
    assert not two.has_ended
    two.waker.send(b"!")
    two.wait_end()

    assert [one.wire.dropped, two.wire.dropped] == [False, False]


def test_who_leaves_before_it_comes_does_not_stay(loop: PromotionLoop) -> None:
    one = Dispatching(loop, due_in=3600)
    loop.leave(one.handover)
    one.wait_end()
    loop.leave(one.handover)

    loop.promote(one.handover, one.wake_ups.fileno())


def fail(exc: Exception) -> Any:
    raise exc


@pytest.mark.parametrize("next_call", [lambda: None, lambda: fail(ValueError())])
def test_without_a_next_call_it_ends_for_this_dispatcher_only(
    next_call: Callable[[], Call | None], loop: PromotionLoop, other: Dispatching
) -> None:
    one = Dispatching(loop, next_call=next_call)

    one.wait_end()

    assert not one.wire.dropped


@pytest.mark.parametrize("on_read", [lambda: fail(ResponseError("no")), lambda: "no reply of ours"])
def test_a_reply_that_is_an_error_ends_it_for_this_dispatcher_only(
    on_read: Callable[[], Any], loop: PromotionLoop, other: Dispatching
) -> None:
    one = Dispatching(loop, Held(on_read), read=int)
    assert one.wire.server.recv(1) == b"?"
    one.wire.server.send(b"!")

    one.wait_end()

    assert (one.replies, one.wire.dropped) == (0, False)


def test_a_reply_that_is_late_is_given_up(
    loop: PromotionLoop, other: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion_loop, "LATE_REPLY_SECONDS", 0.05)
    one = Dispatching(loop)

    one.wait_end()

    assert (one.replies, one.wire.dropped) == (0, True)


def test_a_connection_that_the_server_has_closed_is_dropped(
    loop: PromotionLoop, other: Dispatching
) -> None:
    one = Dispatching(loop, due_in=3600)
    one.wire.server.close()

    one.wait_end()

    assert one.wire.dropped


def test_a_subscription_that_is_closed_before_it_comes_ends_it_for_this_dispatcher_only(
    loop: PromotionLoop, other: Dispatching
) -> None:
    one = Dispatching(loop, next_call=lambda: None)
    one.wait_end()

    loop.promote(one.handover, wake_ups=-1)

    assert one.wire.dropped


class Failing(Held):
    """A connection that cannot be closed, either."""

    def drop(self) -> None:
        super().drop()
        raise OSError


def test_a_connection_that_fails_as_it_is_dropped_ends_it_for_this_dispatcher_only(
    loop: PromotionLoop, other: Dispatching
) -> None:
    one = Dispatching(loop, Failing(), due_in=3600)
    one.wire.server.close()

    one.wait_end()

    assert one.wire.dropped


def test_dispatchers_that_come_and_go_while_the_thread_ends_do_not_hang(
    loop: PromotionLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion_loop, "IDLE_SECONDS", 0.0)
    for _ in range(200):
        Dispatching(loop, next_call=lambda: None).wait_end()

    wait_until(lambda: not loop._wakeup, what="the thread has ended")


def test_the_timeout_of_the_socket_is_what_it_was(loop: PromotionLoop) -> None:
    one = Dispatching(loop, next_call=lambda: None)
    one.wait_end()

    assert one.wire.socket.gettimeout() is None


def test_a_thread_that_cannot_be_started_is_an_error_and_tried_again(
    loop: PromotionLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Dispatching(loop, next_call=lambda: None)
    one.wait_end()
    wait_until(lambda: not loop._wakeup, what="the thread has ended")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda _: fail(RuntimeError("no more threads")))
        with pytest.raises(RuntimeError, match="no more threads"):
            loop.promote(one.handover, one.wake_ups.fileno())

    loop.promote(one.handover, one.wake_ups.fileno())
