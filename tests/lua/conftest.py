"""Fixtures of the tests of scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.servers import new_server
from tests.lua.bench import Bench, bench


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all tests of scripts on each server: scripts depend on the server."""
    item.add_marker(pytest.mark.each_server)


@pytest.fixture(scope="session")
def delayq_redis_server() -> Iterator[EmbeddedRedis]:
    """A server for these tests alone.

    The tests compare all keys, and a lease keeper of another test may still renew its name.
    """
    with new_server() as server:
        yield server


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    return bench(delayq_redis)
