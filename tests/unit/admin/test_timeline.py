"""The timeline of a task: what an answer tells of it by time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_delayq.admin.why.reasons import Reason, ReasonKind, Why
from celery_delayq.admin.why.timeline import events_of, other_reasons

DUE = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)
SINCE = DUE - timedelta(hours=1)

#: Reasons of a task that waits, with the events beside that of the due time.
WAITS: dict[ReasonKind, tuple[dict[str, Any], list[str]]] = {
    ReasonKind.NOT_DUE: ({"due": DUE, "seconds": 5.0}, []),
    ReasonKind.OVERDUE: ({"due": DUE, "seconds": 5.0, "ahead": 1}, []),
    ReasonKind.QUEUE_PAUSED: ({"queue": "celery", "since": SINCE}, ["queue paused"]),
    ReasonKind.TASK_PAUSED: ({"task": "shop.mail", "since": SINCE}, ["task paused"]),
    ReasonKind.READY: ({"ahead": 0}, []),
}


@pytest.mark.parametrize("state", ["scheduled", "paused", "held", "ready", "running"])
@pytest.mark.parametrize("kind", WAITS)
def test_a_task_that_waits_has_its_due_time_once(kind: ReasonKind, state: str) -> None:
    values, others = WAITS[kind]
    reason = Reason(kind, values)
    answer = Why("it", state, "shop.mail", "celery", DUE, [reason])

    assert events_of([], answer) == [*((SINCE, each) for each in others), (DUE, "due")]
    is_an_event = kind in (ReasonKind.NOT_DUE, ReasonKind.OVERDUE)
    assert [*other_reasons([], answer)] == ([] if is_an_event else [reason])


@pytest.mark.parametrize("state", ["ended", "dead", "unknown"])
def test_a_task_that_does_not_wait_has_the_due_times_of_its_runs_alone(state: str) -> None:
    answer = Why("it", state, None, None, DUE, [Reason(ReasonKind.UNKNOWN, {"searched": 1})])

    assert events_of([], answer) == []
