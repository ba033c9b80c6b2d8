"""Results are awaited: from Redis without polling and threads, from other stores by polling."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import states
from celery.exceptions import TimeoutError
from celery.result import AsyncResult, GroupResult
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ, results
from celery_delayq.errors import (
    BrokerUnavailable,
    ConfigError,
    InvalidFilter,
    InvalidOption,
    NotSupported,
)
from tests.integration.aio.conftest import run, until
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT


def store(delayq: DelayQ, id: str, value: Any, state: str = states.SUCCESS) -> Any:
    """Store a result as a worker does, in another thread."""
    return asyncio.to_thread(delayq.app.backend.store_result, id, value, state)


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "POLL_SECONDS", 3600)


@pytest.mark.usefixtures("no_polling")
def test_results_are_awaited_before_and_after_they_are_there(delayq: DelayQ, redis: Redis) -> None:
    async def use(client: AsyncDelayQ) -> Any:
        await store(delayq, "early", [1])
        early = await client.result("early", timeout=TIMEOUT)
        threads = threading.active_count()
        waiting = [asyncio.ensure_future(client.result(f"id-{n}")) for n in range(200)]
        twice = asyncio.ensure_future(client.result(AsyncResult("id-7", app=delayq.app)))
        await until(lambda: len(redis.pubsub_channels("celery-task-meta-id-*")) == 200)
        assert threading.active_count() <= threads + 1  # one that connects
        for n in range(200):
            await store(delayq, f"id-{n}", n)
        return early, await asyncio.gather(*waiting), await twice

    assert run(delayq, use) == ([1], [*range(200)], 7)


def test_an_error_is_raised_and_a_timeout_is_celerys(delayq: DelayQ) -> None:
    async def use(client: AsyncDelayQ) -> None:
        await store(delayq, "bad", ValueError("no"), states.FAILURE)
        with pytest.raises(ValueError, match="no"):
            await client.result("bad")
        with pytest.raises(TimeoutError):
            await client.result("never", timeout=0.05)

    run(delayq, use)


def test_groups_and_chains(delayq: DelayQ) -> None:
    app = delayq.app
    group = GroupResult("group", [AsyncResult(f"id-{n}", app=app) for n in range(3)], app=app)
    chain = AsyncResult("last", app=app, parent=AsyncResult("first", app=app))

    async def use(client: AsyncDelayQ) -> Any:
        for n in range(3):
            await store(delayq, f"id-{n}", n)
        await store(delayq, "first", KeyError("first"), states.FAILURE)
        with pytest.raises(KeyError):
            await client.result(chain, timeout=TIMEOUT)
        return await client.result(group)

    assert run(delayq, use) == [0, 1, 2]


def test_a_lost_notification_costs_one_poll(
    delayq: DelayQ, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "POLL_SECONDS", 0.1)
    meta = {"status": "SUCCESS", "result": 3, "traceback": None, "children": []}

    async def use(client: AsyncDelayQ) -> Any:
        waiting = asyncio.ensure_future(client.result("one"))
        await until(lambda: redis.pubsub_channels("celery-task-meta-one"))
        # As one whose notification is lost: not published.
        encoded = delayq.app.backend.encode({**meta, "task_id": "one"})
        redis.set("celery-task-meta-one", encoded)
        return await asyncio.wait_for(waiting, TIMEOUT)

    assert run(delayq, use) == 3


def test_closing_ends_waiting(
    delayq: DelayQ, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "POLL_SECONDS", 0.1)

    async def use(client: AsyncDelayQ) -> None:
        waiting = asyncio.ensure_future(client.result("one"))
        await until(lambda: redis.pubsub_channels("celery-task-meta-one"))
        await client.close()
        with pytest.raises(BrokerUnavailable):
            await waiting

    run(delayq, use)


def test_what_is_no_id_or_no_time_is_refused(delayq: DelayQ) -> None:
    async def use(client: AsyncDelayQ) -> None:
        for id in (None, 7, [1]):
            with pytest.raises(InvalidFilter, match="id="):
                await client.result(id)
        for timeout in (float("nan"), "1"):
            with pytest.raises(InvalidOption, match="timeout="):
                await client.result("one", timeout=timeout)  # type: ignore[arg-type]

    run(delayq, use)


def test_another_backend_is_polled(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    app.conf.result_backend = f"file://{tmp_path}"
    delayq = DelayQ.of(app)

    async def use(client: AsyncDelayQ) -> Any:
        waiting = asyncio.ensure_future(client.result("one"))
        await store(delayq, "one", 3)
        return await waiting

    assert run(delayq, use) == 3


def test_an_app_without_a_result_backend_is_an_error(make_app: MakeApp) -> None:
    app = make_app()
    app.conf.result_backend = None

    async def use(client: AsyncDelayQ) -> None:
        for given in ("one", GroupResult("group", [AsyncResult("one", app=app)], app=app)):
            with pytest.raises(ConfigError, match="result_backend is not set"):
                await client.result(given)

    run(DelayQ.of(app), use)


def test_rpc_is_not_supported(make_app: MakeApp) -> None:
    app = make_app()
    app.conf.result_backend = "rpc://"

    async def use(client: AsyncDelayQ) -> None:
        with pytest.raises(NotSupported, match="rpc"):
            await client.result("one")

    run(DelayQ.of(app), use)
