"""Handlers of signals wait until a block of the main thread has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from celery.exceptions import WorkerTerminate

from celery_delayq.integration import interrupts
from celery_delayq.integration.interrupts import SHUTDOWN_GUARD, postpone_in_blocks
from tests.support import TIMEOUT

#: What happens in which order, by the number of blocks around the signal.
ORDERS = {
    0: ["handler", "after the signal", "end"],
    1: ["after the signal", "handler", "end"],
    2: ["after the signal", "handler", "end"],
}


#: How a worker's process patches, by pool.
PATCHES = {
    "gevent": "from gevent import monkey, spawn; monkey.patch_all()",
    "eventlet": "from eventlet import monkey_patch, spawn; monkey_patch()",
}
#: A signal comes in a block of the main greenlet, then in one of another greenlet.
GREENLETS = """
import signal, time
from celery_delayq.integration.interrupts import SHUTDOWN_GUARD, postpone_in_blocks

seen = []
signal.signal(signal.SIGUSR2, postpone_in_blocks(lambda *_: seen.append("handler")))

def enter():
    with SHUTDOWN_GUARD:
        signal.raise_signal(signal.SIGUSR2)
        time.sleep(0)  # other greenlets run
        seen.append("block")

enter()
spawn(enter)
while len(seen) < 4:
    time.sleep(0)  # the other greenlet runs
print(*seen)
"""


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """What has happened. USR2 has a postponed handler."""
    seen: list[str] = []
    handler = postpone_in_blocks(lambda *_: seen.append("handler"))
    before = signal.signal(signal.SIGUSR2, handler)
    yield seen
    signal.signal(signal.SIGUSR2, before)


def send_in_blocks(depth: int, seen: list[str]) -> None:
    if depth:
        with SHUTDOWN_GUARD:
            send_in_blocks(depth - 1, seen)
    else:
        signal.raise_signal(signal.SIGUSR2)
        seen.append("after the signal")


def send_twice() -> None:
    with SHUTDOWN_GUARD:
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR2)


def fail_after_signal() -> None:
    with SHUTDOWN_GUARD:
        signal.raise_signal(signal.SIGUSR2)
        raise ValueError("in the block")


@pytest.mark.parametrize("depth", ORDERS)
def test_a_handler_runs_after_the_outermost_block(depth: int, seen: list[str]) -> None:
    send_in_blocks(depth, seen)
    seen.append("end")
    assert seen == ORDERS[depth]


def test_two_signals_in_a_short_block_call_the_handler_once(seen: list[str]) -> None:
    send_twice()
    assert seen == ["handler"]


def test_a_further_signal_ends_a_process_whose_block_hangs(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "HANGING_SECONDS", -1.0)
    with pytest.raises(WorkerTerminate):
        send_twice()
    assert seen == []
    send_in_blocks(0, seen)
    assert seen == ORDERS[0][:2]


def test_a_signal_before_the_postponed_handler_does_not_call_it_twice(seen: list[str]) -> None:
    """The signal comes when the block has ended, and the handler has not begun."""
    SHUTDOWN_GUARD.postpone(partial(seen.append, "handler"))

    signal.raise_signal(signal.SIGUSR2)
    assert seen == []

    send_in_blocks(1, [])
    assert seen == ["handler"]


def test_an_error_in_the_block_does_not_lose_the_signal(seen: list[str]) -> None:
    with pytest.raises(ValueError, match="in the block"):
        fail_after_signal()
    assert seen == ["handler"]


def test_a_block_of_another_thread_postpones_nothing(seen: list[str]) -> None:
    is_in_block, may_end = threading.Event(), threading.Event()

    def enter() -> None:
        with SHUTDOWN_GUARD:
            is_in_block.set()
            may_end.wait()

    thread = threading.Thread(target=enter)
    thread.start()
    is_in_block.wait()
    try:
        signal.raise_signal(signal.SIGUSR2)
        assert seen == ["handler"]
    finally:
        may_end.set()
        thread.join()


@pytest.mark.parametrize("package", PATCHES)
def test_greenlets_of_the_main_thread_postpone_too(package: str) -> None:
    code = f"{PATCHES[package]}\n{GREENLETS}"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )

    assert done.stdout.split() == ["block", "handler"] * 2
