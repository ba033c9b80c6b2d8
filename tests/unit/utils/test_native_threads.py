"""A signal wakes one native thread and is never lost; patched threads are recognised."""

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

#: Seconds that no test has: a wait that returns was ended by the signal.
FOR_EVER = 1_000_000


def waited(signal: native_threads.Signal, seconds: float) -> float:
    start = time.monotonic()
    signal.wait(seconds)
    return time.monotonic() - start


def test_after_a_given_signal_one_wait_returns_at_once() -> None:
    signal = native_threads.Signal()
    signal.give()
    signal.give()

    signal.wait(FOR_EVER)
    assert waited(signal, 0.05) >= 0.05


def test_a_signal_wakes_the_thread_that_waits() -> None:
    signal = native_threads.Signal()
    thread = threading.Thread(target=lambda: signal.wait(FOR_EVER), daemon=True)
    thread.start()
    signal.give()
    thread.join(TIMEOUT)

    assert not thread.is_alive()


def test_a_signal_can_be_given_again_after_it_was_taken_back() -> None:
    signal = native_threads.Signal()
    for _ in range(3):
        signal.give()
        signal.wait(FOR_EVER)
        signal.take_back()
    assert waited(signal, 0.05) >= 0.05


def test_no_signal_is_lost_between_threads() -> None:
    """The thread resets, looks for work and waits. A signal in between must wake the thread."""
    signal = native_threads.Signal()
    given, seen = 0, 0
    done = threading.Event()

    def work() -> None:
        nonlocal seen
        while not done.is_set():
            signal.take_back()
            if seen < given:
                seen = given
            else:
                signal.wait(TIMEOUT)

    def all_seen(number: int) -> bool:
        return seen == number

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(1, 301):
        given = number
        signal.give()
        if number % 10 == 0:
            wait_until(
                partial(all_seen, number), timeout=TIMEOUT, what="it is seen", interval=0.0005
            )
    done.set()
    signal.give()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_negative_wait_returns_at_once() -> None:
    native_threads.Signal().wait(-1)


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
