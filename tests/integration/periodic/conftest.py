"""Apps with the task ``note``, and what its ticks wrote down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.apps.periodic_tasks import Diary, tasks_of
from tests.integration.conftest import MakeApp

MakeShop = Callable[..., Celery]


@pytest.fixture
def make_shop(make_app: MakeApp, delayq_redis: RedisUnderTest) -> MakeShop:
    """Make apps that have the given periodic entries in their code."""

    def make(name: str = "shop", zone: str = "UTC", /, **in_code: Any) -> Celery:
        app = make_app(timezone=zone, beat_schedule=in_code, redbeat_redis_url=delayq_redis.url)
        app.main = name
        return tasks_of(app)

    return make


@pytest.fixture
def app(make_shop: MakeShop) -> Celery:
    return make_shop()


@pytest.fixture
def travel(app: Celery, delayq_redis: RedisUnderTest) -> Iterator[TimeTravel]:
    """Fires the entries of the app, and runs their ticks, in the test."""
    with TimeTravel(app, delayq_redis.server) as travel:
        yield travel


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where celery beat keeps its entries."""
    return tmp_path / "celerybeat-schedule"


@pytest.fixture
def diary(delayq_redis: RedisUnderTest) -> Diary:
    return Diary(delayq_redis)
