"""Clients for asyncio, each in a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ

T = TypeVar("T")


def run(delayq: DelayQ, use: Callable[[AsyncDelayQ], Awaitable[T]], **options: Any) -> T:
    """Use a client in a loop of its own; nothing may take longer than a minute."""

    async def main() -> T:
        async with AsyncDelayQ(delayq, **options) as client:
            return await asyncio.wait_for(use(client), 60)

    return asyncio.run(main())


async def all_of(items: AsyncIterator[T]) -> list[T]:
    """Return what an async iterator yields."""
    return [each async for each in items]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, for half a minute at most."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 30)


class CancelledAt(Generic[T]):
    """Awaits something, and has the task cancelled where it suspends for the n-th time."""

    def __init__(self, awaited: Awaitable[T], number: int) -> None:
        self._awaited = awaited
        self._number = number
        self.was_reached = False

    def __await__(self) -> Generator[Any, None, T]:
        inner = self._awaited.__await__()
        suspensions = 0
        try:
            waits_for = next(inner)
            while True:
                suspensions += 1
                if suspensions == self._number:
                    self.was_reached = True
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                try:
                    yield waits_for
                except BaseException as exc:
                    waits_for = inner.throw(exc)
                else:
                    waits_for = next(inner)
        except StopIteration as done:
            result: T = done.value
            return result
