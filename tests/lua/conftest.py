"""Fixtures of the tests of scripts."""

from __future__ import annotations

import pytest

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import Bench, bench


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all of these on each server: scripts depend on it."""
    item.add_marker(pytest.mark.each_server)


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    return bench(delayq_redis)
