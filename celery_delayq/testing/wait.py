"""Waits in tests for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")

#: Seconds: only a hang reaches them, however busy the machine is.
DEFAULT_TIMEOUT = 240.0


def wait_until(
    condition: Callable[[], _Found],
    timeout: float = DEFAULT_TIMEOUT,
    what: str | Callable[[], str] = "the condition",
    *,
    interval: float = 0.02,
) -> _Found:
    """Call `condition` until its result is true, and return that result.

    Parameters
    ----------
    condition
        Called at least once; its errors are raised.
    timeout
        Seconds.
    what
        Name of the condition in the error, or a function that returns the name. The function is
        called after the timeout.
    interval
        Seconds between two calls.

    Raises
    ------
    TimeoutError
        `condition` stayed false for `timeout`.
    """
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() >= deadline:
            text = what if isinstance(what, str) else what()
            raise TimeoutError(f"waited {timeout:g} s in vain for {text}")
        time.sleep(interval)
    return found
