"""Waits in tests for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")

#: Longest wait in seconds where a call has no *timeout*. A test suite for a busy machine may set it
#: in its ``conftest.py``.
DEFAULT_TIMEOUT = 60.0
#: Seconds between two calls of a condition: at first, and at most. In between, the interval is a
#: share of the time waited so far: a call costs processor time that the awaited work needs.
_FIRST_INTERVAL, _LAST_INTERVAL, _INTERVAL_SHARE = 0.02, 0.1, 0.05


def seconds_of(timeout: float | None) -> float:
    """Return a timeout in seconds, the default for None."""
    return DEFAULT_TIMEOUT if timeout is None else timeout


def wait_until(
    condition: Callable[[], _Found],
    timeout: float | None = None,
    what: str | Callable[[], str] = "the condition",
    *,
    interval: float | None = None,
) -> _Found:
    """Call `condition` until its result is true, and return that result.

    Parameters
    ----------
    condition
        Called at least once; its errors are raised.
    timeout
        Seconds; 60 by default (``DEFAULT_TIMEOUT`` of this module).
    what
        Name of the condition in the error, or a function that returns the name. The function is
        called after the timeout.
    interval
        Seconds between two calls. By default 0.02 at first, and up to 0.1 after two seconds.

    Raises
    ------
    TimeoutError
        `condition` stayed false for `timeout`.
    """
    seconds = seconds_of(timeout)
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        if waited >= seconds:
            text = what if isinstance(what, str) else what()
            raise TimeoutError(f"waited {seconds:g} s in vain for {text}")
        growing = min(max(waited * _INTERVAL_SHARE, _FIRST_INTERVAL), _LAST_INTERVAL)
        time.sleep(growing if interval is None else interval)
    return found
