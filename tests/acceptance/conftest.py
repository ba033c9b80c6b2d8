"""A client beside the workers of a test, and the stage of the fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import pools

from celery_delayq import DelayQ
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.faults.checker import Verdict
from tests.support.faults.scale import SEED
from tests.support.faults.stage import MakeStage, Passes, Stage

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


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    """Make stages of the test's own; takes the options of `Stage`."""
    with ExitStack() as stages:
        yield lambda **options: stages.enter_context(Stage(tmp_path, **options))


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage with a lease of two seconds."""
    return make_stage()


@pytest.fixture
def passes(record_property: Callable[[str, object], None]) -> Passes:
    """Assert that a verdict tells no violation, and keep it for the table of the soak."""

    def check(verdict: Verdict) -> None:
        counts: dict[str, Any] = {**verdict.counts, "notes": verdict.notes}
        record_property("verdict", counts)
        report = f"seed {SEED}: {verdict.report()}"
        print(report)
        assert not verdict.violations, report

    return check
