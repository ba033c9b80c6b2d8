"""Publish many messages at once: in threads with the sync client, or in one event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from .app import app
from .model import Published


def publish(task: Any, calls: Sequence[dict[str, Any]], threads: int, *, frozen: bool) -> Published:
    """Publish all calls at once. Threads, event loop and connections of the last call are reused.

    :param threads: number of threads; 0 for an event loop.
    """
    if frozen:
        gc.freeze()
    try:
        with _longest_callback() as longest:
            wall, cpu = time.perf_counter(), time.process_time()
            if threads:
                pool = _pool(threads)
                for each in [pool.submit(task.apply_async, **call) for call in calls]:
                    each.result()
            else:
                loop, client = _client()
                loop.run_until_complete(_at_once(client, task, calls))
            seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        gc.unfreeze()
    return Published(len(calls), seconds, cpu_seconds, longest())


async def _at_once(client: Any, task: Any, calls: Sequence[dict[str, Any]]) -> None:
    # In portions, as requests come: making a thousand coroutines is not a callback of the client.
    running: list[asyncio.Task[Any]] = []
    for n, call in enumerate(calls):
        running.append(asyncio.ensure_future(client.apply_async(task, **call)))
        if n % 100 == 99:
            await asyncio.sleep(0)
    await asyncio.gather(*running)


@contextmanager
def _longest_callback() -> Iterator[Callable[[], float]]:
    """Time each callback of event loops; yield a function that returns the longest (seconds)."""
    longest = 0.0
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        nonlocal longest
        began = time.perf_counter()
        run(handle)
        longest = max(longest, time.perf_counter() - began)

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield lambda: longest
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


@cache
def _client() -> tuple[asyncio.AbstractEventLoop, Any]:
    """Return an event loop and a client that is connected in it."""
    from celery_delayq.aio import AsyncDelayQ

    loop = asyncio.new_event_loop()
    client = AsyncDelayQ(app)
    loop.run_until_complete(client.connect())
    return loop, client
