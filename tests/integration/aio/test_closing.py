"""A client that is closed while calls wait: each ends, with its result or ``BrokerUnavailable``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import celery.exceptions
import pytest

from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import BrokerUnavailable
from tests.integration.aio.conftest import Interruptions
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT


def closing(client: AsyncDelayQ) -> Callable[[], None]:
    """Return what closes a client at this moment, or as soon as it is open."""
    tasks = []

    def close() -> None:
        closed = client.close()
        with suppress(StopIteration):
            closed.send(None)
            # It waits until the client is open: then in a task of its own.
            closed.close()
            tasks.append(asyncio.ensure_future(client.close()))

    return close


def test_closed_at_each_await(interruptions: Interruptions) -> None:
    interruptions.run(closing, lambda found, _: check(found))


def check(found: Any) -> None:
    """Raise the error that a call has ended with, unless it is the right one."""
    cause = getattr(found, "__cause__", None)  # of `schedule_many`, which says how far it came
    right = (BrokerUnavailable, celery.exceptions.TimeoutError)  # that of `result` itself
    if isinstance(found, BaseException) and not isinstance(found, right):
        if isinstance(cause, BrokerUnavailable):
            return
        raise found


#: Each broker, and the fixture that gives the URL of an empty one.
BROKERS = {
    "redis": "delayq_broker_url",
    "cluster": "delayq_cluster",
    "rabbitmq": "delayq_rabbitmq",
}


@pytest.mark.parametrize("first", ["closed at once", "closed in between", "closed late"])
@pytest.mark.parametrize("broker", BROKERS)
def test_closed_with_many_calls_in_flight(
    first: str, broker: str, make_app: MakeApp, request: pytest.FixtureRequest
) -> None:
    app = make_app(broker=request.getfixturevalue(BROKERS[broker]))
    add = app.tasks["tasks.add"]

    async def main() -> list[Any]:
        client = AsyncDelayQ(app)
        await client.apply_async(add, (0, 0))
        calls = [
            asyncio.ensure_future(client.apply_async(add, (n, n), countdown=60 * (n % 2)))
            for n in range(200)
        ]
        if first == "closed in between":
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        elif first == "closed late":
            await asyncio.wait(calls[:150])
        await client.close()
        found = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), TIMEOUT)
        await client.apply_async(add, (0, 0))
        await client.close()
        return found

    found = asyncio.run(main())

    for each in found:
        check(each)
    if first == "closed in between" and broker == "redis":
        failed = [isinstance(each, BrokerUnavailable) for each in found]
        assert {*failed} == {True, False}  # elsewhere calls run in threads, to their end
