"""Apps for the workers of a test, and the stage of the fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from celery_delayq.testing import ManagedProcess
from tests.integration.conftest import app, fork_server, make_app
from tests.support.faults.checker import Verdict
from tests.support.faults.cluster import ClusterStage
from tests.support.faults.rabbitmq import RabbitMQStage
from tests.support.faults.scale import SEED
from tests.support.faults.stage import MakeStage, Passes, Stage
from tests.support.warm import ForkServers, spawning

__all__ = ["app", "fork_server", "make_app"]


@pytest.fixture
def warm_workers(fork_server: ForkServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers start quickly: fault tests start many. Other tests start them as users do."""
    monkeypatch.setattr(ManagedProcess, "_spawn", spawning(fork_server))


@pytest.fixture
def make_stage(
    tmp_path: Path, request: pytest.FixtureRequest, warm_workers: None
) -> Iterator[MakeStage]:
    """Make stages of the test on one of the brokers; takes the options of `Stage`.

    On RabbitMQ, options are those of `EmbeddedRabbitMQ`. Without options, the node of the whole run
    is used.
    """

    def make(broker: str = "redis", **options: Any) -> Stage:
        if broker == "redis":
            return stages.enter_context(Stage(tmp_path, **options))
        if broker == "cluster":
            return stages.enter_context(ClusterStage(tmp_path, **options))
        server = None if options else request.getfixturevalue("delayq_rabbitmq_server")
        return stages.enter_context(RabbitMQStage(tmp_path, server, **options))

    with ExitStack() as stages:
        yield make


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage with a lease of two seconds."""
    return make_stage()


@pytest.fixture
def passes(record_property: Callable[[str, object], None]) -> Passes:
    """Assert that a verdict has no violation, and keep it for the table of the soak."""

    def check(verdict: Verdict) -> None:
        counts: dict[str, Any] = {**verdict.counts, "notes": verdict.notes}
        record_property("verdict", counts)
        report = f"seed {SEED}: {verdict.report()}"
        print(report)
        assert not verdict.violations, report

    return check
