"""Of tasks with the same unique key one waits: what becomes of the other is up to the policy."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult

from celery_delayq.errors import UniqueConflict
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT
from tests.support.scene import Control

if TYPE_CHECKING:
    from tests.support.travelling import TravellingControl

SCOPES = pytest.mark.parametrize("scope", ["scheduled", "done"])


@SCOPES
@pytest.mark.parametrize("policy", ["replace", "later"])
def test_another_call_takes_the_place_of_the_first(
    control: Control, policy: str, scope: str
) -> None:
    def due_of(result: AsyncResult) -> datetime:
        entry = control.delayq.get(result.id)
        assert entry is not None
        return entry.due

    task = control.tasks[f"{policy}.{scope}"]
    control.start("threads")
    with control.watching() as told:
        first = task.apply_async(("k",), countdown=9000)
        due = due_of(first)
        second = task.apply_async(("k",), countdown=7200)
        assert control.scheduled() == [(second.id, 0)]
        assert control.owners() == {"k": second.id}
        assert first.state == "REVOKED"
        with pytest.raises(TaskRevokedError, match=f"replaced by {second.id}"):
            first.get(timeout=TIMEOUT)
        wait_until(lambda: ("task-revoked", first.id) in told, TIMEOUT, "its event")
    third = task.apply_async(("k",), countdown=3600)
    third_due = due_of(third)
    assert control.delayq.run_now(third.id)

    assert third.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert (first.state, second.state) == ("REVOKED", "REVOKED")
    assert control.runs("id") == [third.id]
    # By "later" it runs when the last one of them is due, which was the first.
    assert third_due == due if policy == "later" else third_due < due


@pytest.mark.run_by("test")
@SCOPES
def test_another_call_is_refused(control: TravellingControl, scope: str) -> None:
    task = control.tasks[f"error.{scope}"]
    first = task.apply_async(("k",), countdown=0.5)
    before = control.unfinished()
    for countdown in (0.1, None):
        with pytest.raises(UniqueConflict, match=first.id) as refused:
            task.apply_async(("k",), countdown=countdown)
        assert refused.value.other_id == first.id
    assert control.unfinished() == before
    other = task.delay("another key")

    control.run()
    assert (first.get(timeout=TIMEOUT), other.get(timeout=TIMEOUT)) == ("k", "another key")
    control.wait_empty()
    again = task.delay("k")
    control.run()
    assert again.get(timeout=TIMEOUT) == "k"
    assert control.runs("key") == ["another key", "k", "k"]


@pytest.mark.run_by("test")
@SCOPES
def test_another_call_is_that_of_the_first(control: TravellingControl, scope: str) -> None:
    task = control.tasks[f"keep.{scope}"]
    first = task.apply_async(("k",), countdown=0.5)
    before = control.unfinished()
    others = [task.apply_async(("k",), countdown=each) for each in (0.1, 60, None)]
    assert {other.id for other in others} == {first.id}
    assert control.unfinished() == before

    control.run()
    assert [other.get(timeout=TIMEOUT) for other in others] == ["k"] * 3
    control.wait_empty()
    assert control.runs("id") == [first.id]


def test_options_of_a_call_go_before_those_of_the_task(control: Control) -> None:
    replace, work = control.tasks["replace.scheduled"], control.tasks["work"]
    first = replace.apply_async(("k",), countdown=60)
    assert replace.apply_async(("k",), countdown=9, on_conflict="keep").id == first.id
    with pytest.raises(UniqueConflict):
        replace.apply_async(("k",), countdown=9, on_conflict="error")
    beside = replace.apply_async(("k",), countdown=60, unique_key="own:{key}")
    assert control.owners() == {"k": first.id, "own%3Ak": beside.id}

    one = work.apply_async(("k",), countdown=60, unique_key="{0}", on_conflict="keep")
    sig = work.s("k").set(countdown=60, unique_key=lambda key: key, on_conflict="keep")
    assert sig.apply_async().id == one.id
    assert work.apply_async(("k",), countdown=60).id != one.id
    ready = work.apply_async(("r",), unique_key="{key}", unique_scope="done", on_conflict="error")
    with pytest.raises(UniqueConflict, match=ready.id):
        control.app.send_task(
            "work", ("r",), unique_key="{0}", unique_scope="done", on_conflict="error"
        )
    assert control.ready() == [ready.id]


@pytest.mark.run_by("test")
@pytest.mark.parametrize("policy", ["replace", "later", "keep", "error"])
def test_what_is_ready_has_its_key_as_long_as_the_scope_says(control: Control, policy: str) -> None:
    delayq = control.delayq
    results: dict[str, list[Any]] = {}
    for scope in ("scheduled", "done"):
        task = control.tasks[f"{policy}.{scope}"]
        promoted = task.apply_async((scope,), countdown=60)
        assert delayq.run_now(promoted.id)
        results[scope] = [promoted]
        if policy == "error" and scope == "done":
            with pytest.raises(UniqueConflict):
                task.delay(scope)
        else:
            results[scope].append(task.delay(scope))

    ids = {scope: [each.id for each in each_of] for scope, each_of in results.items()}
    expected = {*ids["scheduled"], ids["done"][-1]}
    control.wait_runs(3)
    control.wait_empty()
    assert set(control.runs("id")) == expected
    assert len(control.runs("id")) == 3
    if policy in ("replace", "later"):
        assert results["done"][0].state == "REVOKED"


@pytest.mark.run_by("test")
def test_a_kept_child_is_that_of_the_task_that_waits(control: TravellingControl) -> None:
    waits = control.tasks["keep.scheduled"].apply_async(("k",), countdown=2)
    called = control.tasks["parent"].delay("keep.scheduled", "k")
    control.run()

    assert called.get(timeout=TIMEOUT) == waits.id
    assert [child.id for child in called.children] == [waits.id]


# -- canvas


@pytest.mark.run_by("test")
def test_a_group_of_unique_tasks_comes_to_its_end(control: TravellingControl) -> None:
    """A message that is not sent is reported as revoked: nobody waits for its result in vain."""
    keep, replace = control.tasks["keep.scheduled"], control.tasks["replace.scheduled"]
    members = [task.s(key) for task in (keep, replace) for key in ("a", "a", "b")]
    result = group([each.set(countdown=0.5) for each in members]).apply_async()
    control.run()

    got = [each.get(timeout=TIMEOUT, propagate=False) for each in result]
    found = [each if type(each) is str else "revoked" for each in got]
    assert found == ["a", "revoked", "b", "revoked", "a", "b"]
    assert {type(each) for each in got} == {str, TaskRevokedError}
    control.wait_empty()
    assert sorted(control.runs("key")) == ["a", "a", "b", "b"]


@pytest.mark.run_by("test")
def test_a_chord_with_a_member_that_is_not_sent_fails(control: TravellingControl) -> None:
    keep = control.tasks["keep.scheduled"]
    result = chord([keep.s(n).set(countdown=0.3) for n in (1, 2, 1)])(control.tasks["total"].s())
    control.run()

    with pytest.raises(ChordError, match="raised TaskRevokedError"):
        control.app.AsyncResult(result.id).get(timeout=TIMEOUT)
    control.wait_empty()


@pytest.mark.run_by("test")
@SCOPES
def test_a_chord_and_a_chain_of_different_keys_run(control: TravellingControl, scope: str) -> None:
    task = control.tasks[f"error.{scope}"]
    summed = chord([task.s(n).set(countdown=0.2) for n in (1, 2, 3)])(control.tasks["total"].s())
    chained = chain(task.si("a"), task.si("b").set(countdown=0.2), task.si("c")).apply_async()
    control.run()

    assert summed.get(timeout=TIMEOUT) == 6
    assert chained.get(timeout=TIMEOUT) == "c"
    control.wait_empty()


@pytest.mark.run_by("test")
def test_a_chain_whose_first_task_is_not_sent_is_not_waited_for(control: TravellingControl) -> None:
    keep = control.tasks["keep.scheduled"]
    first = keep.apply_async(("k",), countdown=1)
    chained = chain(keep.si("k"), control.tasks["work"].si("next")).apply_async()
    control.run()

    with pytest.raises(TaskRevokedError, match=first.id):
        chained.get(timeout=TIMEOUT)
    assert first.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert control.runs("key") == ["k"]


@pytest.mark.run_by("test")
def test_the_same_id_again_is_kept_and_not_revoked(control: TravellingControl) -> None:
    """As of a publisher that gives its own ids, to be safe when it repeats itself."""
    keep = control.tasks["keep.done"]
    for _ in range(3):
        assert keep.apply_async(("k",), countdown=0.5, task_id="mine").id == "mine"
    control.run()
    assert control.app.AsyncResult("mine").get(timeout=TIMEOUT) == "k"
    assert control.runs("id") == ["mine"]


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
    while True:
        os.write(go, b".")
        policy = random.choice(["replace", "keep", "later"])
        scope = random.choice(["scheduled", "done"])
        app.tasks[f"{policy}.{scope}"].apply_async(
            (random.randrange(20),), countdown=random.choice([None, random.random() / 5]))

for _ in range(50):
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        publish(go)
    for _ in range(3):  # it has sent two
        os.read(ready, 1)
    time.sleep(random.random() / 40)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


@pytest.mark.full
def test_publishers_that_are_killed_leave_no_key_that_blocks(
    control: Control, delayq_redis: RedisUnderTest
) -> None:
    command = [sys.executable, "-c", PUBLISHERS, control.app.conf.broker_url, delayq_redis.url]
    control.start("threads", concurrency=4)
    subprocess.run(command, check=True, timeout=TIMEOUT)

    control.wait_empty()
    runs = len(control.runs("id"))
    assert runs > 20
    calls = [
        control.tasks[f"{policy}.{scope}"].apply_async((n,), on_conflict="error")
        for n in range(20)
        for policy in ("replace", "keep", "later")
        for scope in ("scheduled", "done")
    ]
    assert [call.get(timeout=TIMEOUT) for call in calls] == [n for n in range(20) for _ in "123456"]
    control.wait_empty()
    assert len(control.runs("id")) == runs + 120
