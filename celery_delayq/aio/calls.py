"""Makes async methods of sync ones, which run on the loop or in a thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

#: Number of items that a thread takes out of an iterator at once.
PORTION_ITEMS = 100


class Abandoned(BaseException):
    """The caller of a call that runs in a thread was cancelled."""


def on_loop(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an async method that runs on the loop and does not block the loop.

    For methods about one task, which use the loop for a short time only.
    """

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        binding = await self._bound()
        found: T = await binding.on_loop(method, *args, **kwargs)
        return found

    return call


def in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return an async method that runs in a thread.

    For methods that read or change very many tasks, or use other servers than Redis. When the
    caller is cancelled, a method with the parameter ``progress`` ends after its current batch.
    Other methods run to their end.
    """
    has_progress = "progress" in inspect.signature(method).parameters

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        binding = await self._bound()
        stop = threading.Event()
        if has_progress:
            kwargs["progress"] = _stoppable(stop, kwargs.get("progress"))
        try:
            found: T = await binding.in_thread(method, *args, **kwargs)
        finally:
            stop.set()
        return found

    return call


def iterated(
    method: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[Concatenate[Any, P], AsyncGenerator[T, None]]:
    """Return the method with an async iterator: a thread reads ahead, a portion at a time.

    Errors of the call itself are raised with the first item.
    """

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        binding = await self._bound()
        items = await binding.in_thread(method, *args, **kwargs)
        try:
            while portion := await binding.in_thread(partial(_next_portion, items)):
                for item in portion:
                    yield item
        finally:
            with suppress(AttributeError, ValueError):  # no generator, or a thread still reads
                items.close()

    return call


def _next_portion(items: Iterator[T], _client: Any) -> list[T]:
    return [*islice(items, PORTION_ITEMS)]


def _stoppable(stop: threading.Event, progress: Any) -> Callable[[Any], None]:
    """Return a ``progress`` function that ends the call after the caller was cancelled."""

    def report_progress(report: Any) -> None:
        if stop.is_set():
            raise Abandoned
        if progress is not None:
            progress(report)

    return report_progress
