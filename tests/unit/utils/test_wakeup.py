"""The wakeup: what makes a poll return, and who else may use the process' wakeup descriptor."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from celery_delayq.utils.wakeup import Wakeup


@pytest.fixture(autouse=True)
def nobody_uses_signals() -> Iterator[None]:
    before = signal.set_wakeup_fd(-1)
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, handler)
    signal.set_wakeup_fd(before)


@pytest.fixture
def other() -> Iterator[socket.socket]:
    """Someone else's use of signals."""
    here, there = socket.socketpair()
    there.setblocking(False)
    with here, there:
        yield there


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    wakeup = Wakeup()
    yield wakeup
    wakeup.close()


def is_set(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def test_it_stays_set_until_it_is_cleared(wakeup: Wakeup) -> None:
    wakeup.set()
    wakeup.set()
    assert is_set(wakeup)
    wakeup.clear()
    assert not is_set(wakeup)


def test_a_signal_sets_it(wakeup: Wakeup) -> None:
    wakeup.set_on_signals()

    signal.raise_signal(signal.SIGUSR1)

    assert is_set(wakeup)
    wakeup.close()
    assert signal.set_wakeup_fd(-1) == -1


def test_another_use_of_signals_goes_on(wakeup: Wakeup, other: socket.socket) -> None:
    signal.set_wakeup_fd(other.fileno())

    wakeup.set_on_signals()
    signal.raise_signal(signal.SIGUSR1)

    assert not is_set(wakeup)
    wakeup.close()
    assert signal.set_wakeup_fd(-1) == other.fileno()


def test_another_use_that_came_later_is_left_alone(wakeup: Wakeup, other: socket.socket) -> None:
    wakeup.set_on_signals()
    signal.set_wakeup_fd(other.fileno())

    wakeup.close()

    assert signal.set_wakeup_fd(-1) == other.fileno()


def test_the_wakeup_of_a_new_connection_takes_over() -> None:
    first, second = Wakeup(), Wakeup()
    first.set_on_signals()
    second.set_on_signals()
    first.close()

    signal.raise_signal(signal.SIGUSR1)

    assert is_set(second)
    second.close()


def test_closed_in_another_thread_it_takes_signals_until_the_next_one_does() -> None:
    """Only the main thread may say where signals write to; the descriptor must not be another's."""
    first, second = Wakeup(), Wakeup()
    first.set_on_signals()
    thread = threading.Thread(target=first.close)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGUSR1)
    assert is_set(first)

    second.set_on_signals()

    assert first.fileno() == -1
    second.close()


def test_a_forked_child_does_not_wake_its_parent() -> None:
    code = """
import os, signal
from celery_delayq.utils.wakeup import Wakeup
wakeup = Wakeup()
wakeup.set_on_signals()
child = os.fork()
if child == 0:
    os._exit(0 if signal.set_wakeup_fd(-1) == -1 else 1)
_, status = os.waitpid(child, 0)
assert signal.set_wakeup_fd(-1) != -1
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0
