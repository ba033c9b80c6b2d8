"""Makes calls that may hang, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TypeVar

T = TypeVar("T")

__all__ = ["NotInTime", "begin"]


def begin(function: Callable[[], T]) -> Future[T]:
    """Call a function in a thread that does not delay the end of the process.

    ``result(timeout)`` of the returned future raises :class:`NotInTime` after *timeout* seconds.
    """
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as exc:
            future.set_exception(exc)

    threading.Thread(target=call, name="delayq-call", daemon=True).start()
    return future
