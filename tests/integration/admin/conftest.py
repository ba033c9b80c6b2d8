"""A store without an app, for what ``fsck`` finds, and the app of a shop on stock Celery."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from celery import Celery
from redis import Redis

from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.schedule import Store
from celery_delayq.testing import WorkerProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp


@pytest.fixture
def redis(delayq_redis: RedisUnderTest) -> Redis:
    return delayq_redis.client


@pytest.fixture
def store(redis: Redis) -> Store:
    return Store(redis, Keys(), Layout())


@pytest.fixture
def stock(make_app: MakeApp, delayq_redis: RedisUnderTest) -> Celery:
    """The app before: stock broker, no extension."""
    return make_app(extension=False, broker=delayq_redis.url)


@pytest.fixture
def start_stock(
    delayq_redis: RedisUnderTest, delayq_worker: Callable[..., WorkerProcess]
) -> Callable[..., WorkerProcess]:
    """Start a worker of stock Celery."""
    return partial(
        delayq_worker, "tests.apps.stock_tasks:app", pool="solo", broker_url=delayq_redis.url
    )
