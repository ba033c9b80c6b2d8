"""What every pool and every combination of versions does, from a cancellation to a ``kill -9``."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import POOLS
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.control_tasks import TIMEOUT, Scene, StartWorker, start, tasks_of
from tests.integration.conftest import MakeApp

# Celery's result backend, with the newest redis-py.
pytestmark = [
    pytest.mark.conformance,
]

LEASE = {"lease": 1}


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> Scene:
    return Scene(delayq_redis)


@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_workers_task_runs_again_and_what_is_scheduled_is_controlled(
    pool: str, app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    delayq = DelayQ.of(app)
    doomed = start(delayq_worker, pool, delayq=LEASE)
    running = app.tasks["work"].apply_async(("running", "", "gate"))
    scene.wait_runs(1)
    cancelled = app.tasks["work"].apply_async(("cancelled",), countdown=600)
    unique = app.tasks["keep.scheduled"].apply_async(("unique",), countdown=600)
    moved = app.tasks["work"].apply_async(("moved", "retry"), countdown=600)

    assert app.tasks["keep.scheduled"].apply_async(("unique",), countdown=600).id == unique.id
    assert delayq.cancel(cancelled.id)
    doomed.kill()
    scene.open("gate")
    assert delayq.reschedule(moved.id, countdown=0.2)
    assert delayq.run_now(unique.id)
    start(delayq_worker, pool, delayq=LEASE)

    results = [running, unique, moved]
    assert [each.get(timeout=TIMEOUT) for each in results] == ["running", "unique", "moved"]
    scene.wait_empty()
    assert sorted(scene.runs("key", "deliveries", "retries")) == [
        ("moved", 1, 0),
        ("moved", 1, 1),
        ("running", 1, 0),
        ("running", 2, 0),
        ("unique", 1, 0),
    ]
