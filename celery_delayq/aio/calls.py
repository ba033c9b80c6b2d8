"""From a method of the sync client to one that is awaited: on the loop, or in a thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def on_loop(method: Callable[Concatenate[Any, P], T]) -> Awaited[P, T]:
    """Return the method to be awaited; its replies are awaited on the loop, without a thread.

    For what is about one task, and so never holds the loop for long.
    """

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        binding = await self._bound()
        found: T = await binding.run(partial(method, binding.on_loop, *args, **kwargs))
        return found

    return call


def in_thread(method: Callable[Concatenate[Any, P], T]) -> Awaited[P, T]:
    """Return the method to be awaited; it runs in a thread.

    For what reads or changes very many tasks, or talks to others than Redis.
    """

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        binding = await self._bound()
        found: T = await binding.in_thread(partial(method, binding.in_threads, *args, **kwargs))
        return found

    return call
