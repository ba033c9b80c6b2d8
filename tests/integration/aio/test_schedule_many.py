"""``schedule_many`` from iterators and async iterators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.schedule.items import InvalidItem, ManyFailed
from tests.integration.aio.conftest import run
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

    async def endless() -> AsyncIterator[dict[str, Any]]:
        for n in range(1_000_000):
            taken.append(n)
            yield item(n)
            await asyncio.sleep(0)

    async def use(client: AsyncDelayQ) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.schedule_many(endless(), task=add, batch=50), 1)
        number = len(taken)
        await asyncio.sleep(0.2)
        assert len(taken) == number
        # The threads of the call have ended, or this would wait for them.
        await client.apply_async(add, (1, 2), countdown=60)

    run(delayq, use)
