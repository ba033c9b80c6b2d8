"""``wait_replicas``: a publish returns when so many replicas have it, or says that they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import NotReplicated
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, batch

OPTIONS = {"wait_replicas": 1, "wait_timeout": 0.1}


def replicated(make_app: MakeApp, **options: Any) -> Celery:
    return make_app(broker_transport_options={"delayq": {**OPTIONS, **options}})


@pytest.fixture
def replica(
    delayq_redis: RedisUnderTest, delayq_redis_factory: Callable[..., EmbeddedRedis]
) -> EmbeddedRedis:
    """A server that follows the one of this test, and has caught up."""
    server = delayq_redis_factory(options={"replicaof": f"127.0.0.1 {delayq_redis.port}"})

    def caught_up() -> bool:
        slave = delayq_redis.client.info("replication").get("slave0")
        return bool(slave) and slave["state"] == "online"

    wait_until(caught_up, what="the replica follows")
    return server


@pytest.mark.parametrize("countdown", [None, 60])
def test_without_a_replica_a_publish_says_so_and_the_task_is_stored_once(
    countdown: float | None, make_app: MakeApp, redis: Redis
) -> None:
    app = replicated(make_app)

    with pytest.raises(NotReplicated, match="stored, but 0 of 1 replicas have it") as caught:
        app.send_task("tasks.add", (1, 2), countdown=countdown)

    assert isinstance(caught.value, OperationalError)
    assert DelayQ.of(app).count() == (countdown is not None)
    assert redis.llen("celery") == (countdown is None)


def test_with_a_replica_a_publish_and_a_batch_return_when_it_is_there(
    make_app: MakeApp, replica: EmbeddedRedis
) -> None:
    app = replicated(make_app, wait_timeout=30)
    with replica.client() as there:
        for n in range(1, 6):
            app.send_task("tasks.add", (n, n))
            app.send_task("tasks.add", (n, n), countdown=60)
            assert (there.llen("celery"), there.zcard("{celery}:due")) == (n, n)
        send_batch(app, 100)
        assert (there.llen("celery"), there.zcard("{celery}:due")) == (105, 105)


def test_more_replicas_than_there_are_is_an_error(
    make_app: MakeApp, replica: EmbeddedRedis
) -> None:
    app = replicated(make_app, wait_replicas=2)

    with pytest.raises(NotReplicated, match=r"[01] of 2 replicas"):
        app.send_task("tasks.add", (1, 2))


def send_batch(app: Celery, number: int) -> None:
    """Send *number* tasks at once and as many later, in one batch."""
    with batch(app) as producer:
        for n in range(number):
            app.send_task("tasks.add", (n, n), producer=producer)
            app.send_task("tasks.add", (n, n), countdown=60, producer=producer)


def test_without_a_replica_a_batch_says_so(make_app: MakeApp, redis: Redis) -> None:
    app = replicated(make_app)

    with pytest.raises(OperationalError, match="0 of 1 replicas"):
        send_batch(app, 3)

    assert DelayQ.of(app).count() == 3
    assert redis.llen("celery") == 3
