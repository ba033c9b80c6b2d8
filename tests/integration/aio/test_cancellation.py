"""A call that is cancelled, wherever it waits, leaves nothing half done."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from tests.integration.aio.conftest import Interruptions, cancel_current, run
from tests.integration.conftest import Through, stored


def test_cancelled_at_each_await(interruptions: Interruptions) -> None:
    def check(found: Any, was_reached: bool) -> None:
        assert not was_reached or isinstance(found, asyncio.CancelledError)

    interruptions.run(lambda _client: cancel_current, check)


def test_a_call_that_times_out_leaves_a_usable_connection(through: Through, redis: Redis) -> None:
    proxy, delayq = through()
    add = delayq.app.tasks["tasks.add"]

    async def main() -> Any:
        async with AsyncDelayQ(delayq, connections=1) as client:
            await client.apply_async(add, (0, 0), countdown=60, task_id="first")
            with proxy.frozen():
                calls = [
                    asyncio.wait_for(
                        client.apply_async(add, (n, n), countdown=60, task_id=f"id-{n}"), 0.2
                    )
                    for n in range(20)
                ]
                found = await asyncio.gather(*calls, return_exceptions=True)
            await client.apply_async(add, (0, 0), countdown=60, task_id="last")
            return found

    found = asyncio.run(main())

    assert {type(each) for each in found} == {asyncio.TimeoutError}
    ids = [each["headers"]["id"] for each in stored(redis)]
    assert len(ids) == len({*ids})
    assert {"first", "last"} <= {*ids} <= {"first", "last", *(f"id-{n}" for n in range(20))}


def test_calls_that_time_out_at_random_moments(delayq: DelayQ, add: Any, redis: Redis) -> None:
    moments = random.Random(22)
    told: dict[str, bool] = {}

    async def send(client: AsyncDelayQ, id: str, seconds: float) -> bool:
        call = client.apply_async(add, (1, 2), countdown=60, task_id=id)
        try:
            await asyncio.wait_for(call, seconds)
            told[id] = True
        except asyncio.TimeoutError:
            told[id] = False
        return told[id]

    async def use(client: AsyncDelayQ) -> Any:
        await client.count()  # connects
        longest, sent = 1.0, {True}
        while sent != {True, False}:  # `run` ends a search that takes a minute
            calls = [
                send(client, f"id-{len(told) + n}", longest * moments.random()) for n in range(300)
            ]
            sent = {*await asyncio.gather(*calls)}
            longest *= 2 if sent == {False} else 0.5
        return [id for id in told if await client.get(id)]

    found = run(delayq, use)

    ids = [each["headers"]["id"] for each in stored(redis)]
    assert sorted(ids) == sorted(found)
    assert {id for id, was_sent in told.items() if was_sent} <= {*ids}
