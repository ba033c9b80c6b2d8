"""Redis' clock, and its replacement that a test sets on its private server.

All scripts read the clock by ``now_us`` of ``include/clock.lua``, all Python code by
:func:`time_command` and :func:`clock_us`. While :func:`read_test_clock` is on, both read the key
:data:`TEST_CLOCK` instead. The clock of a Redis without that key does not change.

Production never turns this on: its scripts do not contain the key.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery_delayq.store.scripting import calls, scripts
from celery_delayq.store.scripting.calls import Command

#: The key of the set clock: a list with seconds and microseconds, as in the reply to ``TIME``.
TEST_CLOCK = "delayq:test_clock"


def read_test_clock(*, on: bool) -> None:
    """Have this process read the clock that a test sets, or Redis' own clock again."""
    scripts.read_test_clock(on=on)
    calls.forget_packed()


def time_command() -> Command:
    """Return the command that reads the clock. :func:`clock_us` reads its reply."""
    if scripts.is_test_clock_read():
        return Command.of("LRANGE", TEST_CLOCK, 0, 1)
    return Command.of("TIME")


def clock_us(reply: Sequence[Any]) -> int:
    """Return the time in a reply to :func:`time_command`, in µs since 1970.

    A Redis without a set clock gives an empty reply. Its time is that of this process.
    """
    if not reply:
        return time.time_ns() // 1000
    seconds, micros = map(int, reply)
    return seconds * 1_000_000 + micros
