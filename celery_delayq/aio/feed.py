"""Items for a call in a thread. After the caller was cancelled, the call ends at the next item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import aclosing, nullcontext
from typing import Any

from celery_delayq.aio.calls import Abandoned
from celery_delayq.schedule.items import check_several

#: Most items of an async iterator that wait for the thread.
MAX_WAITING_ITEMS = 100

_END = object()


def feed_of(items: Iterable[Any] | AsyncIterable[Any]) -> Any:
    """Return an iterable for a thread, with a method ``stop``."""
    return AsyncFeed(items) if isinstance(items, AsyncIterable) else Feed(items)


class Feed:
    """Items of an iterable."""

    def __init__(self, items: Iterable[Any]) -> None:
        check_several(items)
        self._items = items
        self._is_stopped = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the items, in a thread."""
        for item in self._items:
            self._check()
            yield item

    def stop(self) -> None:
        """Raise :class:`Abandoned` at the next item."""
        self._is_stopped = True

    def _check(self) -> None:
        if self._is_stopped:
            raise Abandoned


class AsyncFeed(Feed):
    """Items of an async iterator, which runs on the loop. Its error is raised after its items."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        super().__init__(())
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING_ITEMS)
        self._error: Exception | None = None
        self._pumping = asyncio.ensure_future(self._pump(items))

    async def _pump(self, items: AsyncIterable[Any]) -> None:
        closing: Any = aclosing(items) if hasattr(items, "aclose") else nullcontext()
        try:
            async with closing:
                async for item in items:
                    await self._queue.put(item)
        except Exception as exc:
            self._error = exc
        await self._queue.put(_END)

    async def _portion(self) -> list[Any]:
        """Return all waiting items, at least one."""
        found = [await self._queue.get()]
        while not self._queue.empty():
            found.append(self._queue.get_nowait())
        return found

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._check()
            for item in asyncio.run_coroutine_threadsafe(self._portion(), self._loop).result():
                self._check()
                if item is _END:
                    if self._error is not None:
                        raise self._error
                    return
                yield item

    def stop(self) -> None:
        """End the async iterator and the call in the thread."""
        super().stop()
        self._pumping.cancel()
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(_END)  # the thread may wait
