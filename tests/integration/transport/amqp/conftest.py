"""The tests of this folder run on RabbitMQ; results are in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import module_app
from tests.support.scene import AppScene, StartWorker


@pytest.fixture
def delayq_broker_url(delayq_rabbitmq: str) -> str:
    """URL of an empty virtual host."""
    return delayq_rabbitmq


@pytest.fixture
def tasks(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[Any]:
    """The module of tasks, whose app uses the broker of this test."""
    from tests.apps import delayq_tasks

    with module_app(delayq_tasks.app, delayq_redis, delayq_broker_url):
        yield delayq_tasks


class Delayed(AppScene):
    """Starts workers of the tasks, and shows their runs."""

    module, pool, prefetch = "delayq_tasks", "solo", 4


@pytest.fixture
def scene(tasks: Any, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> Delayed:
    return Delayed(delayq_redis, tasks.app, delayq_worker)
