"""Redis that is away, slow or silent, and connections that are lost: once or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import BrokerTimeout, BrokerUnavailable
from tests.integration.aio.conftest import run
from tests.integration.conftest import Through, ready, stored
from tests.support import TIMEOUT
from tests.support.proxy import Fault

T = TypeVar("T")

#: Do not wait for long where Redis stays away.
IMPATIENT: dict[str, Any] = {
    "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0, "interval_step": 0.01}
}


async def beside_ticks(work: Awaitable[T], ticks: int) -> T:
    """Await something, during which a loop that is not blocked turns so often at least."""
    seen = 0

    async def tick() -> None:
        nonlocal seen
        while True:
            await asyncio.sleep(0.01)
            seen += 1

    ticking = asyncio.ensure_future(tick())
    try:
        return await work
    finally:
        ticking.cancel()
        assert seen >= ticks


@pytest.mark.parametrize("fault", [Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.RESET, Fault.STALL])
def test_a_lost_connection_is_tried_again_and_the_task_stored_once(
    fault: Fault, through: Through, redis: Redis
) -> None:
    proxy, delayq = through()
    add = delayq.app.tasks["tasks.add"]

    async def use(client: AsyncDelayQ) -> list[Any]:
        await client.apply_async(add, (0, 0), countdown=60, task_id="first")
        rule = proxy.on("schedule/add", fault, nth=3)
        calls = (
            client.apply_async(add, (n, n), countdown=60, task_id=f"id-{n}") for n in range(20)
        )
        found = await asyncio.gather(*calls)
        assert rule.fired.is_set()
        return found

    found = run(delayq, use)

    ids = {"first", *(f"id-{n}" for n in range(20))}
    assert {each.id for each in found} == ids - {"first"}
    assert sorted(each["headers"]["id"] for each in stored(redis)) == sorted(ids)


def test_each_call_says_that_redis_is_away_and_works_when_it_is_back(
    through: Through, redis: Redis
) -> None:
    proxy, delayq = through(**IMPATIENT)
    add = delayq.app.tasks["tasks.add"]

    async def use(client: AsyncDelayQ) -> None:
        await client.apply_async(add, (0, 0), countdown=60)
        with proxy.away():
            calls = (client.apply_async(add, (1, 2), countdown=60), client.get("one"))
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, BrokerUnavailable) for each in found), found
        await client.apply_async(add, (0, 0), countdown=60)

    run(delayq, use)

    assert len(stored(redis)) == 2


def test_connecting_to_a_server_that_is_away_fails_and_is_tried_again(
    through: Through, redis: Redis
) -> None:
    proxy, delayq = through(**IMPATIENT)
    add = delayq.app.tasks["tasks.add"]

    async def main() -> None:
        client = AsyncDelayQ(delayq)
        with proxy.away():
            for _ in range(2):
                with pytest.raises(BrokerUnavailable):  # after two tries, as the policy says
                    await asyncio.wait_for(client.apply_async(add, (1, 2)), TIMEOUT)
        await client.apply_async(add, (1, 2))
        await client.close()

    asyncio.run(main())

    assert len(ready(redis)) == 1


def test_a_silent_server_is_noticed_and_does_not_block_the_loop(
    through: Through, redis: Redis
) -> None:
    # Long enough for what a busy server answers.
    options = {"broker_transport_options": {"socket_timeout": 3}}
    proxy, delayq = through(task_publish_retry=False, **options)
    add = delayq.app.tasks["tasks.add"]

    async def use(client: AsyncDelayQ) -> None:
        await client.apply_async(add, (1, 2), countdown=60)
        with proxy.frozen():
            calls = (client.apply_async(add, (n, n), countdown=60) for n in range(100))
            work = asyncio.gather(*calls, return_exceptions=True)
            found = await beside_ticks(work, ticks=5)
        assert all(isinstance(each, BrokerTimeout) for each in found), {*map(type, found)}
        await client.apply_async(add, (1, 2), countdown=60, task_id="last")

    run(delayq, use)

    ids = [each["headers"]["id"] for each in stored(redis)]
    assert "last" in ids
    assert len(ids) == len({*ids})


def test_calls_share_connections_while_replies_are_late(through: Through, redis: Redis) -> None:
    proxy, delayq = through()
    add = delayq.app.tasks["tasks.add"]

    async def use(client: AsyncDelayQ) -> None:
        await client.apply_async(add, (0, 0), countdown=60)
        proxy.latency = 0.01
        calls = (client.apply_async(add, (n, n), countdown=60) for n in range(128))
        await beside_ticks(asyncio.wait_for(asyncio.gather(*calls), TIMEOUT), ticks=5)
        proxy.latency = 0

    run(delayq, use, connections=1)

    assert len(stored(redis)) == 129


def test_a_large_message_comes_in_pieces(delayq: DelayQ, add: Any) -> None:
    text = "x" * 5_000_000

    async def use(client: AsyncDelayQ) -> Any:
        sent = await client.apply_async(add, (text, 0), countdown=60)
        others = (client.get(sent.id) for _ in range(5))
        return [await each for each in others]

    assert {each.args[0] == text for each in run(delayq, use)} == {True}


def test_waiting_for_replicas(through: Through, redis: Redis) -> None:
    from celery_delayq.errors import NotReplicated

    delayq_options = {"wait_replicas": 1, "wait_timeout": 0.1}
    _, delayq = through(broker_transport_options={"delayq": delayq_options})
    add = delayq.app.tasks["tasks.add"]

    async def use(client: AsyncDelayQ) -> None:
        with pytest.raises(NotReplicated):
            await client.apply_async(add, (1, 2), countdown=60, retry=False)

    run(delayq, use)

    assert len(stored(redis)) == 1
