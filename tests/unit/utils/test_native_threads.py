"""An event wakes one native thread and is never lost; patched threads are recognised."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from celery_delayq.testing import wait_until
from celery_delayq.utils import native_threads
from tests.support import TIMEOUT

#: Seconds that no test has: a wait that returns was ended by the event.
FOR_EVER = 1_000_000


def waited(event: native_threads.Event, seconds: float) -> float:
    start = time.monotonic()
    event.wait(seconds)
    return time.monotonic() - start


def test_after_the_event_is_set_one_wait_returns_at_once() -> None:
    event = native_threads.Event()
    event.set()
    event.set()

    event.wait(FOR_EVER)
    assert waited(event, 0.05) >= 0.05


def test_an_event_wakes_the_thread_that_waits() -> None:
    event = native_threads.Event()
    thread = threading.Thread(target=lambda: event.wait(FOR_EVER), daemon=True)
    thread.start()
    event.set()
    thread.join(TIMEOUT)

    assert not thread.is_alive()


def test_an_event_can_be_set_again_after_it_was_cleared() -> None:
    event = native_threads.Event()
    for _ in range(3):
        event.set()
        event.wait(FOR_EVER)
        event.clear()
    assert waited(event, 0.05) >= 0.05


def test_no_event_is_lost_between_threads() -> None:
    """The thread resets, looks for work and waits. An event in between must wake the thread."""
    event = native_threads.Event()
    given, seen = 0, 0
    done = threading.Event()

    def work() -> None:
        nonlocal seen
        while not done.is_set():
            event.clear()
            if seen < given:
                seen = given
            else:
                event.wait(TIMEOUT)

    def all_seen(number: int) -> bool:
        return seen == number

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(1, 301):
        given = number
        event.set()
        if number % 10 == 0:
            wait_until(
                partial(all_seen, number), timeout=TIMEOUT, what="it is seen", interval=0.0005
            )
    done.set()
    event.set()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_negative_wait_returns_at_once() -> None:
    native_threads.Event().wait(-1)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", False),
        ("import gevent.monkey", False),
        ("import gevent.monkey; gevent.monkey.patch_all()", True),
        ("import gevent.monkey; gevent.monkey.patch_all(thread=False)", False),
        ("import eventlet", False),
        ("import eventlet; eventlet.monkey_patch()", True),
        ("import eventlet; eventlet.monkey_patch(thread=False)", False),
    ],
)
def test_threads_that_are_greenlets_are_recognised(before: str, expected: bool) -> None:
    code = (
        f"{before}\nfrom celery_delayq.utils import native_threads\n"
        "print(native_threads.has_green_threads())"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert printed.stdout == f"{expected}\n", printed.stderr
