"""Unique keys of tasks that run, are retried, fail, die: who has the key, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_delayq.errors import UniqueConflict
from celery_delayq.testing import wait_until
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.scene import Control

#: When a task is acknowledged.
LATE, EARLY = True, False
ACKS = pytest.mark.parametrize("late", [LATE, EARLY], ids=["late ack", "early ack"])
LEASE = {"lease": SHORT_LEASE}


def wait_retry(control: Control, result: AsyncResult) -> None:
    """Wait until the retry of a task is all that is scheduled, and its first run is over."""
    waits = [(result.id, 1)]
    wait_until(
        lambda: (
            control.scheduled() == waits and not control.leased_ids() and result.state == "RETRY"
        ),
        TIMEOUT,
        lambda: f"its retry waits: {result.state}, {control.unfinished()}",
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
def test_a_retry_keeps_the_key(control: Control, do: str, scope: str, late: bool) -> None:
    control.start(conf={"at_least_once": late})
    task = control.tasks[f"keep.{scope}"]
    first = task.apply_async(("k", do), countdown=0.1)
    wait_retry(control, first)

    assert control.owners() == {"k": first.id}
    assert task.delay("k").id == first.id
    with pytest.raises(UniqueConflict):
        task.apply_async(("k",), on_conflict="error")

    assert control.delayq.run_now(first.id)
    assert first.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert control.runs("id", "retries") == [(first.id, 0), (first.id, 1)]


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
    control: Control, policy: str, scope: str, late: bool
) -> None:
    """The attempts of what takes its place begin anew."""
    control.start(conf={"at_least_once": late})
    task = control.tasks[f"{policy}.{scope}"]
    first = task.delay("k", "autoretry")
    wait_retry(control, first)

    second = task.apply_async(("k",), countdown=600)

    assert control.scheduled() == [(second.id, 0)]
    assert control.delayq.run_now(second.id)
    assert second.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert first.state == "REVOKED"
    assert control.runs("id", "retries") == [(first.id, 0), (second.id, 0)]


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
    control: Control, do: str, scope: str, late: bool
) -> None:
    control.start(conf={"at_least_once": late})
    task = control.tasks[f"replace.{scope}"]
    first = task.delay("k", do, "gate")
    control.wait_runs(1)
    second = task.apply_async(("k",), countdown=60)
    assert control.owners() == {"k": second.id}

    control.open("gate")
    wait_until(lambda: not control.leased_ids(), TIMEOUT, "the first one is done")
    barrier = control.tasks["other"].delay("barrier")
    assert barrier.get(timeout=TIMEOUT) == "barrier"

    # A retry of the first one is none any more.
    assert control.scheduled() == [(second.id, 0)]
    assert control.owners() == {"k": second.id}
    assert control.delayq.run_now(second.id)
    assert second.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    runs = [(first.id, 0), (barrier.id, 0), (second.id, 0)]
    assert control.runs("id", "retries") == runs
    if do:
        with pytest.raises(TaskRevokedError):
            first.get(timeout=TIMEOUT)
    else:
        assert first.get(timeout=TIMEOUT) == "k"


@ACKS
@pytest.mark.parametrize("policy", ["keep", "error"])
def test_a_retry_runs_without_the_key_when_another_has_it(
    control: Control, policy: str, late: bool
) -> None:
    """With scope scheduled, another one may wait while it runs."""
    control.start(conf={"at_least_once": late})
    task = control.tasks[f"{policy}.scheduled"]
    first = task.delay("k", "retry", "gate")
    control.wait_runs(1)
    second = task.apply_async(("k",), countdown=60)
    assert second.id != first.id
    control.open("gate")
    waiting = [(second.id, 0), (first.id, 1)]
    wait_until(lambda: control.scheduled() == waiting, TIMEOUT, "its retry waits")

    assert control.delayq.run_now(first.id)
    assert first.get(timeout=TIMEOUT) == "k"

    assert control.owners() == {"k": second.id}
    assert control.scheduled() == [(second.id, 0)]
    assert control.runs("id", "retries") == [(first.id, 0), (first.id, 1)]


# -- scope done


def call(control: Control, *args: Any) -> Any:
    return control.tasks["keep.done"].delay("k", *args)


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_the_key_is_taken_while_a_task_runs_and_free_after_that(
    control: Control, pool: str
) -> None:
    control.start(pool, concurrency=2)
    first = call(control, "", "gate")
    control.wait_runs(1)

    second = call(control)
    assert second.id == first.id
    assert control.ready() == []
    control.open("gate")
    assert second.get(timeout=TIMEOUT) == "k"
    control.wait_empty()

    third = call(control)
    assert third.id != first.id
    assert third.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert control.runs("id") == [first.id, third.id]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("do", ["fail", "reject"])
def test_the_key_is_free_after_a_failure(control: Control, do: str, pool: str) -> None:
    control.start(pool)
    first = call(control, do, "gate")
    control.wait_runs(1)
    assert call(control).id == first.id
    control.open("gate")
    control.wait_empty()

    second = call(control)
    assert second.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert control.runs("id") == [first.id, second.id]
    dead = [dead_letter.id for dead_letter in control.delayq.store.dead_letters.all("celery")]
    assert dead == [first.id]


def test_the_key_stays_with_a_task_whose_worker_was_killed(control: Control) -> None:
    doomed = control.start(delayq=LEASE)
    first = call(control, "", "gate")
    control.wait_runs(1)
    doomed.kill()
    assert call(control).id == first.id

    control.start(delayq=LEASE)
    control.wait_runs(2)
    assert call(control).id == first.id
    control.open("gate")
    assert first.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert call(control).id != first.id
    assert control.runs("id", "deliveries")[:2] == [(first.id, 1), (first.id, 2)]


def test_the_key_is_free_when_a_task_is_dead_for_killing_its_processes(control: Control) -> None:
    control.start(delayq={"max_deliveries": 1})
    first = call(control, "die")
    wait_until(
        lambda: [each.id for each in control.delayq.store.dead_letters.all("celery")],
        TIMEOUT,
        "it is dead",
    )
    control.wait_empty()
    # Its own key did not keep it from its second delivery.
    assert control.runs("id", "deliveries") == [(first.id, 1), (first.id, 2)]

    second = call(control)
    assert second.id != first.id
    assert second.get(timeout=TIMEOUT) == "k"


def test_with_early_acknowledgement_the_key_is_free_once_it_runs(control: Control) -> None:
    """Nothing is known of it any more: were it to be killed, nobody would free the key."""
    control.start(conf={"at_least_once": False})
    first = call(control, "", "gate")
    control.wait_runs(1)
    wait_until(lambda: not control.unfinished(), TIMEOUT, "it is acknowledged")
    second = call(control)
    assert second.id != first.id
    control.open("gate")
    assert second.get(timeout=TIMEOUT) == "k"


def test_a_running_task_that_is_revoked_and_terminated_frees_its_key(control: Control) -> None:
    control.start()
    first = call(control, "", "gate")
    control.wait_runs(1)
    first.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=TIMEOUT)
    control.wait_empty()
    second = call(control)
    assert second.get(timeout=TIMEOUT) == "k"
    assert control.runs("id") == [first.id, second.id]
