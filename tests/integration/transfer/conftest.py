"""Places to export to, and a second server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from tests.integration.conftest import MakeApp
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["export.jsonl", "export.jsonl.gz", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where to export to."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/export.db"
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.new_database()
    return str(tmp_path / request.param)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


@pytest.fixture
def other(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A second server."""
    return delayq_redis_factory()


@pytest.fixture
def elsewhere(make_app: MakeApp, other: EmbeddedRedis) -> DelayQ:
    """The object of an app on the second server."""
    return DelayQ.of(make_app(broker=other.url_for("delayq+redis")))
