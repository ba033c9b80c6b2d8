"""The client for asyncio on a real Redis: what it stores and gives is what the sync client does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.model.scheduled import Outcome
from tests.integration.conftest import ready, stored


def run(delayq: DelayQ, use: Callable[[AsyncDelayQ], Awaitable[Any]]) -> Any:
    """Use a client in a loop of its own."""

    async def main() -> Any:
        async with AsyncDelayQ(delayq) as client:
            return await use(client)

    return asyncio.run(main())


def test_a_task_is_sent_found_and_cancelled(delayq: DelayQ, add: Any, redis: Redis) -> None:
    async def use(client: AsyncDelayQ) -> Any:
        sent = await client.apply_async(add, (1, 2), countdown=60)
        found = await client.get(sent.id)
        outcome = await client.cancel(sent.id)
        return sent, found, outcome, await client.get(sent.id)

    sent, found, outcome, after = run(delayq, use)

    assert (found.id, found.task, found.args) == (sent.id, "tasks.add", [1, 2])
    assert (outcome, after, stored(redis)) == (Outcome.DONE, None, [])
    assert sent.state == "REVOKED"


def test_a_thousand_calls_at_once_are_stored_once_each(
    delayq: DelayQ, add: Any, redis: Redis
) -> None:
    async def use(client: AsyncDelayQ) -> list[str]:
        calls = (client.apply_async(add, (n, n), countdown=60) for n in range(1000))
        return [result.id for result in await asyncio.gather(*calls)]

    ids = run(delayq, use)

    assert sorted(each["headers"]["id"] for each in stored(redis)) == sorted(ids)


def test_a_task_without_a_delay_is_ready(delayq: DelayQ, add: Any, redis: Redis) -> None:
    sent = run(delayq, lambda client: client.apply_async(add, (1, 2)))

    assert [each["headers"]["id"] for each in ready(redis)] == [sent.id]
