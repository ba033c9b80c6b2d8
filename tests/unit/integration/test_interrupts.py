"""Handlers of signals wait until an uninterrupted block has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from celery_delayq.integration.interrupts import postponed, uninterrupted

#: The blocks around a signal, and what is called when: ``call`` by the handler.
BLOCKS = {0: ["call", "step", "end"], 1: ["step", "call", "end"], 2: ["step", "call", "end"]}


class Killed(Exception):
    """A second signal ends the process."""


def kill() -> None:
    raise Killed


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """What has happened. USR2 has a postponed handler."""
    seen: list[str] = []
    before = signal.signal(signal.SIGUSR2, postponed(lambda *_: seen.append("call"), kill))
    yield seen
    signal.signal(signal.SIGUSR2, before)


def interrupt(times: int = 1, error: Exception | None = None) -> None:
    """Send signals in a block, which then has an error."""
    with uninterrupted:
        for _ in range(times):
            signal.raise_signal(signal.SIGUSR2)
        if error is not None:
            raise error


def in_blocks(depth: int, seen: list[str]) -> None:
    if depth:
        with uninterrupted:
            in_blocks(depth - 1, seen)
    else:
        signal.raise_signal(signal.SIGUSR2)
        seen.append("step")


@pytest.mark.parametrize("depth", BLOCKS)
def test_a_handler_runs_after_the_outermost_block(depth: int, seen: list[str]) -> None:
    in_blocks(depth, seen)
    seen.append("end")
    assert seen == BLOCKS[depth]


def test_a_second_signal_ends_a_block_that_hangs_and_the_handler_does_not_run(
    seen: list[str],
) -> None:
    with pytest.raises(Killed):
        interrupt(times=2)
    assert seen == []
    in_blocks(0, seen)
    assert seen == ["call", "step"]


def test_an_error_in_the_block_does_not_lose_the_signal(seen: list[str]) -> None:
    with pytest.raises(ValueError, match="in the block"):
        interrupt(error=ValueError("in the block"))
    assert seen == ["call"]


def test_a_block_of_another_thread_postpones_nothing(seen: list[str]) -> None:
    entered, left = threading.Event(), threading.Event()

    def block() -> None:
        with uninterrupted:
            entered.set()
            left.wait()

    thread = threading.Thread(target=block)
    thread.start()
    entered.wait()
    signal.raise_signal(signal.SIGUSR2)
    assert seen == ["call"]
    left.set()
    thread.join()
