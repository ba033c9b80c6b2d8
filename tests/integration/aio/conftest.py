"""Clients for asyncio, each in a loop of its own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from celery import group
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from tests.integration.conftest import ready, stored
from tests.support import TIMEOUT

T = TypeVar("T")


def run(delayq: DelayQ, use: Callable[[AsyncDelayQ], Awaitable[T]], **options: Any) -> T:
    """Use a client in a loop of its own; nothing may take longer than a minute."""

    async def main() -> T:
        async with AsyncDelayQ(delayq, **options) as client:
            return await asyncio.wait_for(use(client), TIMEOUT)

    return asyncio.run(main())


async def all_of(items: AsyncIterator[T]) -> list[T]:
    """Return what an async iterator yields."""
    return [each async for each in items]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, for half a minute at most."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), TIMEOUT)


class InterruptedAt(Generic[T]):
    """Awaits something, and does something where it suspends for the n-th time."""

    def __init__(self, awaited: Awaitable[T], number: int, interrupt: Callable[[], object]) -> None:
        self._awaited = awaited
        self._number = number
        self._interrupt = interrupt
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
                    self._interrupt()
                try:
                    yield waits_for
                except BaseException as exc:
                    waits_for = inner.throw(exc)
                else:
                    waits_for = next(inner)
        except StopIteration as done:
            result: T = done.value
            return result


def cancel_current() -> None:
    """Cancel the running task of the loop."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


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


@dataclass
class Interruptions:
    """A call that is interrupted at each place where it waits, each time by a client of its own."""

    name: str
    connected: bool
    delayq: DelayQ
    add: Any
    redis: Redis

    def run(
        self,
        interrupt: Callable[[AsyncDelayQ], Callable[[], object]],
        check: Callable[[Any, bool], object],
    ) -> None:
        """Interrupt the call at each place; *check* gets its result, and whether it came so far.

        Then the client works, and each task is in one place.
        """
        number = 1
        while asyncio.run(self._interrupted_at(number, interrupt, check)):
            number += 1
        assert number > 1

    async def _interrupted_at(
        self,
        number: int,
        interrupt: Callable[[AsyncDelayQ], Callable[[], object]],
        check: Callable[[Any, bool], object],
    ) -> bool:
        self.redis.flushdb()
        self.add.apply_async((0, 0), countdown=60, task_id="there")
        self.delayq.store.dead_letters.add("celery", "dead", "broken", DEAD)
        async with AsyncDelayQ(self.delayq, connections=1) as client:
            if not self.connected:
                await client.close()
            call = InterruptedAt(CALLS[self.name](client, self.add), number, interrupt(client))
            found: Any
            [found] = await asyncio.wait_for(
                asyncio.gather(awaited(call), return_exceptions=True), TIMEOUT
            )
            check(found, call.was_reached)
            # On one connection, so the request before this one has been answered by now.
            after = await asyncio.wait_for(
                client.apply_async(self.add, (9, 9), countdown=60), TIMEOUT
            )
            assert await asyncio.wait_for(client.get(after.id), TIMEOUT)
            await client.cancel(after.id)
        ids = [each["headers"]["id"] for each in (*stored(self.redis), *ready(self.redis))]
        assert len(ids) == len({*ids}), ids
        if self.name == "replay":
            assert self.delayq.count_dead() + ids.count("dead") == 1
        assert {*ids} <= {"there", "one", "dead", "many-0", "many-1", "many-2"}
        return call.was_reached


@pytest.fixture(params=[True, False], ids=["connected", "connecting"])
def connected(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture(params=CALLS)
def interruptions(
    connected: bool, delayq: DelayQ, add: Any, redis: Redis, request: pytest.FixtureRequest
) -> Interruptions:
    return Interruptions(request.param, connected, delayq, add, redis)
