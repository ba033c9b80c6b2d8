"""Redis' clock, and its replacement that a test sets on its private server.

All scripts read the clock by ``now_us`` of ``include/clock.lua``, all Python code by
:func:`time_command` and :func:`clock_us`. While :func:`use_test_clock` is on, both read the key
:data:`TEST_CLOCK` instead, and refuse a Redis without that key.

Production never turns this on: its scripts do not contain the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_delayq.errors import TravelError
from celery_delayq.store.scripting import calls, scripts
from celery_delayq.store.scripting.calls import Command

#: The key of the set clock: a list with seconds and microseconds, as in the reply to ``TIME``.
TEST_CLOCK = "delayq:test_clock"


#: As in ``include/clock.lua``.
_NO_TEST_CLOCK = "NOTESTCLOCK delayq_time moves the clock of another Redis, or this one was emptied"


def use_test_clock(*, on: bool) -> None:
    """Have this process read the clock that a test sets, or Redis' own clock again."""
    scripts.load_variants_of_travel(on=on)
    calls.forget_packed()


def time_command() -> Command:
    """Return the command that reads the clock. :func:`clock_us` reads its reply."""
    if scripts.has_test_clock():
        return Command.of("LRANGE", TEST_CLOCK, 0, 1)
    return Command.of("TIME")


def clock_us(reply: Sequence[Any]) -> int:
    """Return the time in a reply to :func:`time_command`, in µs since 1970.

    Raises
    ------
    TravelError
        A test moves the clock of another Redis.
    """
    if not reply:
        raise TravelError(_NO_TEST_CLOCK)
    seconds, micros = map(int, reply)
    return seconds * 1_000_000 + micros
