"""Workers of a shop on stock Celery."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from celery_delayq.testing import WorkerProcess
from celery_delayq.testing.fixtures import RedisUnderTest


@pytest.fixture
def start_stock(
    delayq_redis: RedisUnderTest, delayq_worker: Callable[..., WorkerProcess]
) -> Callable[..., WorkerProcess]:
    """Start a worker of stock Celery."""
    return partial(
        delayq_worker, "tests.apps.stock_tasks:app", pool="solo", broker_url=delayq_redis.url
    )
