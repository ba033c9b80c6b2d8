"""Delayed tasks on real workers of every pool, on RabbitMQ."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.testing import POOLS
from tests.integration.transport.amqp.conftest import Delayed
from tests.support.kinds import RUNS, assert_all_kinds_run, assert_not_early


@pytest.mark.parametrize("pool", POOLS)
def test_delayed_tasks_of_all_kinds(scene: Delayed, tasks: Any, pool: str) -> None:
    scene.start(pool)

    assert_all_kinds_run(tasks)

    scene.wait_runs(RUNS)
    done = scene.read()
    assert len(done) == RUNS, sorted(run["task"] for run in done)
    delayed = [run for run in done if run["eta"]]
    assert len(delayed) >= 18
    for run in delayed:
        assert_not_early(run)
    assert [run["retries"] for run in done if run["task"] == "flaky"] == [0, 1, 2]
