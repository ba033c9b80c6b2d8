"""What every pool and every combination of versions does, from a cancellation to a ``kill -9``."""

from __future__ import annotations

import pytest

from celery_delayq.testing import POOLS, wait_until
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.scene import Control

pytestmark = pytest.mark.conformance

LEASE = {"lease": SHORT_LEASE}


@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_workers_task_runs_again_and_what_is_scheduled_is_controlled(
    pool: str, control: Control
) -> None:
    delayq = control.delayq
    doomed = control.start(pool, delayq=LEASE)
    running = control.tasks["work"].apply_async(("running", "", "gate"))
    control.wait_runs(1)
    cancelled = control.tasks["work"].apply_async(("cancelled",), countdown=600)
    unique = control.tasks["keep.scheduled"].apply_async(("unique",), countdown=600)
    moved = control.tasks["work"].apply_async(("moved", "retry"), countdown=600)

    assert control.tasks["keep.scheduled"].apply_async(("unique",), countdown=600).id == unique.id
    assert delayq.cancel(cancelled.id)
    doomed.kill()
    control.open("gate")
    assert delayq.reschedule(moved.id, countdown=0.2)
    assert delayq.run_now(unique.id)
    control.start(pool, delayq=LEASE)
    wait_until(lambda: moved.state == "RETRY", TIMEOUT, "its retry waits")
    assert delayq.run_now(moved.id)

    results = [running, unique, moved]
    assert [each.get(timeout=TIMEOUT) for each in results] == ["running", "unique", "moved"]
    control.wait_empty()
    assert sorted(control.runs("key", "deliveries", "retries")) == [
        ("moved", 1, 0),
        ("moved", 1, 1),
        ("running", 1, 0),
        ("running", 2, 0),
        ("unique", 1, 0),
    ]
