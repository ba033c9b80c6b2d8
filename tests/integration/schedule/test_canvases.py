"""A whole chain, chord or group is cancelled by the id of its root or of the group."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_delayq import DelayQ, Outcome
from celery_delayq.errors import ConfigError, InvalidFilter
from celery_delayq.testing import FAST_START
from tests.support import TIMEOUT
from tests.support.scene import StartWorker


def states(*results: Any) -> list[str]:
    return [AsyncResult(result.id, app=result.app).state for result in results]


def test_what_is_scheduled_of_a_chain_is_cancelled_at_once(add: Any, delayq: DelayQ) -> None:
    last = chain(add.s(1, 1).set(countdown=300), add.s(1))()
    other = add.apply_async((1, 1), countdown=300)

    bulk = delayq.cancel_canvas(root_id=last.parent.id)

    assert dict(bulk.outcomes) == {Outcome.DONE: 1}
    assert [entry.id for entry in delayq.list()] == [other.id]
    assert states(last.parent, other) == ["REVOKED", "PENDING"]


def test_all_members_of_a_group_are_cancelled_and_no_others(add: Any, delayq: DelayQ) -> None:
    ours = group(add.s(n, n) for n in range(5)).apply_async(countdown=300)
    others = group(add.s(n, n) for n in range(3)).apply_async(countdown=300)

    assert delayq.cancel_canvas(group_id=ours.id).done == 5

    assert delayq.count() == 3
    assert states(*ours.results) == ["REVOKED"] * 5
    assert states(*others.results) == ["PENDING"] * 3


def test_chains_of_a_group_belong_to_it(add: Any, delayq: DelayQ) -> None:
    link = add.s(1, 1).set(countdown=300)
    ours = group(chain(link, add.s(1)) for _ in range(3)).apply_async()
    chain(link, add.s(1))()

    assert delayq.cancel_canvas(group_id=ours.id).done == 3

    assert delayq.count() == 1


def test_a_chord_fails_when_its_members_are_cancelled(add: Any, delayq: DelayQ) -> None:
    """Also of chains."""
    link = add.s(1, 1).set(countdown=300)
    for members in ([link, link], [chain(link, add.s(1)), chain(link, add.s(2))]):
        body = chord(members)(add.s(1))

        delayq.cancel_canvas(group_id=body.parent.id)

        assert states(body) == ["FAILURE"]


def test_a_worker_that_starts_later_refuses_what_is_ready_or_is_sent_after_that(
    app: Celery, delayq: DelayQ, delayq_worker: StartWorker
) -> None:
    def add(**options: Any) -> AsyncResult:
        return app.send_task("add", (1, 1), **options)

    ready = add(root_id="the root")
    member = add(group_id="the group")
    chained = add(chain=[app.signature("add", (1,), options={"group_id": "the group"})])
    delayq.cancel_canvas(root_id="the root")
    delayq.cancel_canvas(group_id="the group")
    later = add(root_id="the root", countdown=0.2)
    other = add()

    delayq_worker("tests.apps.delayq_tasks:app", pool="solo", extra_args=FAST_START)

    for result in (ready, member, chained, later):
        with pytest.raises(TaskRevokedError):
            AsyncResult(result.id, app=app).get(timeout=TIMEOUT)
    assert AsyncResult(other.id, app=app).get(timeout=TIMEOUT) == 2


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({}, ConfigError, "give one of them"),
        ({"root_id": "a", "group_id": "b"}, ConfigError, "give one of them"),
        ({"root_id": ""}, InvalidFilter, "root_id=''"),
    ],
)
def test_exactly_one_id_is_expected(
    delayq: DelayQ, given: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        delayq.cancel_canvas(**given)
