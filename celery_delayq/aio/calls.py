"""From a method of the sync client to one that is awaited: on the loop, or in a thread."""

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

#: Items that a thread takes out of an iterator at once.
PORTION_ITEMS = 100


class Abandoned(BaseException):
    """Nobody waits any more for a call that runs in a thread."""


def on_loop(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the method to be awaited: it runs on the loop, which waits for no reply meanwhile.

    For what is about one task, and so never holds the loop for long.
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
    """Return the method to be awaited: it runs in a thread.

    For what reads or changes very many tasks, or asks others than Redis. One that tells its
    progress ends with its current batch when the caller is cancelled; others run to their end.
    """
    tells = "progress" in inspect.signature(method).parameters

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        binding = await self._bound()
        stop = threading.Event()
        if tells:
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
    """Return the method whose iterator is an async one: a thread reads ahead, a portion at a time.

    Its errors come with the first item.
    """

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        binding = await self._bound()
        found = await binding.in_thread(method, *args, **kwargs)
        try:
            while portion := await binding.in_thread(partial(_portion, found)):
                for item in portion:
                    yield item
        finally:
            with suppress(AttributeError, ValueError):  # no generator, or a thread still reads
                found.close()

    return call


def _portion(items: Iterator[T], _client: Any) -> list[T]:
    return [*islice(items, PORTION_ITEMS)]


def _stoppable(stop: threading.Event, progress: Any) -> Callable[[Any], None]:
    """Return a function to be told of progress that ends the call once nobody waits for it."""

    def told(report: Any) -> None:
        if stop.is_set():
            raise Abandoned
        if progress is not None:
            progress(report)

    return told
