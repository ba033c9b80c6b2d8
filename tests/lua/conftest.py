"""Fixtures of the tests of scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.fixtures import RedisUnderTest, new_server
from tests.lua.bench import Bench, bench


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all of these on each server: scripts depend on it."""
    item.add_marker(pytest.mark.each_server)


@pytest.fixture(scope="session")
def delayq_redis_server() -> Iterator[EmbeddedRedis]:
    """A server for these tests alone.

    They compare all that is in it, and a lease keeper of another test may still renew its name.
    """
    with new_server() as server:
        yield server


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    return bench(delayq_redis)
