"""``update`` beside changes by others: who wins is exact, and no change is lost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Outcome
from celery_delayq.model.changes.record import edited_record
from celery_delayq.model.envelope import Entry, due_of_eta, head_of
from celery_delayq.schedule import update
from celery_delayq.testing import wait_until
from celery_delayq.utils import message_json
from tests.apps.update_tasks import tasks_of
from tests.integration.conftest import stored
from tests.support import TIMEOUT

FAR = dt.datetime(2100, 1, 31, 9, tzinfo=dt.timezone.utc)


@pytest.fixture
def note(app: Celery) -> Any:
    return tasks_of(app).tasks["note"]


def send(task: Any, args: tuple[Any, ...] = ("old",)) -> None:
    """Send a task with arguments that are to be changed."""
    task.apply_async(args, {"text": "old"}, eta=FAR, task_id="a")


def send_again(delayq: DelayQ) -> None:
    delayq.cancel("a")
    send(delayq.app.tasks["note"], args=("again",))


def promote(delayq: DelayQ) -> None:
    store = delayq.store
    delayq.reschedule("a", countdown=0.001)
    wait_until(lambda: store.promote("celery", store.layout, 10).moved, TIMEOUT, "it is due")


def acquire(delayq: DelayQ) -> None:
    promote(delayq)
    delayq.store.leases.acquire("celery", "me", 600, "1", 1)


def requeue(delayq: DelayQ) -> None:
    acquire(delayq)
    leases = delayq.store.leases
    leases.requeue("celery", "me", [*leases.leased_fields("celery", "me")])


def retry(delayq: DelayQ) -> None:
    """Replace the leased message by its retry, as a worker does."""
    [message] = stored(delayq.store.client)
    acquire(delayq)
    leases = delayq.store.leases
    [field] = leases.leased_fields("celery", "me")
    head = head_of(message_json.encode(message))
    message["headers"]["retries"] = 1
    message["properties"]["delayq"] = {}
    entry = Entry.of(message, 0, due_of_eta(FAR))
    call = leases.replace_call("celery", entry, "celery", "me", field, head=head, when_due="push")
    assert delayq.store.run(call) == b"scheduled"


#: By name: what another process does after the record was read, the outcome, and what is left.
MEANWHILE: dict[str, tuple[Callable[[DelayQ], object], Outcome, Any]] = {
    "other args": (lambda q: q.update("a", args=["other"]), Outcome.DONE, (["new"], "old")),
    "other kwargs": (
        lambda q: q.update("a", kwargs={"text": "other"}),
        Outcome.DONE,
        (["new"], "other"),
    ),
    "moved": (lambda q: q.reschedule("a", by=60), Outcome.DONE, (["new"], "old")),
    "cancelled": (lambda q: q.cancel("a"), Outcome.UNKNOWN, None),
    "run": (lambda q: q.run_now("a"), Outcome.READY, None),
    "promoted": (promote, Outcome.READY, None),
    "acquired": (acquire, Outcome.RUNNING, None),
    "requeued": (requeue, Outcome.READY, None),
    "retried": (retry, Outcome.DONE, (["new"], "old")),
    "sent again": (
        send_again,
        Outcome.DONE,
        (["new"], "old"),
    ),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_who_wins_is_exact(
    delayq: DelayQ, note: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    send(note)
    meanwhile, outcome, left = MEANWHILE[what]
    edited, done = edited_record, list[str]()

    def after_others(*args: Any) -> bytes:
        record = edited(*args)
        if not done:
            done.append(what)
            meanwhile(delayq)
        return record

    monkeypatch.setattr(update, "edited_record", after_others)

    assert delayq.update("a", args=["new"]) is outcome
    found = delayq.get("a")
    kwargs = None if found is None else found.kwargs
    assert (found and kwargs and (found.args, kwargs["text"])) == left


def test_others_that_never_stop_change_it_first(
    delayq: DelayQ, note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(note)
    edited = edited_record

    def after_others(*args: Any) -> bytes:
        record = edited(*args)
        with monkeypatch.context() as patch:
            patch.setattr(update, "edited_record", edited)
            delayq.update("a", headers={"x": len(calls)})
        calls.append(1)
        return record

    calls: list[int] = []
    monkeypatch.setattr(update, "edited_record", after_others)

    assert delayq.update("a", args=["new"]) is Outcome.CHANGED
    assert len(calls) == update.UPDATE_ATTEMPTS


def test_many_at_once_lose_no_change(
    delayq: DelayQ, note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins and ends while the one before has read the message and not changed it."""
    send(note)
    edited, outcomes = edited_record, list[Outcome]()

    def set_header() -> None:
        name = f"h{begun.pop(0)}"
        outcomes.append(delayq.update("a", headers={name: name}))

    def with_others_meanwhile(*args: Any) -> bytes:
        record = edited(*args)
        if begun:
            set_header()
        return record

    begun = [*range(8)]
    monkeypatch.setattr(update, "edited_record", with_others_meanwhile)

    set_header()

    assert outcomes == [Outcome.DONE] * 8
    found = delayq.get("a")
    assert found is not None
    assert {f"h{n}" for n in range(8)} <= found.headers.keys()
