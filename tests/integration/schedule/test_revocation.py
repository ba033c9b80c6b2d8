"""What is revoked never runs: not here, not after a restart, whoever revoked it and how."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import StampingVisitor
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.control_tasks import TIMEOUT, Scene, StartWorker, start, tasks_of, watching
from tests.integration.conftest import MakeApp

Revoke = Callable[[Celery, AsyncResult], None]


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> Scene:
    return Scene(delayq_redis)


class Stamp(StampingVisitor):
    """Stamps all tasks with the customer for whom they are."""

    def __init__(self, customer: str) -> None:
        self.customer = customer

    def on_signature(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"customer": self.customer}


def send(app: Celery, key: str, customer: str = "them", **options: Any) -> AsyncResult:
    """Send a task with a stamp."""
    sig = app.tasks["work"].s(key).set(task_id=key, **options)
    sig.stamp(Stamp(customer))
    return sig.apply_async()


def by_result(app: Celery, result: AsyncResult) -> None:
    result.revoke()


def by_ids(app: Celery, result: AsyncResult) -> None:
    app.control.revoke([result.id, "another one"])


def by_stamp(app: Celery, result: AsyncResult) -> None:
    app.control.revoke_by_stamped_headers({"customer": ["us", "nobody"]})


def by_command_line(app: Celery, result: AsyncResult) -> None:
    """Revoke as people do; nobody answers, since no worker runs, and it lasts all the same."""
    command_line(app, "revoke", result.id)


def by_stamp_on_the_command_line(app: Celery, result: AsyncResult) -> None:
    command_line(app, "revoke_by_stamped_headers", "customer=us")


def command_line(app: Celery, *args: str) -> None:
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.control_tasks:app"]
    command += ["-b", app.conf.broker_url, "--result-backend", app.conf.result_backend]
    done = subprocess.run(
        [*command, "control", *args], capture_output=True, text=True, timeout=60, check=False
    )
    assert "No nodes replied" in done.stderr, done


WAYS = [by_result, by_ids, by_stamp, by_command_line, by_stamp_on_the_command_line]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__.replace("_", " "))
def revoke(request: pytest.FixtureRequest) -> Revoke:
    way: Revoke = request.param
    return way


def test_what_is_scheduled_is_removed_at_once(app: Celery, scene: Scene, revoke: Revoke) -> None:
    send(app, "spared", countdown=300)
    before = scene.left()
    result = send(app, "revoked", "us", countdown=60)
    assert scene.left() != before

    with watching(app, scene.client) as told:
        revoke(app, result)

        assert scene.left() == before
        assert result.state == "REVOKED"
        with pytest.raises(TaskRevokedError):
            result.get(timeout=TIMEOUT)
        wait_until(lambda: told, TIMEOUT, "it is told")
    assert told == [("task-revoked", "revoked")]


@pytest.mark.conformance
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_what_is_ready_is_refused_by_workers_that_start_later(
    app: Celery, scene: Scene, delayq_worker: StartWorker, pool: str
) -> None:
    at_once = [send(app, f"at once {n}", "us") for n in range(2)]
    promoted = [send(app, f"promoted {n}", "us", countdown=60) for n in range(2)]
    for result in promoted:
        assert DelayQ.of(app).run_now(result.id)
    assert len(scene.ready()) == 4

    by_result(app, at_once[0])
    by_result(app, promoted[0])
    by_stamp(app, promoted[1])
    spared = send(app, "spared")
    with watching(app, scene.client) as told:
        start(delayq_worker, pool)
        assert spared.get(timeout=TIMEOUT) == "spared"
        scene.wait_empty()

    results = [*at_once, *promoted]
    assert [result.state for result in results] == ["REVOKED"] * 4
    assert scene.runs("id") == ["spared"]
    revoked = sorted(id for kind, id in told if kind == "task-revoked")
    assert revoked == ["at once 0", "at once 1", "promoted 0", "promoted 1"]
    assert list(DelayQ.of(app).store.dead_letters.all("celery")) == []


@pytest.mark.parametrize("way", [by_ids, by_stamp], ids=["ids", "stamp"])
def test_what_a_killed_worker_held_is_refused_by_the_next_one(
    app: Celery, scene: Scene, delayq_worker: StartWorker, way: Revoke
) -> None:
    conf = {"worker_prefetch_multiplier": 12}
    doomed = start(delayq_worker, conf=conf, delayq={"lease": 1})
    app.tasks["work"].apply_async(("blocking", "", "gate"), task_id="blocking")
    scene.wait_runs(1)
    result = send(app, "revoked", "us")
    delayed = send(app, "another one", "us", countdown=0.1)
    wait_until(
        lambda: scene.held() == {"blocking", "revoked", "another one"}, TIMEOUT, "it holds all"
    )

    way(app, result)
    doomed.kill()
    assert scene.held() == {"blocking", "revoked", "another one"}
    scene.open("gate")
    start(delayq_worker, conf=conf, delayq={"lease": 1})

    spared = send(app, "spared")
    assert spared.get(timeout=TIMEOUT) == "spared"
    scene.wait_empty()
    assert (result.state, delayed.state) == ("REVOKED", "REVOKED")
    assert sorted(scene.runs("id")) == ["blocking", "blocking", "spared"]


@pytest.mark.parametrize("by", ["id", "stamp"])
def test_what_a_stock_client_revokes_stays_revoked(
    app: Celery,
    scene: Scene,
    delayq_worker: StartWorker,
    delayq_redis: RedisUnderTest,
    by: str,
) -> None:
    """Its broadcast reaches a worker, which sees to those that start later."""
    first = start(delayq_worker, "threads")
    scheduled = send(app, "scheduled", "us", countdown=60)
    elsewhere = send(app, "elsewhere", "us", queue="aside")
    later = send(app, "later", "us", queue="aside", countdown=60)
    stock = Celery("stock", broker=delayq_redis.url, set_as_current=False)

    if by == "id":
        stock.control.revoke([each.id for each in (scheduled, elsewhere, later)])
    else:
        stock.control.revoke_by_stamped_headers({"customer": "us"})

    wait_until(lambda: not scene.scheduled("aside"), TIMEOUT, "removed")
    wait_until(lambda: scheduled.state == later.state == "REVOKED", TIMEOUT, "both are revoked")
    stock.close()
    first.stop()
    assert scene.ready("aside") == ["elsewhere"]
    start(delayq_worker, "threads", queues=["aside"])
    assert send(app, "spared", queue="aside").get(timeout=TIMEOUT) == "spared"
    scene.wait_empty("aside")
    assert elsewhere.state == "REVOKED"
    assert scene.runs("id") == ["spared"]


@pytest.mark.parametrize("way", [by_ids, by_stamp], ids=["ids", "stamp"])
def test_revoked_ids_are_forgotten_in_time(
    make_app: MakeApp, scene: Scene, delayq_worker: StartWorker, way: Revoke
) -> None:
    options = {"revoke_expires": 1.0}
    app = tasks_of(make_app(broker_transport_options={"delayq": options}))
    result = send(app, "revoked", "us")
    way(app, result)
    scene.wait_past(scene.now() + 1.1)

    start(delayq_worker, "solo", delayq=options)

    scene.wait_runs(1)
    scene.wait_empty()
    assert scene.runs("id") == ["revoked"]


@pytest.mark.parametrize("late", [True, False], ids=["late ack", "early ack"])
def test_a_running_task_is_terminated(
    app: Celery, scene: Scene, delayq_worker: StartWorker, late: bool
) -> None:
    start(delayq_worker, conf={"at_least_once": late})
    result = app.tasks["work"].apply_async(("a", "", "gate"), countdown=0.1)
    scene.wait_runs(1)
    running = DelayQ.of(app).get(result.id)
    assert (running is not None) is late

    with watching(app, scene.client) as told:
        result.revoke(terminate=True)
        with pytest.raises(TaskRevokedError, match="terminated"):
            result.get(timeout=TIMEOUT)
        assert app.tasks["work"].delay("b").get(timeout=TIMEOUT) == "b"
        wait_until(lambda: ("task-revoked", result.id) in told, TIMEOUT, "it is told")
    scene.wait_empty()
    assert scene.runs("key") == ["a", "b"]
    assert told.count(("task-revoked", result.id)) == 1


@pytest.mark.parametrize("countdown", [None, 60], ids=["ready", "scheduled"])
def test_a_chord_with_a_revoked_member_fails_as_on_stock_celery(
    app: Celery, scene: Scene, delayq_worker: StartWorker, countdown: float | None
) -> None:
    work = app.tasks["work"]
    members = [work.s(1), work.s(2).set(countdown=countdown, task_id="revoked"), work.s(3)]
    result = chord(members)(app.tasks["total"].s())

    app.control.revoke("revoked")
    start(delayq_worker, "threads", concurrency=2)

    with pytest.raises(ChordError, match="Dependency revoked raised"):
        app.AsyncResult(result.id).get(timeout=TIMEOUT)
    scene.wait_empty()
    assert sorted(scene.runs("key")) == [1, 3]


def test_revoking_a_group_revokes_its_members(app: Celery, scene: Scene) -> None:
    members = [app.tasks["work"].s(n).set(countdown=60) for n in range(3)]
    spared = send(app, "spared", countdown=60)
    result = group(members).apply_async()
    assert len(scene.scheduled()) == 4

    result.revoke()

    assert scene.scheduled() == [(spared.id, 0)]
    assert [each.state for each in result] == ["REVOKED"] * 3


def test_what_follows_a_revoked_task_of_a_chain_does_not_run(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    work = app.tasks["work"]
    result = chain(work.si(1), work.si(2).set(countdown=60), work.si(3)).apply_async()
    start(delayq_worker, "threads")
    wait_until(lambda: scene.scheduled() == [(result.parent.id, 0)], TIMEOUT, "the second waits")

    result.parent.revoke()

    scene.wait_empty()
    assert work.delay("after").get(timeout=TIMEOUT) == "after"
    assert scene.runs("key") == [1, "after"]
    assert [result.parent.state, result.state] == ["REVOKED", "PENDING"]


@pytest.mark.parametrize("late", [True, False], ids=["late ack", "early ack"])
def test_a_retry_that_waits_is_revoked(
    app: Celery, scene: Scene, delayq_worker: StartWorker, late: bool
) -> None:
    start(delayq_worker, conf={"at_least_once": late})
    result = app.tasks["work"].apply_async(("a", "retry", "gate"))
    scene.wait_runs(1)
    scene.open("gate")
    wait_until(lambda: result.state == "RETRY", TIMEOUT, "its retry waits")
    assert scene.scheduled() == [(result.id, 1)]

    result.revoke()

    scene.wait_empty()
    assert result.state == "REVOKED"
    assert app.tasks["work"].apply_async(("b",), countdown=0.6).get(timeout=TIMEOUT) == "b"
    assert scene.runs("key") == ["a", "b"]
