"""A store on an empty Redis, and an easy way to make entries."""

from __future__ import annotations

import pytest

from celery_delayq.keys import Keys, Layout
from celery_delayq.message import Due, Entry, Record
from celery_delayq.store import Store
from celery_delayq.testing.fixtures import RedisUnderTest

QUEUE = "q"


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Store:
    return Store(delayq_redis.client, Keys(), Layout())


def entry(
    id: str = "a",
    due_ms: int = 0,
    *,
    relative: bool = False,
    priority: int = 0,
    nonce: str | None = None,
    task: str = "tasks.t",
    message: bytes | None = None,
) -> Entry:
    """Return an entry whose message names its id."""
    body = message if message is not None else b'{"id": "%s"}' % id.encode()
    record = Record(priority, nonce or f"n-{id}", task, body)
    return Entry(id, Due(due_ms, relative), priority, record.pack())
