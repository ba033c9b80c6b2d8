"""What workers do on every broker of ours; where a broker differs, `Broker` and the tests say so.

Results, notes and gates of tasks are in Redis, whatever the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import (
    _warm_workers,
    app,
    delayq,
    leases,
    make_app,
    module_app,
    nursery,
    redis,
)
from tests.support.brokers import Broker, OnRabbitMQ, OnRedis
from tests.support.scene import AppScene, StartWorker

if TYPE_CHECKING:
    from tests.apps.retry_tasks import RetryScene

__all__ = ["_warm_workers", "app", "delayq", "leases", "make_app", "nursery", "redis"]


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, delayq_redis: RedisUnderTest) -> Broker:
    """An empty broker."""
    if request.param == "redis":
        return OnRedis(delayq_redis.server.url_for("delayq+redis"))
    url = request.getfixturevalue("delayq_rabbitmq")
    return OnRabbitMQ(request.getfixturevalue("delayq_rabbitmq_server"), url)


@pytest.fixture
def delayq_broker_url(broker: Broker) -> str:
    return broker.url


@pytest.fixture
def scene(
    broker: Broker, app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> RetryScene:
    """Tasks that are tried again, and their workers."""
    from tests.apps.retry_tasks import RetryScene, tasks_of

    return broker.show(RetryScene(delayq_redis, tasks_of(app), delayq_worker))


class Delayed(AppScene):
    """Starts workers of the tasks, and shows their runs."""

    module, pool, prefetch = "delayq_tasks", "solo", 4


@pytest.fixture
def tasks(broker: Broker, delayq_redis: RedisUnderTest) -> Iterator[Any]:
    """The module of tasks, whose app uses the broker of this test."""
    from tests.apps import delayq_tasks

    with module_app(delayq_tasks.app, delayq_redis, broker.url):
        yield delayq_tasks


@pytest.fixture
def delayed(
    broker: Broker, tasks: Any, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> Delayed:
    """The workers of those tasks."""
    return broker.show(Delayed(delayq_redis, tasks.app, delayq_worker))
