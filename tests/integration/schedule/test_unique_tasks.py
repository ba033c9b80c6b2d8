"""Of tasks with the same unique key one waits: what becomes of the other is up to the policy."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.errors import UniqueConflict
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.control_tasks import TIMEOUT, Scene, StartWorker, start, tasks_of, watching
from tests.integration.conftest import MakeApp


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> Scene:
    return Scene(delayq_redis)


SCOPES = pytest.mark.parametrize("scope", ["scheduled", "done"])


@SCOPES
@pytest.mark.parametrize("policy", ["replace", "later"])
def test_another_call_takes_the_place_of_the_first(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker, policy: str, scope: str
) -> None:
    def due_of(result: AsyncResult) -> datetime:
        entry = delayq.get(result.id)
        assert entry is not None
        return entry.due

    task = app.tasks[f"{policy}.{scope}"]
    start(delayq_worker, "threads")
    with watching(app, scene.client) as told:
        first = task.apply_async(("k",), countdown=80)
        due = due_of(first)
        second = task.apply_async(("k",), countdown=50)
        assert scene.scheduled() == [(second.id, 0)]
        assert scene.owners() == {"k": second.id}
        assert first.state == "REVOKED"
        with pytest.raises(TaskRevokedError, match=f"replaced by {second.id}"):
            first.get(timeout=TIMEOUT)
        wait_until(lambda: ("task-revoked", first.id) in told, TIMEOUT, "it is told")
    third = task.apply_async(("k",), countdown=20)
    third_due = due_of(third)
    assert delayq.run_now(third.id)

    assert third.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert (first.state, second.state) == ("REVOKED", "REVOKED")
    assert scene.runs("id") == [third.id]
    # By "later" it runs when the last one of them is due, which was the first.
    assert third_due == due if policy == "later" else third_due < due


@SCOPES
def test_another_call_is_refused(
    app: Celery, scene: Scene, delayq_worker: StartWorker, scope: str
) -> None:
    task = app.tasks[f"error.{scope}"]
    first = task.apply_async(("k",), countdown=0.5)
    before = scene.left()
    for countdown in (0.1, None):
        with pytest.raises(UniqueConflict, match=first.id) as refused:
            task.apply_async(("k",), countdown=countdown)
        assert refused.value.other_id == first.id
    assert scene.left() == before
    other = task.delay("another key")

    start(delayq_worker, "solo")
    assert (first.get(timeout=TIMEOUT), other.get(timeout=TIMEOUT)) == ("k", "another key")
    scene.wait_empty()
    assert task.delay("k").get(timeout=TIMEOUT) == "k"
    assert scene.runs("key") == ["another key", "k", "k"]


@SCOPES
def test_another_call_is_that_of_the_first(
    app: Celery, scene: Scene, delayq_worker: StartWorker, scope: str
) -> None:
    task = app.tasks[f"keep.{scope}"]
    first = task.apply_async(("k",), countdown=0.5)
    before = scene.left()
    others = [task.apply_async(("k",), countdown=each) for each in (0.1, 60, None)]
    assert {other.id for other in others} == {first.id}
    assert scene.left() == before

    start(delayq_worker, "solo")
    assert [other.get(timeout=TIMEOUT) for other in others] == ["k"] * 3
    scene.wait_empty()
    assert scene.runs("id") == [first.id]


def test_options_of_a_call_go_before_those_of_the_task(app: Celery, scene: Scene) -> None:
    replace, work = app.tasks["replace.scheduled"], app.tasks["work"]
    first = replace.apply_async(("k",), countdown=60)
    assert replace.apply_async(("k",), countdown=9, on_conflict="keep").id == first.id
    with pytest.raises(UniqueConflict):
        replace.apply_async(("k",), countdown=9, on_conflict="error")
    beside = replace.apply_async(("k",), countdown=60, unique_key="own:{key}")
    assert scene.owners() == {"k": first.id, "own%3Ak": beside.id}

    one = work.apply_async(("k",), countdown=60, unique_key="{0}", on_conflict="keep")
    sig = work.s("k").set(countdown=60, unique_key=lambda key: key, on_conflict="keep")
    assert sig.apply_async().id == one.id
    assert work.apply_async(("k",), countdown=60).id != one.id
    ready = work.apply_async(("r",), unique_key="{key}", unique_scope="done", on_conflict="error")
    with pytest.raises(UniqueConflict, match=ready.id):
        app.send_task("work", ("r",), unique_key="{0}", unique_scope="done", on_conflict="error")
    assert scene.ready() == [ready.id]


@pytest.mark.parametrize("policy", ["replace", "later", "keep", "error"])
def test_what_is_ready_has_its_key_as_long_as_the_scope_says(
    app: Celery, scene: Scene, delayq_worker: StartWorker, policy: str
) -> None:
    delayq = DelayQ.of(app)
    results: dict[str, list[Any]] = {}
    for scope in ("scheduled", "done"):
        task = app.tasks[f"{policy}.{scope}"]
        promoted = task.apply_async((scope,), countdown=60)
        assert delayq.run_now(promoted.id)
        results[scope] = [promoted]
        if policy == "error" and scope == "done":
            with pytest.raises(UniqueConflict):
                task.delay(scope)
        else:
            results[scope].append(task.delay(scope))

    start(delayq_worker, "threads")

    ids = {scope: [each.id for each in each_of] for scope, each_of in results.items()}
    expected = {*ids["scheduled"], ids["done"][-1]}
    scene.wait_runs(3)
    scene.wait_empty()
    assert set(scene.runs("id")) == expected
    assert len(scene.runs("id")) == 3
    if policy in ("replace", "later"):
        assert results["done"][0].state == "REVOKED"


@pytest.mark.parametrize(
    ("by", "ready"),
    [
        pytest.param("cancel", False, id="cancel, scheduled"),
        pytest.param("cancel", True, id="cancel, ready"),
        pytest.param("revoke", False, id="revoke, scheduled"),
    ],
)
def test_the_key_is_free_after_a_cancellation(
    app: Celery, scene: Scene, by: str, ready: bool
) -> None:
    delayq, task = DelayQ.of(app), app.tasks["error.done"]
    result = task.apply_async(("k",), countdown=60)
    if ready:
        delayq.run_now(result.id)
    if by == "cancel":
        assert delayq.cancel(result.id)
    else:
        result.revoke()
    assert scene.owners() == {}
    again = task.apply_async(("k",), countdown=60)
    assert scene.owners() == {"k": again.id}


def test_a_kept_child_is_that_of_the_task_that_waits(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads")
    waits = app.tasks["keep.scheduled"].apply_async(("k",), countdown=2)
    called = app.tasks["parent"].delay("keep.scheduled", "k")

    assert called.get(timeout=TIMEOUT) == waits.id
    assert [child.id for child in called.children] == [waits.id]


# -- canvas


def test_a_group_of_unique_tasks_comes_to_its_end(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    """What is not sent is told to be revoked: its result would be waited for in vain."""
    start(delayq_worker, "threads")
    keep, replace = app.tasks["keep.scheduled"], app.tasks["replace.scheduled"]
    members = [task.s(key) for task in (keep, replace) for key in ("a", "a", "b")]
    result = group([each.set(countdown=0.5) for each in members]).apply_async()

    got = [each.get(timeout=TIMEOUT, propagate=False) for each in result]
    assert [each if type(each) is str else type(each) for each in got] == [
        "a",
        TaskRevokedError,
        "b",
        TaskRevokedError,
        "a",
        "b",
    ]
    scene.wait_empty()
    assert sorted(scene.runs("key")) == ["a", "a", "b", "b"]


def test_a_chord_with_a_member_that_is_not_sent_fails(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads")
    keep = app.tasks["keep.scheduled"]
    result = chord([keep.s(n).set(countdown=0.3) for n in (1, 2, 1)])(app.tasks["total"].s())

    with pytest.raises(ChordError, match="raised TaskRevokedError"):
        app.AsyncResult(result.id).get(timeout=TIMEOUT)
    scene.wait_empty()


@SCOPES
def test_a_chord_and_a_chain_of_different_keys_run(
    app: Celery, scene: Scene, delayq_worker: StartWorker, scope: str
) -> None:
    start(delayq_worker, "threads")
    task = app.tasks[f"error.{scope}"]
    summed = chord([task.s(n).set(countdown=0.2) for n in (1, 2, 3)])(app.tasks["total"].s())
    chained = chain(task.si("a"), task.si("b").set(countdown=0.2), task.si("c")).apply_async()

    assert summed.get(timeout=TIMEOUT) == 6
    assert chained.get(timeout=TIMEOUT) == "c"
    scene.wait_empty()


def test_a_chain_whose_first_task_is_not_sent_is_not_waited_for(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads")
    keep = app.tasks["keep.scheduled"]
    first = keep.apply_async(("k",), countdown=1)
    chained = chain(keep.si("k"), app.tasks["work"].si("next")).apply_async()

    with pytest.raises(TaskRevokedError, match=first.id):
        chained.get(timeout=TIMEOUT)
    assert first.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert scene.runs("key") == ["k"]


def test_the_same_id_again_is_kept_and_not_revoked(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    """As of a publisher that gives its own ids, to be safe when it repeats itself."""
    keep = app.tasks["keep.done"]
    for _ in range(3):
        assert keep.apply_async(("k",), countdown=0.5, task_id="mine").id == "mine"
    start(delayq_worker, "solo")
    assert app.AsyncResult("mine").get(timeout=TIMEOUT) == "k"
    assert scene.runs("id") == ["mine"]


# -- crashes

#: Forks publishers and kills each at a random moment.
PUBLISHERS = """
import os, random, sys, time
from celery import Celery
from celery_delayq import DelayQ
from tests.apps.control_tasks import tasks_of

def publish(go):
    app = tasks_of(Celery("p", broker=sys.argv[1], backend=sys.argv[2], set_as_current=False))
    DelayQ(app)
    app.tasks["tick"].delay()  # connected and ready, it does nothing but what is looked at
    os.write(go, b".")
    while True:
        policy = random.choice(["replace", "keep", "later"])
        scope = random.choice(["scheduled", "done"])
        app.tasks[f"{policy}.{scope}"].apply_async(
            (random.randrange(20),), countdown=random.choice([None, random.random() / 5]))

for _ in range(50):
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        publish(go)
    os.read(ready, 1)
    time.sleep(random.random() / 40)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


def test_publishers_that_are_killed_leave_no_key_that_blocks(
    app: Celery, scene: Scene, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    command = [sys.executable, "-c", PUBLISHERS, app.conf.broker_url, delayq_redis.url]
    start(delayq_worker, "threads", concurrency=4)
    subprocess.run(command, check=True, timeout=100)

    scene.wait_empty()
    runs = len(scene.runs("id"))
    assert runs > 20
    calls = [
        app.tasks[f"{policy}.{scope}"].apply_async((n,), on_conflict="error")
        for n in range(20)
        for policy in ("replace", "keep", "later")
        for scope in ("scheduled", "done")
    ]
    assert [call.get(timeout=TIMEOUT) for call in calls] == [n for n in range(20) for _ in "123456"]
    scene.wait_empty()
    assert len(scene.runs("id")) == runs + 120
