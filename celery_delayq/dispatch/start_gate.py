"""A gate before which the dispatchers of a starting process wait.

A starting worker removes the periodic entries that its code no longer has, with their ticks. If no
worker ran before, such a tick may be overdue. The gate keeps dispatchers from promoting it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Most seconds for which a dispatcher waits, and seconds between two checks whether it is to stop.
WAIT_SECONDS, LOOK_SECONDS = 5.0, 0.05

_is_open = threading.Event()
_is_open.set()
#: Number of calls of :func:`let_waiting_pass`.
_passes = 0


def close() -> None:
    """Let dispatchers that connect from now on wait until :func:`let_pass`."""
    _is_open.clear()


def let_pass() -> None:
    """Let all dispatchers go on."""
    _is_open.set()


def let_waiting_pass() -> None:
    """Let only the waiting dispatchers go on: the entries cannot be removed yet."""
    global _passes
    _passes += 1


def wait(go_on: Callable[[], bool]) -> None:
    """Wait for :func:`let_pass` or :func:`let_waiting_pass` while *go_on* returns True."""
    end, before = time.monotonic() + WAIT_SECONDS, _passes
    while (
        _passes == before and go_on() and time.monotonic() < end and not _is_open.wait(LOOK_SECONDS)
    ):
        pass
