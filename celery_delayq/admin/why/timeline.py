"""All that is known of one task, by time. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from celery_delayq.admin.why.reasons import Reason, ReasonKind, Why
from celery_delayq.model.history import Run
from celery_delayq.utils.text import spelled

#: What happens at the time in the value of a reason.
_EVENTS = {
    (ReasonKind.QUEUE_PAUSED, "since"): "queue paused",
    (ReasonKind.TASK_PAUSED, "since"): "task paused",
    (ReasonKind.REVOKED, "since"): "revoked",
    (ReasonKind.EXPIRED, "at"): "expires",
    (ReasonKind.DEAD, "since"): "dead letter",
}

#: Kinds of reasons of which a timeline tells everything.
_TOLD = {
    *(ReasonKind.NOT_DUE, ReasonKind.OVERDUE, ReasonKind.REVOKED, ReasonKind.EXPIRED),
    *(ReasonKind.DEAD, ReasonKind.ENDED),
}

#: States in which an answer is that of an entry.
_WAITING = {"scheduled", "paused", "held", "ready", "running"}


def events_of(runs: Iterable[Run], answer: Why) -> list[tuple[datetime, str]]:
    """Return what happened, and what will, by time: the runs of a task, and the answer why."""
    return sorted((*_of_runs(runs), *_of_answer(answer)), key=lambda each: each[0])


def other_reasons(runs: Sequence[Run], answer: Why) -> Iterator[Reason]:
    """Yield the reasons that are no events of the timeline."""
    for each in (answer, *answer.others):
        for reason in each.reasons:
            if reason.kind not in _TOLD and not (runs and reason.kind is ReasonKind.UNKNOWN):
                yield reason


def _of_runs(runs: Iterable[Run]) -> Iterator[tuple[datetime, str]]:
    """Yield what happened in runs."""
    for run in runs:
        where, attempt = f"queue {spelled(run.queue)}", f"attempt {run.retries + 1:,}"
        if run.due is not None:
            yield run.due, f"due: {attempt}"
        if run.promoted is not None:
            yield run.promoted, f"ready in {where}"
        if run.started is not None:
            yield run.started, f"started: {attempt}, on {spelled(run.worker)}"
        reason = f", {spelled(run.reason)}" if run.reason else ""
        yield run.ended, f"ended: {attempt}, {spelled(run.state)}{reason}"


def _of_answer(answer: Why) -> Iterator[tuple[datetime, str]]:
    """Yield what an answer says of the past and the future."""
    for each in (answer, *answer.others):
        if each.due is not None and each.state in _WAITING:
            yield each.due, "due"
        for reason in each.reasons:
            for name, value in reason.values.items():
                event = _EVENTS.get((reason.kind, name))
                if event is not None:
                    why = reason.values.get("reason")
                    yield value, f"{event}: {spelled(why)}" if why else event
