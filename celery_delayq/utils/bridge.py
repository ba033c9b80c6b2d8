"""Runs synchronous code on an event loop without blocking the loop.

The code runs in a greenlet. To wait for a reply, the code calls :func:`wait`. This function
switches back to the coroutine that started the greenlet. The coroutine awaits the reply and
switches into the greenlet again. Code that blocks in another way is marked with :func:`off_loop`:
on a loop it runs in a thread. Outside a loop it runs as usual, so the same code serves threads and
loops.

greenlet comes with the extra ``aio``. Without greenlet only :class:`Bridge` does not work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from celery_delayq.errors import BrokerUnavailable, ConfigError

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ImportError:  # Bridge raises an error that says so
    getcurrent, greenlet, GreenletExit = (lambda: None), None, Exception

T = TypeVar("T")
P = ParamSpec("P")

_thread = threading.local()


class _Done(NamedTuple):
    """The outcome of a call."""

    value: Any = None
    error: BaseException | None = None


class _Runner(greenlet or object):  # type: ignore[misc]
    """A greenlet that runs one call after another. A new greenlet for each call is much slower."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self.bridge = bridge

    def run(self, function: Callable[[], Any]) -> None:
        """Run the function that each switch passes."""
        calls = [function]
        while True:  # a list, so that no variable keeps the objects of an ended call alive
            calls.append(self.parent.switch(_outcome(calls.pop())))


def _outcome(function: Callable[[], Any]) -> _Done:
    try:
        return _Done(function())
    except GreenletExit:
        raise
    except BaseException as exc:
        return _Done(error=exc)


class Bridge:
    """Runs calls for the coroutines of one loop.

    Parameters
    ----------
    threads : int
        Number of threads for calls that block.
    greenlets : int
        Most calls that run on the loop at a time. Further calls wait until one has ended.

    Raises
    ------
    ConfigError
        greenlet is not installed.
    """

    def __init__(self, threads: int, greenlets: int) -> None:
        if greenlet is None:
            raise ConfigError('greenlet is missing: pip install "celery-delayq[aio]"')
        self._executor = ThreadPoolExecutor(threads, "celery_delayq.aio", _mark_thread)
        self._idle = [_Runner(self) for _ in range(greenlets)]
        self._waiting: deque[asyncio.Future[_Runner]] = deque()
        self._running = 0
        self._is_closed = False
        self._release: Callable[[], object] | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a greenlet, and await the awaitables that the function waits for.

        Cancelling raises ``CancelledError`` in the function, at the place where it waits.

        Raises
        ------
        BrokerUnavailable
            The bridge is closed.
        """
        if self._idle:
            runner = self._idle.pop()
        else:  # first come, first served
            promised: asyncio.Future[_Runner] = asyncio.get_running_loop().create_future()
            self._waiting.append(promised)
            try:
                runner = await promised
            except BaseException:
                if promised.done() and not promised.cancelled():
                    self._give_back(promised.result())
                raise
        if self._is_closed:
            self._give_back(runner)
            raise _closed()
        current = getcurrent()
        # The greenlet runs in the context of the coroutine, as a plain call would.
        runner.parent, runner.gr_context = current, current.gr_context
        found: Any = None
        self._running += 1
        try:
            found = runner.switch(function)
            while type(found) is not _Done:
                try:
                    value = await found
                except BaseException as exc:
                    found = runner.throw(exc)
                else:
                    found = runner.switch(value)
        finally:
            # A greenlet that still waits, because its coroutine was closed, is not used again.
            self._give_back(runner if type(found) is _Done else _Runner(self))
            self._running -= 1
            self._release_if_idle()
        if found.error is not None:
            try:
                raise found.error
            finally:
                del found
        result: T = found.value
        return result

    def _give_back(self, runner: _Runner) -> None:
        runner.gr_context = None
        while self._waiting:
            promised = self._waiting.popleft()
            if not promised.done():
                promised.set_result(runner)
                return
        self._idle.append(runner)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, in a copy of the caller's context.

        Cancelling does not stop the function.

        Raises
        ------
        BrokerUnavailable
            The bridge is closed.
        """
        if self._is_closed:
            raise _closed()
        call = partial(copy_context().run, function)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self, release: Callable[[], object] | None = None) -> None:
        """Refuse further calls, and let the threads end.

        Parameters
        ----------
        release : Callable[[], object] | None
            Called when the last call on the loop has ended. Frees the objects that calls use.
        """
        self._is_closed = True
        self._release = release
        self._executor.shutdown(wait=False)
        self._release_if_idle()

    def _release_if_idle(self) -> None:
        if self._release is not None and not self._running:
            release, self._release = self._release, None
            release()


def read_error(done: asyncio.Future[Any]) -> None:
    """Read the error of a future. Otherwise asyncio logs the error if nobody awaits the future."""
    if not done.cancelled():
        done.exception()


def _closed() -> BrokerUnavailable:
    return BrokerUnavailable("the client was closed")


def _mark_thread() -> None:
    _thread.is_marked = True


def is_running() -> bool:
    """Whether the caller runs on a loop, in a greenlet that may call :func:`wait`."""
    return isinstance(getcurrent(), _Runner)


def is_in_thread() -> bool:
    """Whether the caller runs in a thread of a bridge."""
    return getattr(_thread, "is_marked", False)


def wait(awaitable: Awaitable[T]) -> T:
    """Await something from a greenlet."""
    result: T = getcurrent().parent.switch(awaitable)
    return result


def off_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that blocks: on a loop it runs in a thread, and the caller awaits the thread.

    The thread goes on when the caller is cancelled. The function must therefore own its objects.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        current = getcurrent()
        if not isinstance(current, _Runner):
            return function(*args, **kwargs)
        return wait(current.bridge.in_thread(partial(function, *args, **kwargs)))

    return call
