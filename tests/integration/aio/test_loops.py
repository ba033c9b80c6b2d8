"""One client and several loops: at the same time, one after the other, closed ones."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import chain
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import BrokerUnavailable, ConfigError
from celery_delayq.utils import bridge
from tests.integration.aio.conftest import all_of, until
from tests.integration.conftest import Through, stored
from tests.support import TIMEOUT


def in_closed_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run in a new loop, and close that without any cleaning up."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_a_second_loop_at_the_same_time_is_refused(delayq: DelayQ, add: Any, redis: Redis) -> None:
    async def main() -> None:
        async with AsyncDelayQ(delayq) as client:
            with ThreadPoolExecutor(1) as other:
                elsewhere = other.submit(asyncio.run, client.apply_async(add, (1, 2), countdown=60))
                with pytest.raises(ConfigError, match="another event loop"):
                    await asyncio.wrap_future(elsewhere)
            await client.apply_async(add, (1, 2), countdown=60)

    asyncio.run(main())

    assert len(stored(redis)) == 1


def test_each_loop_may_have_a_client_of_its_own(delayq: DelayQ, add: Any, redis: Redis) -> None:
    async def main() -> None:
        async with AsyncDelayQ(delayq) as client:
            await asyncio.gather(
                *(client.apply_async(add, (n, n), countdown=60) for n in range(50))
            )

    with ThreadPoolExecutor(3) as threads:
        for each in [threads.submit(asyncio.run, main()) for _ in range(3)]:
            each.result(TIMEOUT)

    assert len(stored(redis)) == 150


def test_it_is_used_again_after_close_and_in_another_loop(
    delayq: DelayQ, add: Any, redis: Redis
) -> None:
    client = AsyncDelayQ(delayq)

    async def main() -> None:
        await client.apply_async(add, (1, 2), countdown=60)
        await client.close()
        await client.close()
        await client.apply_async(add, (1, 2), countdown=60)
        await client.close()

    asyncio.run(main())
    asyncio.run(main())

    assert len(stored(redis)) == 4


def test_it_is_used_again_after_its_loop_was_closed(delayq: DelayQ, add: Any, redis: Redis) -> None:
    client = AsyncDelayQ(delayq)

    in_closed_loop(client.apply_async(add, (1, 2), countdown=60))
    in_closed_loop(client.apply_async(add, (1, 2), countdown=60))
    in_closed_loop(client.close())
    gc.collect()

    assert len(stored(redis)) == 2


@pytest.mark.parametrize("method", ["get", "apply_async"])
def test_closing_ends_calls_that_wait(method: str, through: Through) -> None:
    proxy, delayq = through(task_publish_retry=False)
    add = delayq.app.tasks["tasks.add"]

    async def main() -> list[Any]:
        client = AsyncDelayQ(delayq)
        await client.apply_async(add, (1, 2), countdown=60)
        proxy.hold("control/find", "schedule/add")
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(
                client.get("one")
                if method == "get"
                else client.apply_async(add, (1, 2), countdown=60)
            )
            for _ in range(100)
        ]
        await until(lambda: proxy.blocked_calls)
        await client.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), TIMEOUT)

    found = asyncio.run(main())

    assert all(isinstance(each, BrokerUnavailable) for each in found), {*map(repr, found)}


def test_closing_while_it_connects_and_while_it_iterates(delayq: DelayQ, add: Any) -> None:
    async def main() -> list[Any]:
        client = AsyncDelayQ(delayq)
        first = asyncio.ensure_future(client.count())
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        calls = (
            client.get("one"),
            client.count(),
            client.result("one"),
            client.apply_async(add, (1, 2)),
            client.apply_async(chain(add.s(1, 2), add.s(3))),
        )
        found = await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(first, closing, return_exceptions=True)
        for n in range(200):
            await client.apply_async(add, (n, n), countdown=60)
        entries = client.entries()
        await anext(entries)
        await client.close()
        rest = asyncio.ensure_future(all_of(entries))
        return [*found, *await asyncio.gather(rest, return_exceptions=True)]

    found = asyncio.run(main())

    assert all(isinstance(each, BrokerUnavailable) for each in found), found


def test_it_says_when_greenlet_is_missing(delayq: DelayQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "greenlet", None)

    with pytest.raises(ConfigError, match=r"pip install .*\[aio\]"):
        asyncio.run(AsyncDelayQ(delayq).connect())


def test_it_runs_on_uvloop(delayq: DelayQ, add: Any, redis: Redis) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with AsyncDelayQ(delayq) as client:
            calls = (client.apply_async(add, (n, "x" * 10_000), countdown=60) for n in range(500))
            await asyncio.gather(*calls)
            assert len([each async for each in client.entries()]) == 500

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()

    assert len(stored(redis)) == 500
