"""A purge reports the end of a task that nobody has reported: its workers died."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord
from celery.exceptions import WorkerLostError
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.errors import DelayQError
from celery_delayq.testing.fixtures import RedisUnderTest

QUEUE = "celery"


def die(delayq: DelayQ, id: str) -> None:
    """Make a dead letter of a task, as of one that kills its process again and again."""
    leases = delayq.store.leases
    assert delayq.run_now(id)
    for number in ("1", "2"):
        leases.acquire(QUEUE, id, 30.0, number, 1)
        leases.requeue(QUEUE, id, [f"{number}:1"], counted="crashed", max_deliveries=1)
    [dead_letter] = delayq.dead_letters()
    assert dead_letter.reason.startswith("killed its process")


def state(app: Celery, id: str) -> Any:
    return AsyncResult(id, app=app).state


def test_what_is_linked_to_its_failure_is_called(
    app: Celery, add: Any, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    @app.task(name="failed", shared=False)
    def failed(task_id: str) -> None:
        """Stand for what is called with the id of a task that has failed."""

    error = failed.s().set(task_id="error")
    first = add.s(1, 1).set(task_id="first", countdown=600, link_error=error)
    chain(first, add.s(1).set(task_id="second"))()
    die(delayq, "first")
    assert (state(app, "first"), state(app, "second")) == ("PENDING", "PENDING")

    assert delayq.purge("first")

    assert isinstance(AsyncResult("first", app=app).result, WorkerLostError)
    assert (state(app, "first"), state(app, "second")) == ("FAILURE", "FAILURE")
    assert [b'"error"' in each for each in delayq_redis.client.lrange(QUEUE, 0, -1)] == [True]


def test_its_chord_fails(app: Celery, add: Any, delayq: DelayQ) -> None:
    members = [add.s(n, n).set(task_id=f"member-{n}", countdown=600) for n in range(2)]
    chord(members)(add.si(1, 1).set(task_id="body"))
    die(delayq, "member-0")
    assert state(app, "body") == "PENDING"

    assert delayq.purge("member-0")

    assert state(app, "member-0") == "FAILURE"
    assert delayq.cancel("member-1")
    assert "a dead letter was purged" in str(AsyncResult("body", app=app).result)


def test_a_backend_that_is_away_keeps_nobody_from_purging(
    app: Celery, add: Any, delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    add.apply_async((1, 1), task_id="a", countdown=600)
    die(delayq, "a")

    def away(*_: Any, **__: Any) -> None:
        raise DelayQError("away")

    monkeypatch.setattr(app.backend, "mark_as_failure", away)

    assert delayq.purge("a")
    assert delayq.count_dead() == 0
