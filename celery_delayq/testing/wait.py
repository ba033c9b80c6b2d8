"""The one place where tests wait for something to come true."""

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
        Called at least once; what it raises is passed on.
    timeout
        Seconds.
    what
        What is waited for, as it should stand in the error; called when the wait has failed, if it
        is a function.
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
