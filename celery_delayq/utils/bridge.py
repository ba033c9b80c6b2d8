"""Runs synchronous code on an event loop without blocking it.

The code runs in a greenlet. Where it would wait for a reply it calls :func:`wait`, which switches
back to the coroutine that started it; that one awaits, and switches into the greenlet again. Code
that blocks in another way is marked with :func:`off_loop`: on a loop it runs in a thread meanwhile.
Everywhere else both do nothing, so that one code serves threads and loops.

greenlet comes with the extra ``aio``; without it only :class:`Bridge` does not work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from celery_delayq.errors import ConfigError

try:
    from greenlet import getcurrent, greenlet
except ImportError:  # then nothing runs here, and Bridge says so
    getcurrent, greenlet = (lambda: None), None

T = TypeVar("T")
P = ParamSpec("P")

_thread = threading.local()


class _Runner(greenlet or object):  # type: ignore[misc]
    """A greenlet that runs one call for a coroutine, in the coroutine's context."""

    def __init__(self, function: Callable[[], Any], bridge: Bridge) -> None:
        current = getcurrent()
        super().__init__(function, current)
        self.gr_context = current.gr_context
        self.bridge = bridge


class Bridge:
    """Runs calls for the coroutines of one loop.

    Parameters
    ----------
    threads : int
        Threads for what blocks.

    Raises
    ------
    ConfigError
        greenlet is not installed.
    """

    def __init__(self, threads: int) -> None:
        if greenlet is None:
            raise ConfigError('greenlet is missing: pip install "celery-delayq[aio]"')
        self._executor = ThreadPoolExecutor(threads, "celery_delayq.aio", _mark_thread)

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a greenlet, and await what it waits for.

        Cancelling raises ``CancelledError`` in the function, where it waits.
        """
        runner = _Runner(function, self)
        found = runner.switch()
        while not runner.dead:
            try:
                value = await found
            except BaseException as exc:
                found = runner.throw(exc)
            else:
                found = runner.switch(value)
        result: T = found
        return result

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, in a copy of the caller's context.

        Cancelling does not stop the function.
        """
        call = partial(copy_context().run, function)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Let the threads end."""
        self._executor.shutdown(wait=False)


def _mark_thread() -> None:
    _thread.is_marked = True


def is_running() -> bool:
    """Whether the caller runs on a loop, in a greenlet that may :func:`wait`."""
    return isinstance(getcurrent(), _Runner)


def is_in_thread() -> bool:
    """Whether the caller runs in a thread of a bridge."""
    return getattr(_thread, "is_marked", False)


def wait(awaitable: Awaitable[T]) -> T:
    """Await something from a greenlet."""
    result: T = getcurrent().parent.switch(awaitable)
    return result


def off_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that blocks: on a loop it runs in a thread, and the caller waits for it."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        current = getcurrent()
        if not isinstance(current, _Runner):
            return function(*args, **kwargs)
        return wait(current.bridge.in_thread(partial(function, *args, **kwargs)))

    return call
