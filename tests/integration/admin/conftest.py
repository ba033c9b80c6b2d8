"""Workers of a shop on stock Celery, and clients of versions of an app whose tasks are renamed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from celery_delayq import DelayQ
from celery_delayq.testing import WorkerProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.renamed_tasks import extend
from tests.integration.conftest import MakeApp

Version = Callable[[str], DelayQ]


@pytest.fixture
def start_stock(
    delayq_redis: RedisUnderTest, delayq_worker: Callable[..., WorkerProcess]
) -> Callable[..., WorkerProcess]:
    """Start a worker of stock Celery."""
    return partial(
        delayq_worker, "tests.apps.stock_tasks:app", pool="solo", broker_url=delayq_redis.url
    )


@pytest.fixture
def client(make_app: MakeApp) -> Version:
    """Make a client of a version of the code."""

    def make(version: str) -> DelayQ:
        app = make_app(extension=False)
        app.conf.accept_content = ["json", "yaml", "msgpack", "pickle"]
        return extend(app, version)

    return make
