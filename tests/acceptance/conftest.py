"""A client beside the workers of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from celery import Celery
from kombu import pools

from celery_delayq import DelayQ
from celery_delayq.testing.fixtures import RedisUnderTest

MakeClient = Callable[..., Celery]


@pytest.fixture
def make_client(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[MakeClient]:
    """Make apps without tasks, closed after the test."""
    with ExitStack() as stack:

        def make(
            broker: str = delayq_broker_url,
            backend: str = delayq_redis.url,
            at_least_once: bool = False,
        ) -> Celery:
            app = Celery("shop", broker=broker, backend=backend, set_as_current=False)
            stack.enter_context(app)
            stack.enter_context(DelayQ(app, at_least_once=at_least_once))
            return app

        yield make
    pools.reset()


@pytest.fixture
def app(make_client: MakeClient) -> Celery:
    return make_client()
