"""Unique keys of tasks that run, are retried, fail, die: who has the key, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.errors import UniqueConflict
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.control_tasks import TIMEOUT, Scene, StartWorker, start, tasks_of
from tests.integration.conftest import MakeApp

#: When a task is acknowledged.
LATE, EARLY = True, False
ACKS = pytest.mark.parametrize("late", [LATE, EARLY], ids=["late ack", "early ack"])
LEASE = {"lease": 1}


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> Scene:
    return Scene(delayq_redis)


def wait_retry(scene: Scene, result: AsyncResult) -> None:
    """Wait until the retry of a task is all that is scheduled, and its first run is over."""
    waits = [(result.id, 1)]
    wait_until(
        lambda: scene.scheduled() == waits and not scene.held() and result.state == "RETRY",
        TIMEOUT,
        lambda: f"its retry waits: {result.state}, {scene.left()}",
    )


# -- retries


@pytest.mark.parametrize(
    ("do", "scope", "late"),
    [
        ("retry", "scheduled", LATE),
        ("autoretry", "done", LATE),
        ("retry", "done", EARLY),
        ("autoretry", "scheduled", EARLY),
    ],
)
def test_a_retry_keeps_the_key(
    app: Celery, scene: Scene, delayq_worker: StartWorker, do: str, scope: str, late: bool
) -> None:
    start(delayq_worker, conf={"at_least_once": late})
    task = app.tasks[f"keep.{scope}"]
    first = task.apply_async(("k", do), countdown=0.1)
    wait_retry(scene, first)

    assert scene.owners() == {"k": first.id}
    assert task.delay("k").id == first.id
    with pytest.raises(UniqueConflict):
        task.apply_async(("k",), on_conflict="error")

    assert first.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert scene.runs("id", "retries") == [(first.id, 0), (first.id, 1)]


@pytest.mark.parametrize(
    ("policy", "scope", "late"),
    [
        ("replace", "scheduled", LATE),
        ("later", "done", LATE),
        ("replace", "done", EARLY),
        ("later", "scheduled", EARLY),
    ],
)
def test_a_retry_that_waits_is_replaced(
    app: Celery, scene: Scene, delayq_worker: StartWorker, policy: str, scope: str, late: bool
) -> None:
    """The attempts of what takes its place begin anew."""
    start(delayq_worker, conf={"at_least_once": late})
    task = app.tasks[f"{policy}.{scope}"]
    first = task.delay("k", "autoretry")
    wait_retry(scene, first)

    second = task.apply_async(("k",), countdown=0.1)

    assert scene.scheduled() == [(second.id, 0)]
    assert second.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert first.state == "REVOKED"
    assert scene.runs("id", "retries") == [(first.id, 0), (second.id, 0)]


@pytest.mark.parametrize(
    ("do", "scope", "late"),
    [
        ("", "scheduled", LATE),
        ("", "done", EARLY),
        ("retry", "done", LATE),
        ("retry", "scheduled", EARLY),
        ("autoretry", "scheduled", LATE),
        ("autoretry", "done", EARLY),
    ],
)
def test_what_replaces_a_running_task_stays_after_its_end_and_its_retry(
    app: Celery, scene: Scene, delayq_worker: StartWorker, do: str, scope: str, late: bool
) -> None:
    start(delayq_worker, conf={"at_least_once": late})
    task = app.tasks[f"replace.{scope}"]
    first = task.delay("k", do, "gate")
    scene.wait_runs(1)
    second = task.apply_async(("k",), countdown=60)
    assert scene.owners() == {"k": second.id}

    scene.open("gate")
    wait_until(lambda: not scene.held(), TIMEOUT, "the first one is done")
    barrier = app.tasks["other"].delay("barrier")
    assert barrier.get(timeout=TIMEOUT) == "barrier"

    # A retry of the first one is none any more.
    assert scene.scheduled() == [(second.id, 0)]
    assert scene.owners() == {"k": second.id}
    assert DelayQ.of(app).run_now(second.id)
    assert second.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    runs = [(first.id, 0), (barrier.id, 0), (second.id, 0)]
    assert scene.runs("id", "retries") == runs
    if not do:
        assert first.get(timeout=TIMEOUT) == "k"


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(LATE, id="late ack"),
        pytest.param(EARLY, id="early ack"),
    ],
)
def test_a_task_whose_retry_is_superseded_is_not_waited_for(
    app: Celery, scene: Scene, delayq_worker: StartWorker, late: bool
) -> None:
    start(delayq_worker, conf={"at_least_once": late})
    task = app.tasks["replace.scheduled"]
    first = task.delay("k", "retry", "gate")
    scene.wait_runs(1)
    task.apply_async(("k",), countdown=60)
    scene.open("gate")

    with pytest.raises(TaskRevokedError):
        first.get(timeout=4)


@ACKS
@pytest.mark.parametrize("policy", ["keep", "error"])
def test_a_retry_runs_without_the_key_when_another_has_it(
    app: Celery, scene: Scene, delayq_worker: StartWorker, policy: str, late: bool
) -> None:
    """With scope scheduled, another one may wait while it runs."""
    start(delayq_worker, conf={"at_least_once": late})
    task = app.tasks[f"{policy}.scheduled"]
    first = task.delay("k", "retry", "gate")
    scene.wait_runs(1)
    second = task.apply_async(("k",), countdown=60)
    assert second.id != first.id
    scene.open("gate")

    assert first.get(timeout=TIMEOUT) == "k"

    assert scene.owners() == {"k": second.id}
    assert scene.scheduled() == [(second.id, 0)]
    assert scene.runs("id", "retries") == [(first.id, 0), (first.id, 1)]


# -- scope done


def call(app: Celery, *args: Any) -> Any:
    return app.tasks["keep.done"].delay("k", *args)


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_the_key_is_taken_while_a_task_runs_and_free_after_that(
    app: Celery, scene: Scene, delayq_worker: StartWorker, pool: str
) -> None:
    start(delayq_worker, pool, concurrency=2)
    first = call(app, "", "gate")
    scene.wait_runs(1)

    second = call(app)
    assert second.id == first.id
    assert scene.ready() == []
    scene.open("gate")
    assert second.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()

    third = call(app)
    assert third.id != first.id
    assert third.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert scene.runs("id") == [first.id, third.id]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("do", ["fail", "reject"])
def test_the_key_is_free_after_a_failure(
    app: Celery, scene: Scene, delayq_worker: StartWorker, do: str, pool: str
) -> None:
    start(delayq_worker, pool)
    first = call(app, do, "gate")
    scene.wait_runs(1)
    assert call(app).id == first.id
    scene.open("gate")
    scene.wait_empty()

    second = call(app)
    assert second.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert scene.runs("id") == [first.id, second.id]
    dead = [dead_letter.id for dead_letter in DelayQ.of(app).store.dead_letters.all("celery")]
    assert dead == [first.id]


def test_the_key_stays_with_a_task_whose_worker_was_killed(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    doomed = start(delayq_worker, delayq=LEASE)
    first = call(app, "", "gate")
    scene.wait_runs(1)
    doomed.kill()
    assert call(app).id == first.id

    start(delayq_worker, delayq=LEASE)
    scene.wait_runs(2)
    assert call(app).id == first.id
    scene.open("gate")
    assert first.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert call(app).id != first.id
    assert scene.runs("id", "deliveries")[:2] == [(first.id, 1), (first.id, 2)]


def test_a_child_that_dies_once_has_its_task_run_again_with_the_key(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker)
    first = call(app, "die once")
    assert first.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert scene.runs("id", "deliveries") == [(first.id, 1), (first.id, 2)]


def test_the_key_is_free_when_a_task_is_dead_for_killing_its_processes(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, delayq={"max_deliveries": 1})
    first = call(app, "die")
    wait_until(
        lambda: [each.id for each in DelayQ.of(app).store.dead_letters.all("celery")],
        TIMEOUT,
        "it is dead",
    )
    scene.wait_empty()

    second = call(app)
    assert second.id != first.id
    assert second.get(timeout=TIMEOUT) == "k"


def test_with_early_acknowledgement_the_key_is_free_once_it_runs(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    """Nothing is known of it any more: were it to be killed, nobody would free the key."""
    start(delayq_worker, conf={"at_least_once": False})
    first = call(app, "", "gate")
    scene.wait_runs(1)
    wait_until(lambda: not scene.left(), TIMEOUT, "it is acknowledged")
    second = call(app)
    assert second.id != first.id
    scene.open("gate")
    assert second.get(timeout=TIMEOUT) == "k"


def test_a_running_task_that_is_revoked_and_terminated_frees_its_key(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker)
    first = call(app, "", "gate")
    scene.wait_runs(1)
    first.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=TIMEOUT)
    scene.wait_empty()
    second = call(app)
    assert second.get(timeout=TIMEOUT) == "k"
    assert scene.runs("id") == [first.id, second.id]
