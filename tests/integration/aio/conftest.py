"""Clients for asyncio, each in a loop of its own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from celery import group

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ

T = TypeVar("T")


def run(delayq: DelayQ, use: Callable[[AsyncDelayQ], Awaitable[T]], **options: Any) -> T:
    """Use a client in a loop of its own; nothing may take longer than a minute."""

    async def main() -> T:
        async with AsyncDelayQ(delayq, **options) as client:
            return await asyncio.wait_for(use(client), 60)

    return asyncio.run(main())


async def all_of(items: AsyncIterator[T]) -> list[T]:
    """Return what an async iterator yields."""
    return [each async for each in items]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, for half a minute at most."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 30)


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
