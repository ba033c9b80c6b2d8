"""``schedule_many`` from iterators and async iterators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.aio.binding import MAX_THREADS
from celery_delayq.schedule.items import InvalidItem, ManyFailed
from tests.integration.aio.conftest import run, until
from tests.integration.conftest import stored


def item(n: int) -> dict[str, Any]:
    return {"args": (n, n), "countdown": 60, "id": f"id-{n:04}"}


async def several(number: int, error: Exception | None = None) -> AsyncIterator[dict[str, Any]]:
    for n in range(number):
        await asyncio.sleep(0)
        yield item(n)
    if error is not None:
        raise error


def test_both_kinds_of_iterators(delayq: DelayQ, add: Any, redis: Redis) -> None:
    async def use(client: AsyncDelayQ) -> Any:
        first = await client.schedule_many(several(1000), task=add)
        second = await client.schedule_many([item(n) for n in range(500, 1500)], task=add)
        return first.counts, second.counts

    assert run(delayq, use) == ({"scheduled": 1000}, {"duplicate": 500, "scheduled": 500})
    assert len(stored(redis)) == 1500


def test_the_error_of_an_iterator_tells_the_position(
    delayq: DelayQ, add: Any, redis: Redis
) -> None:
    async def use(client: AsyncDelayQ) -> None:
        with pytest.raises(ManyFailed) as caught:
            await client.schedule_many(several(10, OSError("gone")), task=add)
        assert (caught.value.report.position, type(caught.value.__cause__)) == (10, OSError)
        with pytest.raises(InvalidItem):
            await client.schedule_many(item(1), task=add)

    run(delayq, use)

    assert len(stored(redis)) == 10


def test_a_cancelled_call_ends_before_the_next_item(delayq: DelayQ, add: Any, redis: Redis) -> None:
    taken: list[int] = []

    async def endless(ended: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        try:
            for n in range(1_000_000):
                taken.append(n)
                yield item(n)
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def use(client: AsyncDelayQ) -> None:
        ended = asyncio.Event()
        call = asyncio.ensure_future(client.schedule_many(endless(ended), task=add, batch=50))
        await until(lambda: len(taken) > 200)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await ended.wait()
        # The threads of the call have ended, or this would wait for them.
        await client.apply_async(add, (1, 2), countdown=60)

    run(delayq, use)


def test_iterators_may_call_the_client(delayq: DelayQ, add: Any, redis: Redis) -> None:
    """More of them than the client has threads, each waiting for a call in another thread."""

    async def asking(client: AsyncDelayQ) -> AsyncIterator[dict[str, Any]]:
        await client.count()
        yield {"args": (1, 2), "countdown": 60}

    async def use(client: AsyncDelayQ) -> None:
        calls = (client.schedule_many(asking(client), task=add) for _ in range(2 * MAX_THREADS))
        await asyncio.gather(*calls)

    run(delayq, use)

    assert len(stored(redis)) == 2 * MAX_THREADS
