"""The client for asyncio over TLS, by a Unix socket, by Sentinel, on a cluster, and on RabbitMQ."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery, chain
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import BrokerUnavailable, NotSupported
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.aio.conftest import run
from tests.integration.conftest import MakeApp, NewRabbitMQ, stored
from tests.integration.transport.test_sentinel import NAMED, Servers, Watched, watched
from tests.integration.transport.test_tls import SecureRedis, secure_redis
from tests.support import TIMEOUT
from tests.support.cluster import Cluster

__all__ = ["secure_redis", "watched"]  # fixtures


def check(app: Celery, redis: Redis) -> None:
    """Send, find and cancel many tasks at once, a large one too."""
    add = app.tasks["tasks.add"]

    async def one(client: AsyncDelayQ, n: int) -> tuple[bool, Any]:
        sent = await client.apply_async(add, (n, "x" * 300_000 * (n == 0)), countdown=60)
        found = await client.get(sent.id)
        return found is not None, await client.cancel(sent.id) if n % 2 else None

    async def use(client: AsyncDelayQ) -> Any:
        return await asyncio.gather(*(one(client, n) for n in range(60)))

    app.conf.task_ignore_result = True
    found = run(DelayQ.of(app), use)

    assert found == [(True, Outcome.DONE if n % 2 else None) for n in range(60)]
    assert len(stored(redis)) == 30


def test_tls(secure_redis: SecureRedis, make_app: MakeApp) -> None:
    check(make_app(broker=secure_redis.url("delayq+rediss")), secure_redis.client)


def test_a_unix_socket_with_a_password(delayq_redis_factory: Servers, make_app: MakeApp) -> None:
    server = delayq_redis_factory(password="p@ss/s3cret", unix_socket=True)
    with server.client(db=2) as client:
        check(make_app(broker=server.socket_url("delayq+redis+socket", database=2)), client)


def test_sentinel(watched: Watched, make_app: MakeApp) -> None:
    with watched.master.client(db=2) as client:
        check(make_app(broker=watched.url(), **NAMED), client)


@pytest.mark.full
def test_a_failover_by_sentinel(watched: Watched, make_app: MakeApp) -> None:
    app = make_app(broker=watched.url(), **NAMED)

    async def use(client: AsyncDelayQ) -> None:
        await client.apply_async(app.tasks["tasks.add"], (1, 2), countdown=60, task_id="before")
        sentinel = watched.sentinels[0]
        await asyncio.to_thread(sentinel.fail_over)
        await asyncio.to_thread(
            wait_until,
            lambda: sentinel.master_port() == watched.replica.port,
            TIMEOUT,
            "the failover",
        )
        add = app.tasks["tasks.add"]
        with watched.replica.client(db=2) as new_master:
            # The old one takes what comes before it learns that it is none any more.
            while "after" not in {each["headers"]["id"] for each in stored(new_master)}:
                with suppress(BrokerUnavailable):
                    await client.apply_async(add, (1, 2), countdown=60, task_id="after")
                await asyncio.sleep(0.1)
            assert (await client.get("after")) is not None

    run(DelayQ.of(app), use)


@pytest.mark.full
def test_a_cluster_is_used_in_threads(
    delayq_redis_factory: Servers, make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    """Queues of several hash tags, with results in a single Redis."""
    cluster = Cluster.start(delayq_redis_factory)
    urls = (f"delayq+rediscluster://{host}:{port}" for host, port in cluster.addresses)
    app = make_app(broker=";".join(urls), backend=delayq_redis.url)
    add, queues = app.tasks["tasks.add"], [f"mail.{n}" for n in range(12)]

    async def one(client: AsyncDelayQ, queue: str) -> tuple[bool, Outcome]:
        sent = await client.apply_async(add, (1, 2), countdown=60, queue=queue)
        found = await client.get(sent.id, queue=queue)
        return found is not None, await client.cancel(sent.id, queue=queue)

    async def use(client: AsyncDelayQ) -> tuple[Any, int]:
        done = await asyncio.gather(*(one(client, queue) for queue in queues))
        await asyncio.gather(
            *(client.apply_async(add, (1, 2), countdown=60, queue=queue) for queue in queues)
        )
        return done, await client.count()

    assert run(DelayQ.of(app), use) == ([(True, Outcome.DONE)] * 12, 12)


def test_rabbitmq_publishes_in_threads_and_refuses_what_it_cannot(
    new_rabbitmq: NewRabbitMQ,
) -> None:
    scene = new_rabbitmq()

    async def use(client: AsyncDelayQ) -> None:
        sent = (client.apply_async("shop.work", (n,), task_id=f"id-{n}") for n in range(50))
        await asyncio.gather(*sent)
        later = scene.app.signature("shop.work", ("later",)).set(task_id="later", countdown=0.2)
        await client.apply_async(later)
        await client.apply_async(chain(scene.app.signature("shop.work", task_id="chain")))
        report = await client.schedule_many([{"id": "many", "task": "shop.work", "countdown": 0.2}])
        assert sum(report.counts.values()) == 1
        assert await client.count_dead() == 0
        for call in (client.get("id-1"), client.cancel("id-1"), client.count()):
            with pytest.raises(NotSupported):
                await call

    run(DelayQ.of(scene.app), use)

    ids = {*(f"id-{n}" for n in range(50)), "later", "chain", "many"}
    assert scene.receive("orders", len(ids)).keys() == ids
