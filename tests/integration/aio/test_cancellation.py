"""A call that is cancelled, wherever it waits, leaves nothing half done."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from celery import group
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from tests.integration.aio.conftest import CancelledAt, all_of, run
from tests.integration.conftest import Through, ready, stored

#: A message of the task, as a producer stores it.
DEAD = json.dumps(
    {
        "body": base64.b64encode(b"[[1, 2], {}, {}]").decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": "tasks.add", "id": "dead"},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "delivery_tag": "dead",
        },
    }
).encode()

Call = Callable[[AsyncDelayQ, Any], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "apply_async": lambda client, add: client.apply_async(add, (1, 2), countdown=60, task_id="one"),
    "apply_async at once": lambda client, add: client.apply_async(add, (1, 2), task_id="one"),
    "get": lambda client, _: client.get("there"),
    "cancel": lambda client, _: client.cancel("there"),
    "reschedule": lambda client, _: client.reschedule("there", countdown=600),
    "run_now": lambda client, _: client.run_now("there"),
    "replay": lambda client, _: client.replay("dead"),
    "canvas": lambda client, add: client.apply_async(group(add.s(1, 2).set(task_id="one"))),
    "periodic": lambda client, add: client.periodic.add("tick", 60, add, (1, 2)),
    "pause": lambda client, _: client.pause(queue="celery"),
    "list": lambda client, _: client.list(),
    "result": lambda client, _: client.result("there", timeout=0.01),
    "schedule_many": lambda client, add: client.schedule_many(several(), task=add),
    "entries": lambda client, _: all_of(client.entries()),
}


async def several() -> Any:
    for n in range(3):
        yield {"args": (n, n), "countdown": 60, "id": f"many-{n}"}
        await asyncio.sleep(0)


async def awaited(call: Awaitable[Any]) -> Any:
    return await call


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "connecting"])
@pytest.mark.parametrize("name", CALLS)
def test_cancelled_at_each_await(
    name: str, connected: bool, delayq: DelayQ, add: Any, redis: Redis
) -> None:
    async def cancelled_at(number: int) -> bool:
        """Cancel a call there, and use the client again; return whether it came so far."""
        redis.flushdb()
        add.apply_async((0, 0), countdown=60, task_id="there")
        delayq.store.add_dead_letter("celery", "dead", "broken", DEAD)
        async with AsyncDelayQ(delayq, connections=1) as client:
            if not connected:
                await client.close()
            call = CancelledAt(CALLS[name](client, add), number)
            found: Any
            [found] = await asyncio.gather(awaited(call), return_exceptions=True)
            assert not call.was_reached or isinstance(found, asyncio.CancelledError)
            # On one connection, so the request before this one has been answered by now.
            after = await asyncio.wait_for(client.apply_async(add, (9, 9), countdown=60), 30)
            assert await asyncio.wait_for(client.get(after.id), 30)
            await client.cancel(after.id)
        ids = [each["headers"]["id"] for each in (*stored(redis), *ready(redis))]
        assert len(ids) == len({*ids}), ids
        dead = delayq.count_dead()
        if name == "replay":
            assert dead + ids.count("dead") == 1
        assert {*ids} <= {"there", "one", "dead", "many-0", "many-1", "many-2"}
        return call.was_reached

    number = 1
    while asyncio.run(cancelled_at(number)):
        number += 1
    assert number > 1


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

    async def send(client: AsyncDelayQ, id: str) -> None:
        call = client.apply_async(add, (1, 2), countdown=60, task_id=id)
        try:
            await asyncio.wait_for(call, moments.random())
            told[id] = True
        except asyncio.TimeoutError:
            told[id] = False

    async def use(client: AsyncDelayQ) -> Any:
        await client.count()  # connects
        await asyncio.gather(*(send(client, f"id-{n}") for n in range(300)))
        return [id for id in told if await client.get(id)]

    found = run(delayq, use)

    ids = [each["headers"]["id"] for each in stored(redis)]
    assert sorted(ids) == sorted(found)
    assert {id for id, was_sent in told.items() if was_sent} <= {*ids}
    assert {*told.values()} == {True, False}
